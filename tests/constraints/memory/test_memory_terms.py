"""Laws that every memory term and every saved tensor must keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.memory import sizes, tensors
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.memory.compose import ask
from mbsolve.constraints.memory.declare import SavedTensor
from mbsolve.constraints.memory.device import reserved_permille
from mbsolve.constraints.moment_counts import MOMENT_COUNTS
from mbsolve.constraints.rule import RESERVED
from mbsolve.constraints.vocabulary import (
    DECISIONS,
    DERIVED,
    DISPATCHERS,
    FEATURES,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    SHAPE,
    Plan,
)
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

MODELS = ("llama3-8b", "qwen3-30b-a3b", "dsv3", "gpt-oss-120b", "moonlight-16b")
FLAGS = (
    *(f"recompute_{m}" for m in RECOMPUTE_MODULES),
    *(f"offload_{m}" for m in OFFLOAD_MODULES),
    *(f"graph_{s}" for s in GRAPH_SCOPES),
    "precision_aware_optimizer",
)
LAYER_TENSORS: list[SavedTensor] = [
    t for half in ("attention", "dense", "moe") for t in tensors.TENSORS[half]
]

jobs = st.builds(
    lambda model, machine, precision, own: Job.model_validate(
        {
            "model": load_model(model),
            "machine": load_machine(machine),
            "gpus": 64,
            "seq_len": 4096,
            "gbs": 64,
            "precision": precision,
            "settings": own,
        }
    ),
    st.sampled_from(MODELS),
    st.sampled_from(("h200", "gb200")),
    st.sampled_from(PRECISIONS),
    st.fixed_dictionaries(
        {
            "cp_comm_type": st.sampled_from(("p2p", "a2a", "all_gather", "a2a+p2p")),
            "grad_dtype": st.sampled_from(("fp32", "bf16")),
            "moment_dtype": st.sampled_from(("fp32", "bf16")),
            "main_param_dtype": st.sampled_from(("fp32", "fp16")),
            "fp8_param": st.booleans(),
            "routing": st.sampled_from(("balanced", "natural")),
            "distributed_optimizer": st.booleans(),
        }
    ),
)
shapes = st.fixed_dictionaries(
    {
        "tp": st.sampled_from((1, 2, 8)),
        "cp": st.sampled_from((1, 2)),
        "pp": st.sampled_from((1, 4)),
        "vpp": st.sampled_from((1, 2)),
        "ep": st.sampled_from((1, 8, 32)),
        "etp": st.sampled_from((1, 2)),
        "mbs": st.sampled_from((1, 2)),
        "dp": st.sampled_from((1, 4)),
        "edp": st.sampled_from((1, 2)),
        "microbatches": st.sampled_from((1, 8)),
        "sequence_parallel": st.booleans(),
        "cuda_graph_impl": st.sampled_from(GRAPH_IMPLS),
    }
)
features = st.fixed_dictionaries(
    {
        **{name: st.booleans() for name in (*FLAGS, "ep_overlap")},
        "dispatcher": st.sampled_from(DISPATCHERS),
        "optimizer_offload_fraction": st.sampled_from((0.0, 0.25, 1.0)),
    }
)


def column(rows: list[dict[str, Any]], shape: tuple[int, int]) -> dict[str, Any]:
    """The values of many rows as arrays of one shape."""
    return {name: np.array([row[name] for row in rows]).reshape(shape) for name in rows[0]}


@given(jobs, st.lists(shapes, min_size=1, max_size=4), st.lists(features, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_arrays_give_what_scalars_give_and_nothing_is_negative(
    job: Job, rows: list[dict[str, Any]], columns: list[dict[str, Any]]
) -> None:
    values = column(rows, (len(rows), 1)) | column(columns, (1, len(columns)))
    for term in MEMORY_TERMS:
        table = np.broadcast_to(term.call(job.facts, values), (len(rows), len(columns)))
        assert (table >= 0).all() and np.isfinite(table).all(), term.name
        for i, row in enumerate(rows):
            for j, choice in enumerate(columns):
                alone = float(term.call(job.facts, row | choice))
                assert table[i, j] == pytest.approx(alone, rel=1e-9, abs=1e-6), term.name


@given(jobs, shapes, features, st.sampled_from([m for m in RECOMPUTE_MODULES if m != "core_attn"]))
@settings(max_examples=100, deadline=None)
def test_more_recompute_never_saves_more(
    job: Job, shape: dict[str, Any], choice: dict[str, Any], module: str
) -> None:
    values = shape | choice | {f"offload_{m}": False for m in OFFLOAD_MODULES}
    less = values | {f"recompute_{module}": False}
    more = values | {f"recompute_{module}": True}
    for half in ("attention", "dense", "moe"):
        saved = [t for t in MEMORY_TERMS if t.name.startswith(f"saved.{half}.")]
        before, after = (sum(float(t.call(job.facts, v)) for t in saved) for v in (less, more))
        # Under `moe` the norm's output stays as the checkpoint's input, also where `layernorm` would drop it.
        slack = tensors.unit_input.size({**job.facts, **shape}) if (half, module) == ("moe", "moe") else 0
        assert after <= before * (1 + 1e-12) + float(slack)


@given(jobs, shapes, features)
@settings(max_examples=100, deadline=None)
def test_a_tensor_is_kept_brought_back_or_on_the_host(
    job: Job, shape: dict[str, Any], choice: dict[str, Any]
) -> None:
    values = {**job.facts, **shape, **choice}
    for tensor in LAYER_TENSORS:
        size = float(tensor.size(values))
        kept, remade, away = (float(x) for x in tensor.fate(values))
        recomputed = any(
            values[f"recompute_{u.module}"] for u in tensor.recomputed_by if u.applies(job.model)
        )
        if not recomputed:
            on = [a for a in tensor.offloaded_by if a.applies(job.model) and values[f"offload_{a.module}"]]
            whole = float(ask(tensor.fn, values))
            on = on if whole >= 2**20 * tensor.element else []
            moved = float(tensor.sent(values)[0])
            assert moved in (size, whole), tensor.name
            gone = any(a.frees for a in on)
            assert kept == pytest.approx(0 if gone else size), tensor.name
            assert remade == pytest.approx(moved if gone else 0), tensor.name
            assert away == pytest.approx(moved * len(on)), tensor.name
        else:
            assert away == 0, tensor.name
            # An up projection under context parallelism is made again beside the kept exchange buffer.
            assert kept + remade >= size * (1 - 1e-9) or tensor.name == "saved.moe.norm_output", tensor.name


@given(jobs, shapes, features)
@settings(max_examples=50, deadline=None)
def test_totals_of_a_half_are_the_sums_of_its_tensors(
    job: Job, shape: dict[str, Any], choice: dict[str, Any]
) -> None:
    values = {**job.facts, **shape, **choice, **{f"recompute_{m}": False for m in RECOMPUTE_MODULES}}
    for half, whole, sent in (
        ("attention", tensors.whole_attention_bytes, tensors.offloaded_bytes_attention),
        ("dense", tensors.whole_dense_bytes, tensors.offloaded_bytes_dense),
        ("moe", tensors.whole_moe_bytes, tensors.offloaded_bytes_moe),
    ):
        declared = tensors.TENSORS[half]  # type: ignore[index]
        assert float(ask(whole, values)) == pytest.approx(sum(float(t.size(values)) for t in declared))
        away = sum(float(t.fate(values)[2]) for t in declared)
        assert float(ask(sent, values)) == pytest.approx(away)


@given(st.integers(0, 2**40), st.booleans())
def test_pinned_memory_comes_in_powers_of_two(size: int, varies: bool) -> None:
    found, block = float(sizes.pinned(size, varies)), 1
    while block < size or (varies and block == size):
        block *= 2
    assert found == (block if size else 0)


def test_terms_are_named_and_scoped() -> None:
    names = [t.name for t in MEMORY_TERMS]
    assert len(names) == len(set(names))
    for term in MEMORY_TERMS:
        assert "." in term.name and term.text and str(term.source), term.name
        assert term.row in (*RESERVED, "host_bytes", "context_bytes")
        assert term.per in MOMENT_COUNTS, term.name
        assert set(term.scope) <= {*DECISIONS, *DERIVED}, term.name
        assert len(set(term.scope) & set(FEATURES)) <= 5, term.name
        assert "split" not in term.scope and set(term.scope) <= {*SHAPE, *FEATURES, *DERIVED}


def test_core_attention_recompute_costs_memory_under_gqa(held: Any) -> None:
    job = Job.model_validate(
        {"model": load_model("llama3-8b"), "machine": load_machine("h200"), "gpus": 8, "seq_len": 8192}
    )
    plain = held(job, Plan(), 0).peak
    core = held(job, Plan(recompute_granularity="selective", recompute_modules=("core_attn",)), 0).peak
    # Measured: +79 MiB for each of 32 layers.
    assert (core - plain) / 2**20 / 32 == pytest.approx(79, abs=1)


@pytest.mark.parametrize(
    ("changes", "allocated", "reserved"),
    [
        ({"cuda_graph_impl": "full_iteration"}, 21.010, 33.861),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ("attn",)}, 25.111, 36.732),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn",)}, 31.990, 34.916),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("mlp",)}, 27.494, 34.623),
        ({"cuda_graph_impl": "transformer_engine"}, 26.177, 35.600),
    ],
)
def test_graphs_reserve_what_they_do_not_allocate(
    changes: dict[str, Any], allocated: float, reserved: float
) -> None:
    """Measured with 8 layers of Llama-3 8B; the last one with recompute of the FFN, which saves nothing in a graph."""
    model = load_model("llama3-8b").model_copy(update={"num_layers": 8})
    job = Job.model_validate(
        {"model": model, "machine": load_machine("h200"), "gpus": 8, "seq_len": 8192, "gbs": 16}
    )
    found = evaluate(job, Plan(**changes)).worst_stage
    assert found.peak_allocated_bytes / 2**30 == pytest.approx(allocated, rel=0.005)
    assert found.peak_reserved_bytes / 2**30 == pytest.approx(reserved, rel=0.03)
    assert sum(t.bytes or 0 for t in found.terms) == pytest.approx(
        found.peak_allocated_bytes + found.pool_bytes
    )


def test_recompute_saves_nothing_inside_a_graph() -> None:
    model = load_model("llama3-8b").model_copy(update={"num_layers": 8})
    job = Job.model_validate(
        {"model": model, "machine": load_machine("h200"), "gpus": 8, "seq_len": 8192, "gbs": 16}
    )
    graph = Plan(cuda_graph_impl="transformer_engine", cuda_graph_scope=("mlp",))
    replayed = {"recompute_granularity": "selective", "recompute_modules": ("mlp",)}
    plain, again = evaluate(job, graph), evaluate(job, graph.model_copy(update=replayed))
    assert plain.worst_stage.peak_reserved_bytes == again.worst_stage.peak_reserved_bytes


def test_bf16_gradients_are_copied_at_the_optimizer_step(held: Any) -> None:
    job = Job.model_validate(
        {
            "model": load_model("llama3-8b"),
            "machine": load_machine("h200"),
            "gpus": 1,
            "seq_len": 128,
            "gbs": 1,
            "settings": {"grad_dtype": "bf16"},
        }
    )
    found = held(job, Plan(), 0)
    copies = sum(size for name, size in found.parts.items() if name.startswith("gradient_copies."))
    assert found.where == "optimizer step"
    assert copies == 4 * 8030261248
    assert found.between == found.peak


def test_quantised_parameters_are_cast_at_the_optimizer_step(held: Any) -> None:
    job = Job.model_validate(
        {
            "model": load_model("llama3-8b"),
            "machine": load_machine("h200"),
            "gpus": 1,
            "seq_len": 128,
            "gbs": 1,
            "precision": "fp8_cs",
            "settings": {"fp8_param": True},
        }
    )
    found = held(job, Plan(), 0)
    assert found.where == "optimizer step"
    linear = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert found.peak - found.between == pytest.approx(2 * linear)


@pytest.mark.parametrize(
    ("settings", "moments", "extra"),
    [({"moment_dtype": "fp8"}, 2 * 2, 8), ({"moment_dtype": "bf16"}, 2 * 2, 0)],
)
def test_scaled_state_is_updated_in_fp32(
    held: Any, settings: dict[str, str], moments: int, extra: int
) -> None:
    job = Job.model_validate(
        {
            "model": load_model("llama3-8b"),
            "machine": load_machine("h200"),
            "gpus": 1,
            "seq_len": 128,
            "gbs": 1,
            "settings": settings,
        }
    )
    found = held(job, Plan(precision_aware_optimizer=True), 0)
    kept = sum(size for name, size in found.parts.items() if name.startswith("moments."))
    copies = sum(size for name, size in found.parts.items() if name.startswith("optimizer_step.unscaled"))
    assert found.where == "optimizer step" or not extra
    assert (kept, copies) == (moments * 8030261248, extra * 8030261248)


def test_optimizer_offload_moves_state_to_the_host(held: Any) -> None:
    job = Job.model_validate(
        {"model": load_model("llama3-8b"), "machine": load_machine("h200"), "gpus": 8, "seq_len": 8192}
    )
    half = Plan(optimizer_offload_fraction=0.5, precision_aware_optimizer=True)
    shard = 8030261248 / 8
    # Moments and the parameter plain, the gradient pinned in blocks a third larger; a block for the embedding.
    on_host = (8 + 4 + 4 * 4 / 3) * 0.5 * shard + 2**30
    assert held(job, half, 0, "host_bytes").peak == pytest.approx(on_host)
    assert held(job, Plan(), 0).between - held(job, half, 0).between == pytest.approx(12 * 0.5 * shard)


@pytest.mark.parametrize(
    ("target", "precision", "settings", "share", "each"),
    [
        # Bytes of a master and, with bf16 gradients, of the copy of a gradient.
        ("megatron-lm", "bf16", {}, 0.0, 2),
        ("megatron-lm", "fp8_delayed", {}, 0.0, 2),
        ("megatron-lm", "fp8_cs", {}, 0.0, 4),
        ("bridge", "bf16", {}, 0.0, 4),
        ("bridge-0.6", "bf16", {}, 0.0, 4),
        ("bridge", "fp8_delayed", {}, 0.0, 2),
        ("bridge", "fp8_block", {}, 0.0, 4),
        ("bridge", "bf16", {"main_param_dtype": "fp16"}, 0.0, 2),
        ("bridge", "bf16", {}, 0.5, 2),
        ("megatron-lm", "bf16", {"grad_dtype": "bf16"}, 0.0, 2),
        ("bridge", "bf16", {"grad_dtype": "bf16"}, 0.0, 4 + 4),
        ("bridge", "bf16", {"grad_dtype": "bf16"}, 0.5, 2),
    ],
)
def test_who_keeps_the_masters_of_the_precision_aware_optimizer(
    target: str, precision: str, settings: dict[str, str], share: float, each: float
) -> None:
    job = Job.model_validate(
        {
            "model": load_model("llama3-8b"),
            "machine": load_machine("h200"),
            "gpus": 8,
            "seq_len": 8192,
            "precision": precision,
            "target": target,
            "settings": settings,
        }
    )
    plan = Plan(precision_aware_optimizer=True, optimizer_offload_fraction=share)
    values = plan.values() | derive(job, plan.values())
    kept = [t for t in MEMORY_TERMS if t.name in ("masters.head", "gradient_copies.head")]
    assert (
        sum(float(t.call(job.facts, values)) for t in kept) == each * (128256 + 1) * 4096 / 8
    )  # the final norm is the head's


def test_reserved_is_a_little_more_than_allocated() -> None:
    def permille(model: str, expandable: bool) -> int:
        settings = {"expandable_segments": expandable}
        job = {"model": load_model(model), "machine": load_machine("h200"), "gpus": 8, "settings": settings}
        return reserved_permille(Job.model_validate(job | {"seq_len": 4096, "gbs": 8}))

    assert 1000 < permille("llama3-8b", True) < permille("qwen3-30b-a3b", True)
    assert (
        permille("llama3-8b", True) < permille("llama3-8b", False) < permille("qwen3-30b-a3b", False) < 1100
    )
