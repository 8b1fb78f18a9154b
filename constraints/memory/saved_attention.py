"""What the attention half of a layer keeps for its backward pass."""

from __future__ import annotations

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.declare import Away, Undo, nothing, saved
from mbsolve.constraints.memory.sizes import FP32, Value, operand_factor
from mbsolve.constraints.rule import Source
from mbsolve.models.card import Model

_LM = "NVIDIA/Megatron-LM"
_TE = "NVIDIA/TransformerEngine"
ATTENTION = Source(_LM, "megatron/core/transformer/attention.py; H200 one-rank training step, 2026-11-30")
LATENT = Source(
    _LM, "megatron/core/transformer/multi_latent_attention.py; H200 one-rank training step, 2026-11-30"
)
BACKENDS = Source(
    _TE,
    "transformer_engine/pytorch/attention/dot_product_attention/backends.py; "
    "H200 one-rank training step, 2026-11-30",
)
PROJ = Source(
    _LM,
    "megatron/core/transformer/attention.py: set_save_original_input; H200 one-rank training step, 2026-11-30",
)
GATE = Source(_LM, "megatron/core/transformer/attention.py, derived from the module, not measured")
NORM_LINEAR = Source(
    _TE, "transformer_engine/pytorch/module/layernorm_linear.py; H200 one-rank training step, 2026-11-30"
)


def _hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


