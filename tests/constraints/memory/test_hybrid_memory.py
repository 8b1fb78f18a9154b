"""Memory of hybrid models: exact parameters, saved tensors by hand, moments of a pattern, two published peaks."""

from __future__ import annotations

from typing import Any

import pytest

from mbsolve.constraints.evaluate import evaluate, priced, rank_counts
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.memory.resident import GRADIENTS, WEIGHTS
from mbsolve.constraints.memory.tensors import TENSORS
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import held_by
from mbsolve.constraints.placement import Replay, halves_of, virtual_stages
from mbsolve.constraints.vocabulary import Plan, Settings, Split
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import LayerKind, load_model
from mbsolve.models.counts import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_extra_parameters,
)

NAMES = ("nemotron-3-nano", "nemotron-3.5-lightning", "nemotron-3-nano-4b", "qwen3-next-80b")


def job_of(name: str, **more: Any) -> Job:
    machine = load_machine("h100")
    size: dict[str, Any] = {"gpus": 16, "seq_len": 8192, "gbs": 512, "gpus_per_node": 8, **more}
    return Job(model=load_model(name), machine=machine, **size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_weights_and_gradients_are_those_of_the_layers(name: str, tp: int, pp: int) -> None:
    job = job_of(name)
    model, ep = job.model, 4 if job.model.is_moe else 1
    plan = Plan(tp=tp, pp=pp, ep=ep, sequence_parallel=tp > 1)
    p = priced(job, plan, (*WEIGHTS, *GRADIENTS))
    stages = virtual_stages(model, pp, 1, Split())
    for rank, counts in enumerate(rank_counts(job, plan)):
        kinds = [item.kind for item in stages[rank] if item.kind is not None]
        layers = [layer_parameters(model, kind, tp, ep) for kind in kinds]
        own = sum(layer.dense + layer.expert for layer in layers)
        own += counts["mtp"] * mtp_extra_parameters(model, tp)
        own += counts["embedding"] * embedding_parameters(model, tp)
        own += counts["head"] * head_parameters(model, tp, embedding_here=pp == 1)
        # BF16 weights, FP32 gradients.
        assert p.total("device_bytes", counts) == (2 + 4) * own


def saved(name: str, half: Any, tp: int) -> float:
    job = job_of(name)
    values = {**job.facts, "mbs": 1, "cp": 1, "tp": tp, "sequence_parallel": tp > 1}
    return float(sum(tensor.size(values) for tensor in TENSORS[half]))


@pytest.mark.parametrize("tp", [1, 2])
def test_what_a_mamba_layer_saves_by_hand(tp: int) -> None:
    tokens, hidden, inner, projected = 8192, 2688, 4096, 10304
    bf16 = 2 * hidden + projected + 2 * inner + inner
    statistics = 4 + 4 * 8
    assert saved("nemotron-3-nano", "mamba", tp) == tokens / tp * (2 * bf16 + statistics)


@pytest.mark.parametrize("tp", [1, 2])
def test_what_a_gated_delta_net_saves_by_hand(tp: int) -> None:
    tokens, hidden, projected, query, copied, value = 8192, 2048, 12352, 2048, 4096, 4096
    bf16 = 2 * hidden + projected + 2 * query + 2 * copied + 2 * value + 2 * value + value
    heads = 32 * (4 + 2 + 2 * 64)
    statistics = 4 + 4 * (32 + 2 * 16)
    assert saved("qwen3-next-80b", "gdn", tp) == tokens / tp * (2 * bf16 + heads + statistics)


def test_counts_of_a_pattern() -> None:
    job = job_of("nemotron-3.5-lightning")
    (counts,) = rank_counts(job, Plan(ep=8))
    assert (counts["mamba"], counts["attention"], counts["moe"], counts["mtp"]) == (23, 6 + 2, 23 + 2, 2)
    assert counts["dense"] == counts["gdn"] == 0
    assert (counts["has_mamba"], counts["has_gdn"]) == (1, 0)
    assert halves_of(LayerKind("window_attention", "moe")) == ("attention", "moe")


def test_a_micro_batch_holds_its_layers_or_one_unit_for_each() -> None:
    model = load_model("qwen3-next-80b")
    (stage,) = virtual_stages(model, 1, 1, Split())
    kept, replayed = held_by(stage, Replay()), held_by(stage, Replay("uniform", 1))
    assert [kept[COLUMN[f"live_{h}"]] for h in ("gdn", "attention", "moe", "unit")] == [36, 13, 49, 0]
    assert [replayed[COLUMN[f"live_{h}"]] for h in ("gdn", "attention", "moe", "unit")] == [0, 0, 0, 49]


# Peaks of two cards of Megatron-Bridge, Nemotron 3.5 Lightning on 16 H100 (gradients in BF16); GiB, allocated.
PEAKS = [
    (
        72.066,
        {"moment_dtype": "bf16"},
        {
            "recompute_modules": ("moe_act", "layernorm"),
            "precision_aware_optimizer": True,
            "fine_grained_offload_modules": ("expert_fc1",),
            "cuda_graph_impl": "transformer_engine",
        },
    ),
    (
        68.547,
        {},
        {
            "cp": 2,
            "recompute_modules": ("moe", "layernorm", "core_attn"),
            "cuda_graph_impl": "transformer_engine",
            "cuda_graph_scope": ("mamba",),
        },
    ),
]


@pytest.mark.parametrize(("gib", "settings", "plan"), PEAKS)
def test_published_peaks_are_met_from_below(
    gib: float, settings: dict[str, Any], plan: dict[str, Any]
) -> None:
    """The runs took up to 15% more; both used HybridEP, one with natural routing."""
    job = job_of("nemotron-3.5-lightning", settings=Settings(grad_dtype="bf16", logits_copies=1, **settings))
    chosen = Plan(ep=8, recompute_granularity="selective", dispatcher="hybridep", **plan)
    found = evaluate(job, chosen).worst_stage.peak_allocated_bytes / 2**30
    assert 0.84 < found / gib < 1.02


@pytest.mark.parametrize(
    ("pattern", "full", "between", "peak"),
    [("MMMM", False, 6.226, 12.016), ("M" * 8, False, 7.200, 14.699), ("MMMM", True, 6.226, 10.472)],
)
def test_a_stack_of_mamba_layers_alone_is_as_measured(
    pattern: str, full: bool, between: float, peak: float
) -> None:
    """One rank of 16 on an H200, 2026-11-30; a table of rotary positions is counted that such a model has not."""
    experts = ("num_experts", "moe_topk", "moe_ffn_hidden_size", "shared_expert_ffn_hidden_size")
    changes = {
        "layer_pattern": pattern,
        "num_layers": len(pattern),
        "ffn_hidden_size": 1856,
        "aux_loss": False,
    }
    model = load_model("nemotron-3-nano").model_copy(update=changes | dict.fromkeys(experts))
    job = Job(model=model, machine=load_machine("h200"), gpus=16, seq_len=8192, gbs=32, gpus_per_node=8)
    unit = Plan(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    stage = evaluate(job, unit if full else Plan()).stages[0]
    assert stage.between_bytes / 2**30 == pytest.approx(between, abs=0.005)
    assert stage.peak_allocated_bytes / 2**30 == pytest.approx(peak, abs=0.005)


@pytest.mark.parametrize(
    ("precision", "operand", "copied"), [("bf16", 1.0, 0.0), ("fp8_cs", 0.5, 0.5), ("fp8_delayed", 0.5, 0.5)]
)
@pytest.mark.parametrize("tp", [1, 2])
def test_what_experts_of_a_latent_save_by_hand(
    precision: str, operand: float, copied: float, tp: int
) -> None:
    """Beside a layer without the latent: narrower rows of the experts, and the operands of two projections."""
    tokens, hidden, latent, topk = 8192 / tp, 4096, 1024, 22
    job = job_of("nemotron-3-super", precision=precision)
    plain = job.model_copy(update={"model": job.model.model_copy(update={"moe_latent_size": None})})
    values = {"mbs": 1, "cp": 1, "tp": tp, "sequence_parallel": tp > 1, "etp": 1, "ep": 8}
    with_latent, without = (
        {tensor.name: tensor.size({**one.facts, **values}) for tensor in TENSORS["moe"]}
        for one in (job, plain)
    )
    differing = {name for name in with_latent if with_latent[name] != without[name]}
    own = {"saved.moe.latent_output"} | ({"saved.moe.latent_input"} if copied else set())
    assert differing == own | {"saved.moe.expert_input"}
    assert with_latent["saved.moe.latent_input"] == pytest.approx(2 * tokens * hidden * copied)
    assert with_latent["saved.moe.latent_output"] == 2 * tokens * latent * operand
    assert with_latent["saved.moe.expert_input"] == 2 * tokens * topk * latent * operand
    assert without["saved.moe.latent_output"] == without["saved.moe.latent_input"] == 0


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
def test_a_latent_makes_every_buffer_and_moment_of_dispatch_smaller(dispatcher: str) -> None:
    job = job_of("nemotron-3-super")
    wide = job.model_copy(update={"model": job.model.model_copy(update={"moe_latent_size": 4096})})
    plan = Plan(ep=8, dispatcher=dispatcher)
    narrow, full = (priced(one, plan, MEMORY_TERMS).terms["device_bytes"] for one in (job, wide))
    less = {term.name for (term, a), (_, b) in zip(narrow, full, strict=True) if a < b}
    assert {"transient.moe_forward", "transient.moe_backward", "saved.moe.expert_input"} <= less
    assert all(a <= b for (_, a), (_, b) in zip(narrow, full, strict=True))
    pools = [priced(one, plan, MEMORY_TERMS).terms["pool_bytes"] for one in (job, wide)]
    buffers = [{t.name: v for t, v in pool if t.name.startswith("buffer.")} for pool in pools]
    if dispatcher in ("deepep", "hybridep"):
        assert 0 < buffers[0][f"buffer.{dispatcher}"] < buffers[1][f"buffer.{dispatcher}"]
