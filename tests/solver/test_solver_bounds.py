"""Laws of the bounds: nothing that the solver rules out could have been better."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.vocabulary import SHAPE
from mbsolve.solver.pool import Pool
from mbsolve.solver.search import Objective, hard_rules
from mbsolve.solver.shapes import GRID, LAYOUT
from tests.solver.oracle import Entry
from tests.solver.small_jobs import PHASES, random_budget, random_space

SLACK = 1 + 1e-9


def optima(
    found: Sequence[Entry], names: Sequence[str], objective: Objective
) -> dict[tuple[Any, ...], float]:
    """The best plan of each combination of some decisions, in seconds or bytes."""
    quantum = SECONDS_PER_QUANTUM if objective == "time" else BYTES_PER_QUANTUM
    out: dict[tuple[Any, ...], float] = defaultdict(lambda: math.inf)
    for entry in found:
        key = tuple(entry.values[n] for n in names)
        out[key] = min(out[key], entry.score(objective) * quantum)
    return out


def check(bound: float, target: float, optimum: float, what: Mapping[str, Any]) -> None:
    """A bound is no more than the optimum; one that reached its target says only that the optimum does too."""
    assert bound <= optimum * SLACK or (
        math.isfinite(bound) and bound <= target * SLACK and optimum >= target
    ), f"bound {bound} of {what} under target {target}, but the optimum is {optimum}"


def check_pool(objective: Objective, seed: int) -> None:
    """Check grids, relaxed grids, and shapes after a glance, the dual and the enumeration."""
    random = Random(seed)
    space = random_space(random)
    job = random_budget(random, space)
    fitting = [e for e in space.found if e.fits(job)]
    best = {names: optima(fitting, names, objective) for names in (GRID, LAYOUT, SHAPE)}
    some = min(best[SHAPE].values(), default=1.0)
    for target in (math.inf, some * 1.5, some * SLACK, some * 0.8):
        pool = Pool(job, space.demands, hard_rules(job), objective)
        if pool.empty:
            assert not fitting
            return

        def checked_grids(pool: Pool = pool, target: float = target) -> None:
            for i in range(len(pool.bound)):
                row = pool.source.grids.row(i)
                check(pool.bound[i], target, best[GRID][tuple(row[n] for n in GRID)], row)

        checked_grids()
        while pool.grow(math.inf if target == math.inf else target):
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
                check(chunk.bound[i], target, best[SHAPE][key], {n: row[n] for n in SHAPE})
                assert chunk.bound[i] >= 0
        for key, optimum in best[SHAPE].items():
            assert key in seen or optimum >= target, f"{key} with {optimum} was left out under {target}"


@pytest.mark.parametrize("objective", ["time", "memory"])
@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_no_layout_bound_exceeds_an_optimum(objective: Objective, seed: int) -> None:
    """Layouts are bounded before their modes are known."""
    random = Random(seed)
    space = random_space(random)
    job = random_budget(random, space)
    best = optima([e for e in space.found if e.fits(job)], LAYOUT, objective)
    pool = Pool(job, space.demands, hard_rules(job), objective)
    if pool.empty:
        return
    layouts = pool.source.layouts(pool.order).with_derived(job)
    if not layouts.rows:
        assert not best
        return
    bound = pool._layout_bounds(layouts)
    for i in range(layouts.rows):
        row = layouts.row(i)
        check(bound[i], math.inf, best[tuple(row[n] for n in LAYOUT)], row)


@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_raising_the_target_keeps_bounds_valid(seed: int) -> None:
    """A later rank aims higher; what an earlier, lower aim left behind is still a bound."""
    random = Random(seed)
    space = random_space(random)
    job = random_budget(random, space)
    best = optima([e for e in space.found if e.fits(job)], SHAPE, "time")
    pool = Pool(job, space.demands, hard_rules(job), "time")
    if pool.empty or not best:
        return
    optima_in_order = sorted(set(best.values()))
    while pool.grow(math.inf):
        pass
    for target in (
        optima_in_order[0] * SLACK,
        optima_in_order[len(optima_in_order) // 2],
        optima_in_order[-1] * 1.1,
    ):
        while pool.tighten(target):
            pass
        for chunk in pool.chunks:
            for i in range(chunk.shapes.rows):
                row = chunk.shapes.row(i)
                check(chunk.bound[i], target, best[tuple(row[n] for n in SHAPE)], row)


@pytest.mark.parametrize("objective", ["time", "memory"])
@settings(deadline=None, max_examples=4, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_no_bound_exceeds_an_optimum(objective: Objective, seed: int) -> None:
    """Every bound on the way to a shape is at most the best plan behind it."""
    check_pool(objective, seed)


def test_relaxed_grids_hold_block_recompute() -> None:
    """Where keeping all layers is too large, replaying some is faster than replaying all."""
    check_pool("time", 4)


def test_bounds_round_the_bubble_as_the_quanta_do() -> None:
    """On three stages a third of a pass is no whole number of thousandths."""
    check_pool("time", 38103)
