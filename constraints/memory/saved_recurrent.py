"""What a gated delta net and a Mamba-2 layer keep for their backward pass.

No measurement exists: the tensors follow from the modules of Megatron-Core and from what the kernels they call
save. Where a version of a kernel may or may not copy, the larger figure is taken.
"""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.declare import saved
from mbsolve.constraints.memory.sizes import BF16, FP32, Value
from mbsolve.constraints.rule import Source
from mbsolve.models.card import Model
from mbsolve.models.recurrent import recurrent

_LM = "NVIDIA/Megatron-LM"
_DERIVED = ", derived from the module, not measured"
GDN = Source(_LM, "megatron/core/ssm/gated_delta_net.py with the chunked kernels of fla" + _DERIVED)
MAMBA = Source(_LM, "megatron/core/ssm/mamba_mixer.py with the fused kernel of mamba_ssm" + _DERIVED)
NORM_LINEAR = Source(
    "NVIDIA/TransformerEngine", "transformer_engine/pytorch/module/layernorm_linear.py" + _DERIVED
)

CHUNK: Final = 64
"""Tokens of a chunk of the gated delta rule."""


def _hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


def key_heads_width(model: Model) -> int:
    """Channels of the queries of a gated delta net, and of its keys, before they are copied to the value heads."""
    return (model.linear_num_key_heads or 0) * (model.linear_key_head_dim or 0)


def copied_width(model: Model) -> int:
    """Channels of the queries, and of the keys, once every value head has its own."""
    return (model.linear_num_value_heads or 0) * (model.linear_key_head_dim or 0)


@saved("layer_input", "gdn", source=NORM_LINEAR)
def gdn_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Layer input of a gated delta net: input of the norm and the residual, one tensor."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("norm_output", "gdn", quantised=True, source=NORM_LINEAR)
def gdn_norm_output(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Normalised layer input, input of the projection."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("projected", "gdn", source=GDN)
def gdn_projected(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the input projection; the convolution saves a view, which keeps all of it."""
    return sizes.tokens(job, mbs, cp) * recurrent(model, "gdn").projected / tp * BF16


@saved("query_key_normalised", "gdn", source=GDN)
def gdn_query_key(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Queries and keys after their L2 norm."""
    return sizes.tokens(job, mbs, cp) * 2 * key_heads_width(model) / tp * BF16


@saved("query_key_copied", "gdn", source=GDN)
def gdn_copied(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Queries and keys copied to every value head, where there are more of those."""
    width = copied_width(model)
    return sizes.tokens(job, mbs, cp) * 2 * width / tp * BF16 * float(width > key_heads_width(model))


@saved("value_and_gate", "gdn", source=GDN)
def gdn_value_gate(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Values and output gate, copied contiguous."""
    return sizes.tokens(job, mbs, cp) * 2 * recurrent(model, "gdn").inner / tp * BF16


@saved("decay", "gdn", source=GDN)
def gdn_decay(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Cumulated decay (fp32), step size, and the triangular matrix of every chunk."""
    each = FP32 + BF16 + CHUNK * BF16
    return sizes.tokens(job, mbs, cp) * recurrent(model, "gdn").heads / tp * each


@saved("rule_output", "gdn", source=GDN)
def gdn_rule_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the delta rule, and the same after its norm."""
    return sizes.tokens(job, mbs, cp) * 2 * recurrent(model, "gdn").inner / tp * BF16


@saved("gated_output", "gdn", quantised=True, source=GDN)
def gdn_gated_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Gated output, input of the output projection."""
    return sizes.tokens(job, mbs, cp) * recurrent(model, "gdn").inner / tp * BF16


@saved("norm_statistics", "gdn", source=GDN)
def gdn_statistics(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Statistics of the norms of the layer, of its output heads, and of queries and keys, fp32."""
    heads = (model.linear_num_value_heads or 0) + 2 * (model.linear_num_key_heads or 0)
    own = sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * FP32
    return own + sizes.tokens(job, mbs, cp) * heads / tp * FP32


@saved("layer_input", "mamba", source=NORM_LINEAR)
def mamba_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Layer input of a Mamba-2 layer: input of the norm and the residual, one tensor."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("norm_output", "mamba", quantised=True, source=NORM_LINEAR)
def mamba_norm_output(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Normalised layer input, input of the projection."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("projected", "mamba", source=MAMBA)
def mamba_projected(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the input projection; the fused kernel saves it and computes the convolution again."""
    return sizes.tokens(job, mbs, cp) * recurrent(model, "mamba").projected / tp * BF16


@saved("scan_output", "mamba", source=MAMBA)
def mamba_scan_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the scan before its gate, and after it as the input of the gated norm."""
    return sizes.tokens(job, mbs, cp) * 2 * recurrent(model, "mamba").inner / tp * BF16


@saved("normalised_output", "mamba", quantised=True, source=MAMBA)
def mamba_normalised(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Normalised output, input of the output projection."""
    return sizes.tokens(job, mbs, cp) * recurrent(model, "mamba").inner / tp * BF16


@saved("norm_statistics", "mamba", source=MAMBA)
def mamba_statistics(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Statistics of the norms of the layer and of its output groups, fp32."""
    own = sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * FP32
    return own + sizes.tokens(job, mbs, cp) * (model.mamba_num_groups or 0) / tp * FP32


GDN_TENSORS = (
    gdn_input,
    gdn_norm_output,
    gdn_projected,
    gdn_query_key,
    gdn_copied,
    gdn_value_gate,
    gdn_decay,
    gdn_rule_output,
    gdn_gated_output,
    gdn_statistics,
)
MAMBA_TENSORS = (
    mamba_input,
    mamba_norm_output,
    mamba_projected,
    mamba_scan_output,
    mamba_normalised,
    mamba_statistics,
)
