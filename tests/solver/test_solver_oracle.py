"""The solver against plain enumeration: feasibility, optimum, the plan named, and the ranks after it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from mbsolve.constraints.quantised import quantised
from mbsolve.solver.search import Objective
from mbsolve.solver.tie import key_of
from tests.solver.oracle import best_of, searched
from tests.solver.small_jobs import random_budget, random_space

TOP = 3


@pytest.mark.parametrize("objective", ["time", "memory"])
@settings(deadline=None, max_examples=8, derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_same_answers_as_enumeration(objective: Objective, seed: int) -> None:
    """On a small space under any budget the solver names exactly the plans that enumeration names."""
    random = Random(seed)
    space = random_space(random)
    for _ in range(2):
        job = random_budget(random, space)
        note(f"{len(space.found)} legal plans, free: {space.free()}")
        expected = best_of(job, space.found, objective, TOP)
        got = searched(job, space.demands, objective, TOP)
        assert [(f.quanta.step, f.quanta.peak) for f in got] == [(e.quanta.step, e.quanta.peak) for e in expected]
        assert [key_of(f.values) for f in got] == [e.key for e in expected]
        assert [f.plan for f in got] == [e.plan for e in expected]
        assert all(f.proven and f.quanta == quantised(job, f.plan) for f in got)
