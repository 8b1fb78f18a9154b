"""Buffers that stay on the device from step to step: dummy gradients, workspaces, tables, routing maps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.compose import composed
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import BF16, FP32, Value, flag
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.hardware.card import Machine
from mbsolve.models.card import LayerKind, Model
from mbsolve.models.counts import layer_weight_shapes, mtp_weight_shape

_LM = "NVIDIA/Megatron-LM"
_SEEN = "; H200 one-rank training step, 2026-11-30"
DUMMY = Source(
    "NVIDIA/TransformerEngine", "transformer_engine/pytorch/module/base.py (get_dummy_wgrad)" + _SEEN
)
GATHER = Source(_LM, "megatron/core/tensor_parallel/layers.py" + _SEEN)
ROPE = Source(_LM, "megatron/core/models/common/embeddings/rotary_pos_embedding.py" + _SEEN)
DISPATCHER = Source(_LM, "megatron/core/transformer/moe/token_dispatcher.py" + _SEEN)

# ---- dummy weight gradients: one for each distinct weight shape of the process ------------------------------


def _layer_kind(model: Model, ffn: str) -> LayerKind | None:
    return next((k for k in model.layers() if k.ffn == ffn), None)


@lru_cache(maxsize=65536)
def _dummy(model: Model, part: str, tp: int, etp: int) -> float:
    """Bytes of the distinct weight shapes of one part.

    ``attention`` counts the shapes that dense and MoE layers share, so any mix of layers is exact. An output
    layer of the shape of another weight is counted twice, and in hybrids halves of the same shape are: more than
    there is.
    """
    if part in ("gdn", "mamba") and all(kind.mixer != part for kind in model.layers()):
        return 0.0
    if model.hybrid and part in ("dense", "moe") and _layer_kind(model, part) is None:
        return 0.0
    if model.hybrid and part in ("attention", "gdn", "mamba", "dense", "moe"):
        half = LayerKind("none", part) if part in ("dense", "moe") else LayerKind(part, "none")  # type: ignore[arg-type]
        return float(
            BF16 * sum(rows * columns for rows, columns in layer_weight_shapes(model, half, tp, etp))
        )
    kinds = [k for k in (_layer_kind(model, "dense"), _layer_kind(model, "moe")) if k is not None]
    shapes = [set(layer_weight_shapes(model, k, tp, etp)) for k in kinds]
    attention = (
        set(layer_weight_shapes(model, kinds[0], tp, etp)[: 5 if model.mla else 2]) if kinds else set()
    )
    if len(shapes) == 2:
        attention = shapes[0] & shapes[1]
    if part == "attention":
        chosen = attention
    elif part == "mtp":
        # An MTP projection comes with a layer of its own.
        chosen = {mtp_weight_shape(model, tp)} - set(layer_weight_shapes(model, model.mtp_layer(), tp, etp))
    elif part == "head":
        chosen = {(model.vocab_size // tp, model.hidden_size)}
    else:
        kind = _layer_kind(model, part)
        chosen = set(layer_weight_shapes(model, kind, tp, etp)) - attention if kind else set()
    return float(BF16 * sum(rows * columns for rows, columns in chosen))


def _dummies(part: str) -> Term:
    with_experts = part in ("moe", "mtp")

    def body(values: Mapping[str, Any]) -> Value:
        if not values["job"].settings.grad_accumulation_fusion:
            return 0.0
        etp = values["etp"] if with_experts else 1
        each = np.vectorize(
            lambda t, e: _dummy(values["model"], part, int(t), int(e)),
            otypes=[float],
        )
        return each(values["tp"], etp)

    needs = ("job", "model", "tp", "etp") if with_experts else ("job", "model", "tp")
    fn = composed(f"Dummy weight gradients of the {part} weights", needs, body)
    return Term(fn=fn, source=DUMMY, name=f"dummy_gradients.{part}", row="device_bytes", per=f"has_{part}")


DUMMIES = tuple(_dummies(part) for part in ("attention", "gdn", "mamba", "dense", "moe", "mtp", "head"))


# ---- buffers ------------------------------------------------------------------------------------------------


def _generation(machine: Machine) -> str:
    """How the libraries size their workspaces: by whether the compute capability is 9 or more."""
    return "since_9" if machine.compute_capability >= (9, 0) else "before_9"


@term("workspace.te_gemm", row="device_bytes", per="one", source=source_of("te_gemm_workspace"))
def te_gemm(machine: Machine) -> Value:
    """Transformer Engine GEMM workspace."""
    return float(constant("te_gemm_workspace")[_generation(machine)])


@term(
    "workspace.te_grouped_gemm",
    row="device_bytes",
    per="has_moe",
    source=source_of("te_grouped_gemm_workspaces"),
)
def te_grouped(machine: Machine) -> Value:
    """Transformer Engine grouped-GEMM workspaces."""
    return float(constant("te_grouped_gemm_workspaces")[_generation(machine)])


@term("workspace.torch_cublas", row="device_bytes", per="head", source=source_of("torch_cublas_workspaces"))
def torch_cublas(machine: Machine) -> Value:
    """Torch cuBLAS workspaces."""
    return float(constant("torch_cublas_workspaces")[_generation(machine)])


@term("buffer.head_gather", row="device_bytes", per="head", source=GATHER)
def head_gather(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Global buffer of the output layer's all-gather."""
    gathers = flag(sequence_parallel) * (np.asarray(tp) > 1)
    return sizes.gathered_hidden(job, model, mbs, cp) * gathers


@term("buffer.rope_table", row="device_bytes", per="one", source=ROPE)
def rope_table(job: Job, model: Model, cp: Value, vpp: Value) -> Value:
    """Rotary table, fp32: one for each model chunk (GQA)."""
    return job.seq_len / cp * model.head_dim * FP32 * vpp * float(not model.mla)


@term("buffer.rope_tables", row="device_bytes", per="attention", source=ROPE)
def rope_tables(job: Job, model: Model, cp: Value) -> Value:
    """Rotary table of an attention layer, fp32 (MLA owns one each)."""
    return job.seq_len / cp * (model.qk_rope_head_dim or 0) * FP32 * float(model.mla)


@term("dispatcher.routing", row="device_bytes", per="moe", source=DISPATCHER)
def dispatcher_routing(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Probabilities (fp32) and routing map (bool) that the dispatcher keeps as attributes."""
    return sizes.routing_attributes(job, model, mbs, cp, tp, sequence_parallel)


@term("dispatcher.permutation_map", row="device_bytes", per="moe", source=DISPATCHER)
def dispatcher_map(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    recompute_moe: Value,
) -> Value:
    """Permutation map that outlives a recomputed MoE."""
    return sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel) * flag(recompute_moe)


@term("dispatcher.permutation_map_replayed", row="device_bytes", per="replayed_moe", source=DISPATCHER)
def dispatcher_map_replayed(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Permutation map that outlives a layer under full recompute."""
    return sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel)


@term("dispatcher.permutation_map_rest", row="device_bytes", per="rest_moe", source=DISPATCHER)
def dispatcher_map_rest(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    recompute_moe: Value,
) -> Value:
    """Permutation map of the newest micro-batch between steps (in a step the saved one is the same)."""
    return sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel) * (1 - flag(recompute_moe))


BUFFER_TERMS: tuple[Term, ...] = (
    *DUMMIES,
    te_gemm,
    te_grouped,
    torch_cublas,
    head_gather,
    rope_table,
    rope_tables,
    dispatcher_routing,
    dispatcher_map,
    dispatcher_map_replayed,
    dispatcher_map_rest,
)
