"""What a pass of a recurrent mixer, or of an attention layer without an FFN, holds for a moment.

Derived from the modules and the kernels they call; nothing of it is measured.
"""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.saved_recurrent import CHUNK, GDN, MAMBA, copied_width
from mbsolve.constraints.memory.sizes import BF16, FP32, Value
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.models.card import Model
from mbsolve.models.recurrent import recurrent

ATTENTION = Source(
    "NVIDIA/Megatron-LM", "megatron/core/transformer/attention.py, derived from the module, not measured"
)

MAMBA_CHUNK: Final = 128
"""Tokens of a chunk of the Mamba-2 scan."""


def _kept(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


def _mamba_states(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Convolved input, steps and decays of the heads (fp32), products of a chunk's groups, and chunk states."""
    widths, every = recurrent(model, "mamba"), sizes.tokens(job, mbs, cp) / tp
    small = 2 * widths.heads * FP32 + (model.mamba_num_groups or 0) * MAMBA_CHUNK * FP32
    states = widths.inner * widths.state / MAMBA_CHUNK * FP32
    return every * (widths.convolved * BF16 + small + states)


def _gdn_states(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Corrected keys and values of the delta rule, and chunk states."""
    widths, every = recurrent(model, "gdn"), sizes.tokens(job, mbs, cp) / tp
    states = widths.inner * widths.state / CHUNK * BF16
    return every * ((copied_width(model) + 2 * widths.inner) * BF16 + states)


@term("transient.mamba_forward", row="device_bytes", per="at_forward_mamba", source=MAMBA)
def mamba_forward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Forward of a Mamba-2 layer: what the scan works on, and the output beside the residual."""
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    return _mamba_states(job, model, mbs, cp, tp) + 2 * kept


@term("transient.mamba_forward_nograd", row="device_bytes", per="at_nograd_mamba", source=MAMBA)
def mamba_nograd(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Forward of a checkpointed Mamba-2 layer, which saves nothing."""
    widths, every = recurrent(model, "mamba"), sizes.tokens(job, mbs, cp) / tp
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    wide = every * (widths.projected + 2 * widths.inner) * BF16
    return _mamba_states(job, model, mbs, cp, tp) + wide + 3 * kept


@term("transient.mamba_backward", row="device_bytes", per="at_backward_mamba", source=MAMBA)
def mamba_backward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Backward of a Mamba-2 layer: the states again with their gradients, and gradients of projection and output."""
    widths, every = recurrent(model, "mamba"), sizes.tokens(job, mbs, cp) / tp
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    gradients = every * (widths.projected + 2 * widths.inner) * BF16
    return 2 * _mamba_states(job, model, mbs, cp, tp) + gradients + 3 * kept


@term("transient.gdn_forward", row="device_bytes", per="at_forward_gdn", source=GDN)
def gdn_forward(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Forward of a gated delta net: what the rule works on, and the output beside the residual."""
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    return _gdn_states(job, model, mbs, cp, tp) + 2 * kept


@term("transient.gdn_forward_nograd", row="device_bytes", per="at_nograd_gdn", source=GDN)
def gdn_nograd(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Forward of a checkpointed gated delta net, which saves nothing."""
    widths, every = recurrent(model, "gdn"), sizes.tokens(job, mbs, cp) / tp
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    wide = every * (widths.projected + widths.convolved + 2 * copied_width(model) + 2 * widths.inner) * BF16
    return _gdn_states(job, model, mbs, cp, tp) + wide + 3 * kept


@term("transient.gdn_backward", row="device_bytes", per="at_backward_gdn", source=GDN)
def gdn_backward(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Backward of a gated delta net: the states again with their gradients, and gradients of all that it projects."""
    widths, every = recurrent(model, "gdn"), sizes.tokens(job, mbs, cp) / tp
    kept = _kept(job, model, mbs, cp, tp, sequence_parallel)
    gradients = every * (widths.projected + 2 * copied_width(model) + 2 * widths.inner) * BF16
    return 2 * _gdn_states(job, model, mbs, cp, tp) + gradients + 3 * kept


@term("transient.attention_forward", row="device_bytes", per="at_forward_attention", source=ATTENTION)
def attention_forward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Forward of an attention layer without an FFN: the output beside the residual."""
    return 2 * _kept(job, model, mbs, cp, tp, sequence_parallel)


@term("transient.attention_forward_nograd", row="device_bytes", per="at_nograd_attention", source=ATTENTION)
def attention_nograd(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """The same of a checkpointed one: queries, keys, values and output as well."""
    parts = (sizes.query, sizes.key, sizes.value, sizes.attention_output)
    own = sum(part(job, model, mbs, cp, tp) for part in parts)
    return 2 * own + 3 * _kept(job, model, mbs, cp, tp, sequence_parallel)


RECURRENT_TRANSIENTS: tuple[Term, ...] = (
    mamba_forward,
    mamba_nograd,
    mamba_backward,
    gdn_forward,
    gdn_nograd,
    gdn_backward,
    attention_forward,
    attention_nograd,
)
