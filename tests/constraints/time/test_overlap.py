"""What EP overlap hides: a share of the dispatch, never more than the other micro-batch computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.core_attention import core
from mbsolve.constraints.time.dispatch import dispatch
from mbsolve.constraints.time.experts import experts
from mbsolve.constraints.time.overlap import exposed_dispatch
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

MACHINE, MODEL = load_machine("h100"), load_model("qwen3-30b-a3b")


@given(
    seq=st.sampled_from([1024, 4096, 32768]),
    ep=st.sampled_from([2, 8, 16, 64]),
    mbs=st.integers(1, 4),
    dispatcher=st.sampled_from(["alltoall", "deepep", "hybridep"]),
    slow=st.sampled_from([1.0, 0.1, 0.01]),
)
def test_it_hides_no_more_than_is_computed(seq: int, ep: int, mbs: int, dispatcher: str, slow: float) -> None:
    """Whatever the network, a pass shows at least what its share leaves, and at least what compute does not cover."""
    networks = tuple(
        n.model_copy(update={"bytes_per_second": n.bytes_per_second * slow}) for n in MACHINE.networks
    )
    machine = MACHINE.model_copy(update={"networks": networks})
    job = Job(model=MODEL, machine=machine, gpus=64, seq_len=seq, gbs=512, gpus_per_node=8)
    where = (job, MODEL, machine, job.topology)
    plain = dispatch(*where, 1, 1, ep, 1, mbs, False, dispatcher)
    off = exposed_dispatch(*where, 1, 1, ep, 1, mbs, False, False, dispatcher)
    shown = exposed_dispatch(*where, 1, 1, ep, 1, mbs, False, True, dispatcher)
    work = experts(job, MODEL, machine, 1, 1, ep, 1, mbs, False).plus(core(job, MODEL, machine, 1, 1, mbs))
    hidden = machine.calibration["ep_overlap_hidden"]
    for a, b, c, d in zip(plain, off, shown, work, strict=True):
        assert float(b) == pytest.approx(float(a))
        assert float(c) == pytest.approx(max((1 - hidden) * float(a), float(a) - float(d)))
        assert 0 < float(c) <= float(a)
