"""Laws of the bounds: nothing that the solver rules out could have been better."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.vocabulary import SHAPE
from mbsolve.solver.goal import Goal
from mbsolve.solver.grids import Grids
from mbsolve.solver.pool import Pool
from mbsolve.solver.search import Objective, hard_rules
from mbsolve.solver.shapes import GRID, LAYOUT, MODES
from mbsolve.solver.tie import KEY_FEATURES, key_value
from tests.solver.oracle import Entry
from tests.solver.small_jobs import HYBRIDS, PHASES, PLAIN_FAMILIES, random_budget, random_space

SLACK = 1 + 1e-9
# A target above everything, in seconds or bytes.
LARGE = 1e16
Optima = dict[tuple[Any, ...], float]


def quantum(objective: Objective) -> float:
    """Seconds or bytes of a quantum."""
    return SECONDS_PER_QUANTUM if objective == "time" else BYTES_PER_QUANTUM


def optima(found: Sequence[Entry], names: Sequence[str], objective: Objective) -> Optima:
    """The best plan of each combination of some decisions, in seconds or bytes."""
    out: Optima = defaultdict(lambda: math.inf)
    for entry in found:
        key = tuple(entry.values[n] for n in names)
        out[key] = min(out[key], entry.score(objective) * quantum(objective))
    return out


def check(bound: float, target: float, optimum: float, what: Mapping[str, Any]) -> None:
    """A bound is no more than the optimum; one that reached its target says only that the optimum does too."""
    assert bound <= optimum * SLACK or (
        math.isfinite(bound) and bound <= target * SLACK and optimum >= target
    ), f"bound {bound} of {what} under target {target}, but the optimum is {optimum}"


def pairs(pool: Pool, found: Sequence[Entry], names: Sequence[str], objective: Objective) -> list[Optima]:
    """`optima` of each family of the pool's grids."""
    assert pool.grids is not None
    return [
        optima([e for e in found if family.holds([e.values[n] for n in MODES])], names, objective)
        for family in pool.grids.families
    ]


BOTH = pytest.mark.parametrize("families", [PLAIN_FAMILIES, HYBRIDS], ids=["plain", "hybrid"])


def check_pool(objective: Objective, seed: int, families: Sequence[str] = PLAIN_FAMILIES) -> None:
    """Check grids family by family, and shapes after a glance, the dual and the enumeration."""
    random = Random(seed)
    space = random_space(random, families=families)
    job = random_budget(random, space)
    fitting = [e for e in space.found if e.fits(job)]
    best = optima(fitting, SHAPE, objective)
    by_key: Optima = defaultdict(lambda: math.inf)
    for e in fitting:
        rest = (key_value(n, e.values[n]) for n in KEY_FEATURES)
        whole = *(e.values[n] for n in SHAPE), *rest
        by_key[whole] = min(by_key[whole], e.score(objective) * quantum(objective))
    some = min(best.values(), default=1.0)
    for target in (LARGE, some * 1.5, some * SLACK, some * 0.8):
        goal = Goal(target)
        goal.level = target / SLACK
        pool = Pool(job, space.demands, hard_rules(job), objective, goal=goal)
        if pool.grids is None:
            assert not fitting
            return
        grids, of_grids = pool.grids, pairs(pool, fitting, GRID, objective)

        def checked_grids(
            grids: Grids = grids, target: float = target, of_grids: list[Optima] = of_grids
        ) -> None:
            for i, f in np.ndindex(*grids.bound.shape):
                row = grids.columns.row(i)
                check(float(grids.bound[i, f]), target, of_grids[f][tuple(row[n] for n in GRID)], row)

        checked_grids()
        while pool.grow(target):
            while pool.tighten(target):
                pass
        checked_grids()
        seen = set()
        for chunk in pool.chunks:
            for i in range(chunk.shapes.rows):
                row = chunk.shapes.row(i)
                key = tuple(row[n] for n in SHAPE)
                assert key not in seen
                seen.add(key)
                check(chunk.bound[i], target, best[key], {n: row[n] for n in SHAPE})
                assert chunk.bound[i] >= 0
                for features, bound in chunk.keys.get(i, ((), {}))[1].items():
                    check(bound, target, by_key[*key, *features], {**row, "key": features})
        for key, optimum in best.items():
            assert key in seen or optimum >= target, f"{key} with {optimum} was left out under {target}"


@BOTH
@pytest.mark.parametrize("objective", ["time", "memory"])
@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_no_layout_bound_exceeds_an_optimum(
    objective: Objective, families: tuple[str, ...], seed: int
) -> None:
    """Layouts are bounded before their modes are known."""
    random = Random(seed)
    space = random_space(random, families=families)
    job = random_budget(random, space)
    fitting = [e for e in space.found if e.fits(job)]
    pool = Pool(job, space.demands, hard_rules(job), objective)
    if pool.grids is None:
        return
    grids = pool.grids
    layouts = grids.layouts(np.arange(grids.columns.rows))
    if not layouts.rows:
        assert not fitting
        return
    for f, best in enumerate(pairs(pool, fitting, LAYOUT, objective)):
        if not grids.families[f].pairs:
            assert not best
            continue
        for target in (0.0, 1.1 * min(best.values(), default=0.0), LARGE):
            bound = grids.layout_bounds(layouts, f, target)
            for i in range(layouts.rows):
                row = layouts.row(i)
                check(bound[i], target, best[tuple(row[n] for n in LAYOUT)], row)


@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_raising_the_target_keeps_bounds_valid(seed: int) -> None:
    """A later rank aims higher; what an earlier, lower aim left behind is still a bound."""
    random = Random(seed)
    space = random_space(random)
    job = random_budget(random, space)
    best = optima([e for e in space.found if e.fits(job)], SHAPE, "time")
    goal = Goal(LARGE)
    pool = Pool(job, space.demands, hard_rules(job), "time", goal=goal)
    if pool.empty or not best:
        return
    optima_in_order = sorted(set(best.values()))
    goal.level = LARGE
    while pool.grow(LARGE):
        pass
    for target in (
        optima_in_order[0] * SLACK,
        optima_in_order[len(optima_in_order) // 2],
        optima_in_order[-1] * 1.1,
    ):
        goal.level = target / SLACK
        while pool.tighten(target):
            pass
        for chunk in pool.chunks:
            for i in range(chunk.shapes.rows):
                row = chunk.shapes.row(i)
                check(chunk.bound[i], target, best[tuple(row[n] for n in SHAPE)], row)


@BOTH
@pytest.mark.parametrize("objective", ["time", "memory"])
@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_no_bound_exceeds_an_optimum(objective: Objective, families: tuple[str, ...], seed: int) -> None:
    """Every bound on the way to a shape is at most the best plan behind it."""
    check_pool(objective, seed, families)


def test_relaxed_grids_hold_block_recompute() -> None:
    """Where keeping all layers is too large, replaying some is faster than replaying all."""
    check_pool("time", 4)


def test_bounds_round_the_bubble_as_the_quanta_do() -> None:
    """On three stages a third of a pass is no whole number of thousandths."""
    check_pool("time", 38103)