def _operand(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return _hidden(job, model, mbs, cp, tp, sequence_parallel) * operand_factor(job)


def _mixed_qkv(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Query, key and value in one tensor: the value is a view, so a checkpoint keeps all of it."""
    return (
        sizes.query(job, model, mbs, cp, tp)
        + sizes.key(job, model, mbs, cp, tp)
        + sizes.value(job, model, mbs, cp, tp)
    )


def _query_left(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """What the MLA up projection's recompute leaves of the query: all under a context-parallel all-to-all."""
    return sizes.query(job, model, mbs, cp, tp) * (cp > 1) * (1.0 - sizes.ring(job, cp))


def _key_left(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """The same of the key: under context parallelism the saved one is an exchange buffer."""
    return sizes.key(job, model, mbs, cp, tp) * (cp > 1)


def _value_left(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    return sizes.value(job, model, mbs, cp, tp) * (cp > 1)


# The norm of GQA is fused into the projection, which saves its input: upstream then ignores attn_norm.
@saved(
    "layer_input",
    "attention",
    offloaded_by=(Away("attn_norm", only="mla"), Away("qkv_linear", only="gqa")),
    pooled_by=(),
    source=NORM_LINEAR,
)
def layer_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Layer input: input of the norm and the residual, one tensor."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


def _norm_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Normalised layer input; in FP8 the two MLA down projections each keep their own copy."""
    copies = 2 if model.mla and job.quantised else 1
    return copies * _operand(job, model, mbs, cp, tp, sequence_parallel)


def _norm_left(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """The scales of the FP8 copies outlive the output that `layernorm` drops."""
    whole = _norm_output(job, model, mbs, cp, tp, sequence_parallel)
    return np.maximum(whole - _hidden(job, model, mbs, cp, tp, sequence_parallel), 0.0)


norm_output = saved(
    "norm_output",
    "attention",
    recomputed_by=(Undo("layernorm", only="mla", kept=_norm_left, remade=_hidden),),
    offloaded_by=(Away("qkv_linear"),),
    source=NORM_LINEAR,
)(_norm_output)


@saved("latents", "attention", offloaded_by=(Away("qkv_linear"),), source=LATENT)
def latents(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Query and key-value latents before their norms (MLA)."""
    width = (model.q_lora_rank or 0) + (model.kv_lora_rank or 0) if model.mla else 0
    return sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * width * sizes.BF16


@saved(
    "latents_normalised",
    "attention",
    recomputed_by=(Undo("mla_up_proj"),),
    offloaded_by=(Away("qkv_linear"),),
    quantised=True,
    source=LATENT,
)
def latents_normalised(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Normalised latents, inputs of the up projections (MLA)."""
    width = (model.q_lora_rank or 0) + (model.kv_lora_rank or 0) if model.mla else 0
    return sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * width * sizes.BF16


@saved("query_before_norm", "attention", offloaded_by=(Away("qkv_linear"),), source=ATTENTION)
def query_before_norm(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Query before its own norm."""
    return sizes.query(job, model, mbs, cp, tp) * float(model.qk_layernorm and not model.mla)


@saved("key_before_norm", "attention", offloaded_by=(Away("qkv_linear"),), source=ATTENTION)
def key_before_norm(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Key before its own norm."""
    return sizes.key(job, model, mbs, cp, tp) * float(model.qk_layernorm and not model.mla)


@saved("rope_angles", "attention", recomputed_by=(Undo("mla_up_proj", only="mla"),), source=ATTENTION)
def rope_angles(job: Job, model: Model, cp: Value) -> Value:
    """Cosines and sines of unfused rotary embedding, for the query and again for the key."""
    width = (model.qk_rope_head_dim or 0) if model.mla else model.head_dim
    return 4 * job.seq_len / cp * width * sizes.BF16 * float(not job.settings.rope_fusion)


@saved(
    "query",
    "attention",
    recomputed_by=(Undo("mla_up_proj", only="mla", kept=_query_left),),
    offloaded_by=(Away("core_attn"),),
    source=BACKENDS,
)
def query(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Query, as the core attention saves it."""
    return sizes.query(job, model, mbs, cp, tp)


@saved(
    "key",
    "attention",
    recomputed_by=(Undo("mla_up_proj", only="mla", kept=_key_left),),
    offloaded_by=(Away("core_attn"),),
    source=BACKENDS,
)
def key(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Key, as the core attention saves it."""
    return sizes.key(job, model, mbs, cp, tp)


@saved(
    "value",
    "attention",
    recomputed_by=(
        Undo("core_attn", only="gqa", kept=_mixed_qkv, remade=nothing),
        Undo("mla_up_proj", only="mla", kept=_value_left),
    ),
    offloaded_by=(Away("core_attn"),),
    source=BACKENDS,
)
def value(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Value; recomputing `core_attn` keeps the whole mixed QKV instead (it costs memory)."""
    return sizes.value(job, model, mbs, cp, tp)


@saved(
    "output",
    "attention",
    offloaded_by=(Away("core_attn", frees=False), Away("attn_proj")),
    source=ATTENTION,
)
def output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Attention output, shared by attention and projection; two copies under an all-to-all over CP."""
    twice = (cp > 1) * ("a2a" in job.settings.cp_comm_type)
    return sizes.attention_output(job, model, mbs, cp, tp) * (1.0 + twice)


@saved("output_quantised", "attention", quantised=True, source=PROJ)
def output_quantised(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Copy of the output that the projection keeps under delayed scaling; other recipes save the output itself."""
    return sizes.attention_output(job, model, mbs, cp, tp) * float(job.precision == "fp8_delayed")


@saved("output_gate", "attention", source=GATE)
def output_gate(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output gate, and the gated output that the projection then takes."""
    return 2 * sizes.attention_output(job, model, mbs, cp, tp) * float(model.attention_output_gate)


@saved(
    "softmax_statistics",
    "attention",
    recomputed_by=(Undo("core_attn"),),
    offloaded_by=(Away("core_attn"),),
    element=FP32,
    source=BACKENDS,
)
def softmax_statistics(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Softmax statistics, fp32."""
    return sizes.tokens(job, mbs, cp) * model.num_attention_heads / tp * FP32


@saved("norm_statistics", "attention", source=NORM_LINEAR)
def norm_statistics(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Statistics of the RMS norms of the layer, fp32."""
    heads = model.num_attention_heads + model.num_query_groups
    per_head = sizes.tokens(job, mbs, cp) * heads / tp * FP32 * float(model.qk_layernorm and not model.mla)
    return sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * 2 * FP32 + per_head


ATTENTION_TENSORS = (
    layer_input,
    norm_output,
    latents,
    latents_normalised,
    query_before_norm,
    key_before_norm,
    rope_angles,
    query,
    key,
    value,
    output,
    output_quantised,
    output_gate,
    softmax_statistics,
    norm_statistics,
)
