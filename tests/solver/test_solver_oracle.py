"""The solver against plain enumeration: feasibility, optimum, the plan named, and the ranks after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from random import Random
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from mbsolve.constraints.quantised import quantised
from mbsolve.solver import grids, pool, search
from mbsolve.solver.search import Objective
from mbsolve.solver.tie import key_of
from tests.solver.oracle import best_of, searched
from tests.solver.small_jobs import HYBRIDS, PHASES, PLAIN_FAMILIES, random_budget, random_space

TOP = 3


STEPS = {"GRIDS": 1, "CHUNK": 2, "DUAL": 2, "START": 1}


@contextmanager
def step_by_step() -> Iterator[None]:
    """A search that opens a small space bit by bit, as it opens a large one."""
    with ExitStack() as stack:
        for name, value in STEPS.items():
            stack.enter_context(mock.patch.object(pool, name, value))
        stack.enter_context(mock.patch.object(grids, "REFINED", 2))
        for name, value in (("GUESS", 2), ("BATCH", 8)):
            stack.enter_context(mock.patch.object(search, name, value))
        yield


@pytest.fixture
def pace(request: pytest.FixtureRequest) -> Iterator[str]:
    """The two ways of going through a space."""
    with step_by_step() if request.param == "step by step" else nullcontext():
        yield request.param


@pytest.mark.parametrize("families", [PLAIN_FAMILIES, HYBRIDS], ids=["plain", "hybrid"])
@pytest.mark.parametrize(
    ("pace", "objective"),
    [
        ("as it is", "time"),
        ("as it is", "memory"),
        ("step by step", "time"),
        ("step by step", "memory"),
    ],
    indirect=["pace"],
)
@settings(
    deadline=None,
    max_examples=4,
    derandomize=True,
    phases=PHASES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**31))
def test_same_answers_as_enumeration(
    objective: Objective, pace: str, families: tuple[str, ...], seed: int
) -> None:
    """On a small space under any budget the solver names exactly the plans that enumeration names."""
    random = Random(seed)
    space = random_space(random, most=250, families=families)
    for _ in range(2):
        job = random_budget(random, space)
        note(f"{len(space.found)} legal plans, free: {space.free()}")
        expected = best_of(job, space.found, objective, TOP)
        got = searched(job, space.demands, objective, TOP)
        assert [(f.quanta.step, f.quanta.peak) for f in got] == [
            (e.quanta.step, e.quanta.peak) for e in expected
        ]
        assert [key_of(f.values) for f in got] == [e.key for e in expected]
        assert [f.plan for f in got] == [e.plan for e in expected]
        assert all(f.proven and f.quanta == quantised(job, f.plan) for f in got)


@pytest.mark.parametrize(("seed", "budget"), [(1003, 1), (1013, 0)])
def test_later_ranks_see_what_earlier_ones_ruled_out(seed: int, budget: int) -> None:
    """A layout or shape worse than the best plan may hold the second best."""
    random = Random(seed)
    space = random_space(random)
    job = [random_budget(random, space) for _ in range(budget + 1)][-1]
    expected = best_of(job, space.found, "time", 4)
    with step_by_step():
        got = searched(job, space.demands, "time", 4)
    assert [f.quanta.step for f in got] == [e.quanta.step for e in expected]


@pytest.mark.parametrize("seed", [900029, 500073, 900041])
def test_narrow_spaces_are_answered(seed: int) -> None:
    """A budget that rounding may exceed by one quantum, and spaces of which the rules leave no mode."""
    random = Random(seed)
    space = random_space(random, most=250)
    job = random_budget(random, space)
    with step_by_step():
        got = searched(job, space.demands, "time", 4)
    assert [f.plan for f in got] == [e.plan for e in best_of(job, space.found, "time", 4)]
