"""What a rank holds for each parameter: the weight, its gradient and its optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.compose import composed
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.shards import BLOCKS, Block
from mbsolve.constraints.memory.sizes import BF16, FP32, STATE_BYTES, Value, flag
from mbsolve.constraints.rule import Row, Source, Term, term
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

_LM = "NVIDIA/Megatron-LM"
_SEEN = "; H200 one-rank training step, 2026-11-30"
BUFFER = Source(_LM, "megatron/core/distributed/param_and_grad_buffer.py" + _SEEN)
OPTIMIZER = Source(_LM, "megatron/core/optimizer/distrib_optimizer.py" + _SEEN)
MASTER = Source(
    _LM,
    "megatron/core/optimizer/optimizer_config.py: use_precision_aware_optimizer_no_fp8_or_ds_fp8; "
    "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/training/mixed_precision.py: fp8_recipe" + _SEEN,
)
GRAD_COPY = Source(
    _LM, "megatron/core/optimizer/distrib_optimizer.py: _copy_model_grads_to_main_grads, zero_grad" + _SEEN
)
UNSCALE = Source(
    "NVIDIA/TransformerEngine",
    "transformer_engine/pytorch/optimizers/fused_adam.py: get_unscaled_state" + _SEEN,
)
CAST = Source(
    "NVIDIA/TransformerEngine",
    "transformer_engine/pytorch/tensor/utils.py: quantize_master_weights, which casts every master to bf16 first"
    + _SEEN,
)
OFFLOADED = Source(
    _LM, "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py: param_copy_back_gpu_hook" + _SEEN
)

Moment = Literal["", "after_", "step_"]
"""When a block counts: always, from the optimizer step to the next forward, or at the step alone."""

QUANTISABLE = tuple(b for b in BLOCKS if b.quantisable)

# Megatron-Core leaves fp32 masters to the precision-aware optimizer, which keeps 2-byte remainders of them, only
# where the FP8 recipe handed to the optimizer is none or "delayed". Megatron-LM's default is "delayed"; Bridge's
# precision settings say "tensorwise" also where nothing is quantised.
_REMAINDERS = {
    "megatron-lm": ("bf16", "fp8_delayed"),
    "bridge": ("fp8_delayed",),
    "bridge-0.6": ("fp8_delayed",),
}


def _per_block(
    group: str,
    row: Row,
    source: Source,
    text: str,
    body: Callable[[Block, Mapping[str, Any]], Value],
    *more: str,
    shards: bool = False,
    when: Moment = "",
    blocks: tuple[Block, ...] = BLOCKS,
) -> tuple[Term, ...]:
    """One term for each block of parameters."""

    def one(block: Block) -> Term:
        needs = ("job", *(block.shard_needs if shards else block.needs), *more)
        fn = composed(f"{text} of {block.name}", needs, lambda v: body(block, v))
        return Term(fn=fn, source=source, name=f"{group}.{block.name}", row=row, per=when + block.per)

    return tuple(one(b) for b in blocks)


def per_shard(
    group: str,
    row: Row,
    source: Source,
    text: str,
    each: Callable[[Mapping[str, Any]], Value],
    *more: str,
    when: Moment = "",
) -> tuple[Term, ...]:
    """One term for each block: optimizer shard elements times bytes for each."""
    return _per_block(
        group, row, source, text, lambda b, v: b.shard(v) * each(v), *more, shards=True, when=when
    )


def _weights(block: Block, values: Mapping[str, Any]) -> Value:
    job: Job = values["job"]
    found = block.count(values)
    whole = BF16 * (np.asarray(found.dense, float) + found.expert)
    if not (job.quantised and job.settings.fp8_param):
        return whole
    return whole - (BF16 - constant("quantised_param_bytes")[job.precision]) * found.cached


def _weight_copies(block: Block, values: Mapping[str, Any]) -> Value:
    job: Job = values["job"]
    machine: Machine = values["machine"]
    cached = np.asarray(block.count(values).cached, float)
    if not job.settings.fp8_param:
        return cached * constant("weight_cache_bytes")[job.precision]
    if machine.compute_capability >= (10, 0) and job.precision in ("fp8_cs", "fp8_delayed"):
        return cached * 0.0
    return cached * constant("quantised_param_transpose_bytes")[job.precision]


def _gradients(block: Block, values: Mapping[str, Any]) -> Value:
    found = block.count(values)
    each = FP32 if values["job"].settings.grad_dtype == "fp32" else BF16
    return each * (np.asarray(found.dense, float) + found.expert)


def handed_over(values: Mapping[str, Any]) -> Value:
    """Whether the precision-aware optimizer keeps the masters itself, and reads gradients of any format."""
    job: Job = values["job"]
    aware, share = flag(values["precision_aware_optimizer"]), np.asarray(values["optimizer_offload_fraction"])
    always = job.settings.main_param_dtype != "fp32" or job.precision in _REMAINDERS[job.target]
    return (aware > 0) & ((share > 0) | always)


def _master_each(values: Mapping[str, Any]) -> Value:
    """Bytes of master weight for each shard element.

    A precision-aware optimizer that keeps the masters holds 2 bytes (fp16 masters, or the remainder of the bf16
    parameter) or moves the offloaded fraction away; otherwise they stay whole whatever is offloaded.
    """
    job: Job = values["job"]
    share = np.asarray(values["optimizer_offload_fraction"], float)
    plain = FP32 if job.settings.main_param_dtype == "fp32" else BF16
    kept = np.where(share == 0, BF16, plain * (1.0 - share))
    return np.where(handed_over(values), kept, plain)


def _moment_each(values: Mapping[str, Any]) -> Value:
    both = 2 * STATE_BYTES[values["job"].settings.moment_dtype]
    return both * (1.0 - np.asarray(values["optimizer_offload_fraction"], float))


def _gradient_copy_each(values: Mapping[str, Any]) -> Value:
    narrow = values["job"].settings.grad_dtype == "bf16"
    return FP32 * float(narrow) * np.where(handed_over(values), 0.0, 1.0)


def _unscaled_each(values: Mapping[str, Any]) -> Value:
    """Bytes of the fp32 copies that scaled state is updated in, all at once; the kernel reads bf16 moments itself."""
    settings, share = values["job"].settings, np.asarray(values["optimizer_offload_fraction"], float)
    masters = FP32 * float(settings.main_param_dtype == "fp16") * handed_over(values)
    moments = 2 * FP32 * float(settings.moment_dtype in ("fp16", "fp8"))
    return (masters + moments) * (1.0 - share)


def _cast(block: Block, values: Mapping[str, Any]) -> Value:
    """bf16 copies of the master shards of quantised parameters; an optimizer that keeps the masters makes none.

    Elements of a layer's shard count as quantised in the proportion of its parameters on the rank.
    """
    job: Job = values["job"]
    if not (job.quantised and job.settings.fp8_param):
        return block.shard(values) * 0.0
    found = block.count(values)
    whole = np.asarray(found.dense, float) + found.expert
    share = np.divide(found.cached, whole, out=np.zeros_like(whole), where=whole > 0)
    return BF16 * block.shard(values) * share


_PAO, _SHARE = "precision_aware_optimizer", "optimizer_offload_fraction"
WEIGHTS = _per_block("weights", "device_bytes", BUFFER, "Parameters", _weights)
COPIES = _per_block(
    "weight_copies",
    "device_bytes",
    source_of("weight_cache_bytes"),
    "Quantised copies of the linear weights",
    _weight_copies,
    "machine",
    blocks=QUANTISABLE,
)
GRADIENTS = _per_block("gradients", "device_bytes", BUFFER, "Gradients", _gradients)
MASTERS = per_shard("masters", "device_bytes", MASTER, "Master weights", _master_each, _PAO, _SHARE)
MOMENTS = per_shard("moments", "device_bytes", OPTIMIZER, "Adam moments", _moment_each, _SHARE)
GRADIENT_COPIES = per_shard(
    "gradient_copies",
    "device_bytes",
    GRAD_COPY,
    "fp32 copies of bf16 gradients, from the optimizer step to the next step's zeroing,",
    _gradient_copy_each,
    _PAO,
    _SHARE,
    when="after_",
)
UNSCALED = per_shard(
    "optimizer_step.unscaled",
    "device_bytes",
    UNSCALE,
    "fp32 copies of fp16 and FP8 optimizer state while it is updated",
    _unscaled_each,
    _PAO,
    _SHARE,
    when="step_",
)
CASTS = _per_block(
    "optimizer_step.cast",
    "device_bytes",
    CAST,
    "bf16 copies of the masters of quantised parameters while they are quantised again",
    _cast,
    shards=True,
    when="step_",
    blocks=QUANTISABLE,
)


@term("optimizer_step.copy_back", row="device_bytes", per="at_optimizer", source=OFFLOADED)
def copy_back(
    job: Job,
    model: Model,
    tp: Value,
    cp: Value,
    dp: Value,
    precision_aware_optimizer: Value,
    optimizer_offload_fraction: Value,
) -> Value:
    """fp32 copy, on its way back, of the largest parameter shard that the host updates: one vocabulary matrix.

    Masters that stay on the device are fp32 themselves and take the values without a copy.
    """
    values = {
        "job": job,
        "precision_aware_optimizer": precision_aware_optimizer,
        "optimizer_offload_fraction": optimizer_offload_fraction,
    }
    shards = np.asarray(dp, float) * cp if job.settings.distributed_optimizer else 1.0
    largest = model.vocab_size * model.hidden_size / np.asarray(tp, float) / shards
    return FP32 * largest * (np.asarray(optimizer_offload_fraction) > 0) * handed_over(values)


RESIDENT_TERMS: tuple[Term, ...] = (
    *WEIGHTS,
    *COPIES,
    *GRADIENTS,
    *MASTERS,
    *MOMENTS,
    *GRADIENT_COPIES,
    *UNSCALED,
    *CASTS,
    copy_back,
)
