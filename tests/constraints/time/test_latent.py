"""Experts in a latent: their products, permutation and exchange by its width, and two projections beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.evaluate import priced
from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Row
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.constraints.time.rates import gemm
from mbsolve.constraints.vocabulary import DISPATCHERS, Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

H100 = load_machine("h100")
SUPER = load_model("nemotron-3-super")
ROUTED = (
    "gemm.moe.experts",
    "quantise.moe.experts",
    "elementwise.moe.permute",
    "ep.moe.dispatch",
    "ep.moe.expert_tensor",
)
PROJECTIONS = tuple(f"{kind}.moe.latent_{way}" for kind in ("gemm", "quantise") for way in ("in", "out"))
WHOLE = ("recompute.", "offload.")
"""Terms of a whole sub-block: the sum of its forward, and what of it goes to the host."""

DEVICE: tuple[Row, ...] = ("forward_device", "backward_device")

plans: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    tp=st.sampled_from((1, 2)),
    ep=st.sampled_from((8, 16)),
    mbs=st.sampled_from((1, 2)),
    dispatcher=st.sampled_from(DISPATCHERS),
    sequence_parallel=st.booleans(),
)


def job_of(latent: int | None, precision: Any = "bf16") -> Job:
    model = SUPER.model_copy(update={"moe_latent_size": latent})
    return Job(
        model=model, machine=H100, gpus=64, seq_len=8192, gbs=512, gpus_per_node=8, precision=precision
    )


def row(job: Job, which: Row, plan: Plan) -> dict[str, float]:
    """Seconds of every term of a row, for one count, by name."""
    return {t.name: value for t, value in priced(job, plan, TIME_TERMS).terms[which]}


@pytest.mark.parametrize("tp", [1, 2])
def test_the_projections_by_hand(tp: int) -> None:
    """Whole on every rank, each works on its own tokens of the sequence."""
    job, plan = job_of(1024), Plan(tp=tp, ep=8, mbs=2, sequence_parallel=tp > 1)
    forward, backward = (row(job, which, plan) for which in DEVICE)
    for way, outputs, inputs in (("in", 1024, 4096), ("out", 4096, 1024)):
        hand = gemm(job, H100, 2 * 8192 / tp, outputs, inputs)
        assert forward[f"gemm.moe.latent_{way}"] == pytest.approx(float(hand.forward))
        assert backward[f"gemm.moe.latent_{way}"] == pytest.approx(float(hand.backward))
    assert forward["quantise.moe.latent_in"] == 0


@settings(max_examples=40, deadline=None)
@given(plan=plans, precision=st.sampled_from(("bf16", "fp8_cs")))
def test_a_latent_of_the_hidden_size_adds_its_projections_alone(plan: dict[str, Any], precision: str) -> None:
    chosen = Plan(**plan)
    for which in DEVICE:
        plain = row(job_of(None, precision), which, chosen)
        latent = row(job_of(SUPER.hidden_size, precision), which, chosen)
        for name in plain:
            if name in PROJECTIONS:
                assert plain[name] == 0 < latent[name] or (
                    name.startswith("quantise") and precision == "bf16"
                )
            elif name != "kernel.moe" and not name.startswith(WHOLE):
                assert latent[name] == pytest.approx(plain[name]), name
        assert latent["kernel.moe"] > plain["kernel.moe"]


@settings(max_examples=40, deadline=None)
@given(plan=plans, precision=st.sampled_from(("bf16", "fp8_cs")), latent=st.sampled_from((256, 1024, 2048)))
def test_a_narrower_latent_is_never_slower_and_touches_only_the_routed_path(
    plan: dict[str, Any], precision: str, latent: int
) -> None:
    chosen = Plan(**plan)
    for which in DEVICE:
        wide = row(job_of(SUPER.hidden_size, precision), which, chosen)
        narrow = row(job_of(latent, precision), which, chosen)
        assert all(narrow[name] <= wide[name] * (1 + 1e-12) for name in wide)
        changed = {name for name in wide if narrow[name] != wide[name] and not name.startswith(WHOLE)}
        assert changed <= {*ROUTED, *PROJECTIONS}
        assert {"gemm.moe.experts", "elementwise.moe.permute", "ep.moe.dispatch"} <= changed


def test_the_router_and_the_shared_experts_see_the_hidden_state() -> None:
    plan = Plan(ep=8)
    plain, latent = (row(job_of(size), "forward_device", plan) for size in (None, 1024))
    for name in ("elementwise.moe.router", "gemm.moe.shared_experts", "elementwise.moe.layernorm"):
        assert latent[name] == plain[name] > 0
