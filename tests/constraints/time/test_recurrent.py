"""The recurrent mixers by hand: scan, projections, exchange over context parallelism, graphs and full recompute."""

from __future__ import annotations

from typing import Any

import pytest

from mbsolve.constraints.evaluate import priced, rank_counts
from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Row
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

H100 = load_machine("h100")


def row(name: str, which: Row, plan: Plan) -> dict[str, float]:
    """Seconds of every term of a row, for one count, by name."""
    job = Job(model=load_model(name), machine=H100, gpus=16, seq_len=8192, gbs=64, gpus_per_node=8)
    return {t.name: value for t, value in priced(job, plan, TIME_TERMS).terms[which]}


@pytest.mark.parametrize(
    ("name", "block", "inner", "state"),
    [("nemotron-3-nano", "mamba", 64 * 64, 128), ("qwen3-next-80b", "gdn", 32 * 128, 128)],
)
def test_the_scan_by_hand(name: str, block: str, inner: int, state: int) -> None:
    rate = H100.matrix_flops["bf16"] * H100.calibration["scan_fraction"]
    forward = row(name, "forward_device", Plan(tp=2, ep=8, mbs=2, sequence_parallel=True))
    backward = row(name, "backward_device", Plan(tp=2, ep=8, mbs=2, sequence_parallel=True))
    once = 6 * 2 * 8192 * inner * state / 2 / rate
    assert forward[f"scan.{block}.scan"] == pytest.approx(once)
    assert backward[f"scan.{block}.scan"] == pytest.approx(2.5 * once)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("nemotron-3-nano", {"mamba"}),
        ("nemotron-3-nano-4b", {"mamba"}),
        ("qwen3-next-80b", {"gdn"}),
        ("llama3-8b", set[str]()),
    ],
)
def test_only_models_with_a_mixer_pay_for_it(name: str, blocks: set[str]) -> None:
    found = row(name, "forward_device", Plan(ep=8 if load_model(name).is_moe else 1))
    assert {n.split(".")[1] for n, seconds in found.items() if n.startswith("scan.") and seconds} == blocks


def test_tokens_are_exchanged_for_heads_under_context_parallelism_only() -> None:
    alone, cut = (row("qwen3-next-80b", "forward_device", Plan(cp=cp, ep=8)) for cp in (1, 2))
    assert alone["cp.gdn.exchange"] == 0 < cut["cp.gdn.exchange"]
    rate = 4.5e11 * H100.calibration["collective_fraction"]
    assert cut["cp.gdn.exchange"] == pytest.approx(2 * 4096 * (12352 + 4096) / 2 / rate)


@pytest.mark.parametrize(
    ("name", "block", "scope"), [("nemotron-3-nano", "mamba", "mamba"), ("qwen3-next-80b", "gdn", "attn")]
)
def test_the_scope_that_captures_a_mixer(name: str, block: str, scope: str) -> None:
    captured: dict[str, Any] = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": (scope,)}
    before = row(name, "forward_host", Plan(ep=8))
    after = row(name, "forward_host", Plan(ep=8, **captured))
    left = H100.calibration["graph_left"]
    assert after[f"host.{block}"] == pytest.approx(left * before[f"host.{block}"])


def test_full_recompute_replays_every_half_of_every_layer() -> None:
    job = Job(
        model=load_model("nemotron-3-nano"), machine=H100, gpus=16, seq_len=8192, gbs=64, gpus_per_node=8
    )
    plan = Plan(ep=8, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    (counts,) = rank_counts(job, plan)
    replayed = {n: counts[f"replayed_{n}"] for n in ("mamba", "attention", "moe", "dense", "gdn")}
    assert replayed == {"mamba": 23, "attention": 6, "moe": 23, "dense": 0, "gdn": 0}
    forward, again = (
        row("nemotron-3-nano", "forward_device", plan),
        row("nemotron-3-nano", "backward_device", plan),
    )
    inside = sum(v for n, v in forward.items() if n.split(".")[1] == "mamba" and not n.startswith("kernel"))
    assert again["recompute.mamba.whole"] == pytest.approx(inside)
