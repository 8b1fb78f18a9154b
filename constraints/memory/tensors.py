"""All saved tensors, and what one half of a layer keeps or sends to the host in total."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.compose import Bytes, composed
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.declare import Half, SavedTensor, saved
from mbsolve.constraints.memory.saved_attention import ATTENTION_TENSORS
from mbsolve.constraints.memory.saved_dense import DENSE_TENSORS
from mbsolve.constraints.memory.saved_moe import MOE_TENSORS
from mbsolve.constraints.memory.saved_recurrent import GDN_TENSORS, MAMBA_TENSORS
from mbsolve.constraints.memory.sizes import Value, either
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.models.card import Model

CHECKPOINT = Source(
    "NVIDIA/Megatron-LM", "megatron/core/tensor_parallel/random.py; H200 one-rank training step, 2026-11-30"
)
LOSS = Source(
    "NVIDIA/TransformerEngine",
    "transformer_engine/pytorch/cross_entropy.py; H200 one-rank training step, 2026-11-30",
)


@saved("input", "unit", source=CHECKPOINT)
def unit_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Input of a checkpointed unit, or of the first offloaded layer."""
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("norms_and_projection", "mtp", source=source_of("mtp_extra_tensors"))
def mtp_extra(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """What an MTP block keeps besides its layer: its norms and the concatenated projection input."""
    return constant("mtp_extra_tensors") * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("final_norm", "head", source=source_of("head_norm_tensors"))
def final_norm(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Input and output of the final norm."""
    return constant("head_norm_tensors") * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("loss", "logits", source=LOSS)
def logits(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Copy of the logits that the loss keeps for its backward."""
    return sizes.logits(job, model, mbs, cp, tp)


TENSORS: dict[Half, tuple[SavedTensor, ...]] = {
    "attention": ATTENTION_TENSORS,
    "gdn": GDN_TENSORS,
    "mamba": MAMBA_TENSORS,
    "dense": DENSE_TENSORS,
    "moe": MOE_TENSORS,
    "unit": (unit_input,),
    "mtp": (mtp_extra,),
    "head": (final_norm,),
    "logits": (logits,),
}


def _sum(half: Half, text: str) -> Bytes:
    tensors = TENSORS[half]
    needs = [n for t in tensors for n in t.size_needs]

    def body(values: Mapping[str, Any]) -> Value:
        return sum((t.size(values) for t in tensors), 0.0)

    return composed(text, needs, body)


whole_attention_bytes = _sum("attention", "Bytes that an attention half saves, nothing recomputed.")
whole_gdn_bytes = _sum("gdn", "Bytes that a gated delta net saves, nothing recomputed.")
whole_dense_bytes = _sum("dense", "Bytes that a dense FFN half saves, nothing recomputed.")
whole_moe_bytes = _sum("moe", "Bytes that an MoE half saves, nothing recomputed.")


def _sent(half: Half, text: str, each: Callable[[SavedTensor, Mapping[str, Any]], Value]) -> Bytes:
    tensors = [t for t in TENSORS[half] if t.offloaded_by]
    sized = [n for t in tensors for n in t.size_needs] or ["job", "model"]
    modules = dict.fromkeys(f for t in tensors for f in t.away_features)

    def body(values: Mapping[str, Any]) -> Value:
        return sum((each(t, values) for t in tensors), 0.0)

    return composed(text, (*sized, *modules), body)


def _moved(tensor: SavedTensor, values: Mapping[str, Any]) -> Value:
    size, copies, _ = tensor.sent(values)
    return size * copies


def _freed(tensor: SavedTensor, values: Mapping[str, Any]) -> Value:
    size, _, freed = tensor.sent(values)
    return size * freed


# They leave recompute out, so that few features are named: rules refuse to recompute what is offloaded.
offloaded_bytes_attention = _sent("attention", "Bytes that an attention half sends to the host.", _moved)
offloaded_bytes_dense = _sent("dense", "Bytes that a dense FFN half sends to the host.", _moved)
offloaded_bytes_moe = _sent("moe", "Bytes that an MoE half sends to the host.", _moved)

unsent_attention_bytes = _sent("attention", "Bytes of an attention half that leave the device late.", _freed)
unsent_moe_bytes = _sent("moe", "Bytes of an MoE half that leave the device late.", _freed)


def pinned_whole(half: Half) -> Bytes:
    """A function: pinned bytes of everything that a half saves, each tensor of its own."""
    tensors = TENSORS[half]

    def body(values: Mapping[str, Any]) -> Value:
        return sum((sizes.pinned(t.size(values), t.varies) for t in tensors), 0.0)

    return composed(
        f"Pinned bytes of what an offloaded {half} half saves.",
        [n for t in tensors for n in t.size_needs],
        body,
    )


@term("saved.stale.moe", row="device_bytes", per="stale_moe", source=CHECKPOINT)
def stale_moe(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    recompute_moe: Value,
    ep_overlap: Value,
) -> Value:
    """Detached input of a recomputed or overlapped MoE layer and its gradient, held until its next forward."""
    kept = constant("stale_moe_tensors") * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    return kept * either(recompute_moe, ep_overlap)


@term("saved.stale.unit", row="device_bytes", per="stale_unit", source=CHECKPOINT)
def stale_unit(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """The same of a checkpointed unit with an MoE layer."""
    return constant("stale_moe_tensors") * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


SAVED_TERMS: tuple[Term, ...] = (
    *(t for tensors in TENSORS.values() for tensor in tensors for t in tensor.terms()),
    stale_moe,
    stale_unit,
)
