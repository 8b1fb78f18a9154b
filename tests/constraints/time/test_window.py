"""Behind what collectives of data parallelism hide: the longer of device and host time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.step import StagePass, exposure, step_of
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

JOB = Job(
    model=load_model("llama3-8b"), machine=load_machine("h100"), gpus=8, seq_len=8192, gbs=64, gpus_per_node=8
)
SECONDS = st.floats(1e-4, 1.0)


@given(
    device=st.tuples(SECONDS, SECONDS),
    host=st.tuples(SECONDS, SECONDS),
    reduce=SECONDS,
    gather=SECONDS,
    faster=st.floats(0.1, 1.0),
    pp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2, 5]),
)
def test_a_faster_device_makes_no_step_longer(
    device: tuple[float, float],
    host: tuple[float, float],
    reduce: float,
    gather: float,
    faster: float,
    pp: int,
    vpp: int,
) -> None:
    """Whatever waits for the host: less device time never adds to a step, and what is exposed is what its law says."""

    def step(scale: float) -> float:
        one = StagePass(device[0] * scale, host[0], device[1] * scale, host[1], 0.0)
        return step_of(JOB, pp, vpp, 8, [one] * pp, reduce, gather, 0.0).seconds

    assert step(faster) <= step(1.0) * (1 + 1e-9)
    one = StagePass(device[0], host[0], device[1], host[1], 0.0)
    share, hides = exposure(JOB, pp, vpp, overlapped=True)
    found = step_of(JOB, pp, vpp, 8, [one] * pp, reduce, gather, 0.0)
    assert found.grad_reduce == pytest.approx(max(share * reduce, reduce - hides * max(device[1], host[1])))
    assert found.param_gather == pytest.approx(max(share * gather, gather - hides * max(device[0], host[0])))
