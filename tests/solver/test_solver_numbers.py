"""One law, three readings: floating point for reports, whole quanta for comparison, arrays for the solver."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.quantised import quantised
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from tests.solver.oracle import Entry
from tests.solver.small_jobs import PHASES, Space, dense, random_space


def sample(seed: int, number: int) -> tuple[Space, list[Entry]]:
    """Some legal plans of a small space."""
    random = Random(seed)
    space = random_space(random, most=200)
    return space, random.sample(space.found, min(number, len(space.found)))


@settings(deadline=None, max_examples=12, derandomize=True, phases=PHASES)
@given(seed=st.integers(0, 2**31))
def test_quanta_agree_with_floats(seed: int) -> None:
    """Quanta round against the plan, by little; terms add up to their totals."""
    space, found = sample(seed, 8)
    for entry in found:
        floating, whole = evaluate(space.job, entry.plan), quantised(space.job, entry.plan)
        assert whole == entry.quanta
        seconds = whole.step * SECONDS_PER_QUANTUM
        assert seconds == pytest.approx(floating.step_seconds, rel=2e-3)
        # The window that hides collectives is rounded up too, term by term.
        assert seconds >= floating.step_seconds - 50 * SECONDS_PER_QUANTUM
        peak = floating.worst_stage.peak_device_bytes
        assert whole.peak * BYTES_PER_QUANTUM == pytest.approx(peak, rel=1e-3)
        assert whole.peak * BYTES_PER_QUANTUM >= peak * (1 - 1e-9)
        ranks = min(space.job.gpus_per_node, space.job.gpus)
        assert whole.host * BYTES_PER_QUANTUM * ranks >= floating.host_bytes_per_node * (1 - 1e-9)
        assert sum(t.seconds or 0.0 for t in floating.terms) == pytest.approx(floating.step_seconds, rel=1e-6)
        for stage in floating.stages:
            assert sum(t.bytes or 0.0 for t in stage.terms) == pytest.approx(
                stage.peak_allocated_bytes + stage.pool_bytes, rel=1e-9
            )


def test_bubble_rounds_against_the_plan() -> None:
    """Two thirds of a pass are 667 thousandths, a third is 334."""
    job = Job(model=dense(6), machine=load_machine("h100"), gpus=3, gpus_per_node=8, seq_len=2048, gbs=3)
    plan = Plan(pp=3, vpp=2)
    assert quantised(job, plan).step * SECONDS_PER_QUANTUM >= evaluate(job, plan).step_seconds
