"""Buffers of captured graphs."""

from __future__ import annotations

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import Value, either
from mbsolve.constraints.rule import Term, term
from mbsolve.models.card import Model

_STATIC = source_of("graph_static_tensors")


def _static(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value, impl: Value
) -> Value:
    """Static input and output of one captured piece, where pieces are captured."""
    name = np.asarray(impl)
    scoped = (name == "local") | (name == "transformer_engine")
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    return constant("graph_static_tensors") * kept * scoped


@term("graph_static.attention", row="device_bytes", per="live_attention", source=_STATIC)
def attention_static(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_attn: Value,
) -> Value:
    """Static input and output of a captured attention."""
    return _static(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl) * either(graph_attn)


@term("graph_static.gdn", row="device_bytes", per="live_gdn", source=_STATIC)
def gdn_static(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_attn: Value,
) -> Value:
    """Static input and output of a captured gated delta net, which scope attn captures."""
    if model.linear_attention_period is None:
        return 0.0
    return _static(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl) * either(graph_attn)


@term("graph_static.mamba", row="device_bytes", per="live_mamba", source=_STATIC)
def mamba_static(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_mamba: Value,
) -> Value:
    """Static input and output of a captured Mamba-2 layer."""
    if model.mamba_num_heads is None:
        return 0.0
    return _static(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl) * either(graph_mamba)


@term("graph_static.dense", row="device_bytes", per="live_dense", source=_STATIC)
def dense_static(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_mlp: Value,
) -> Value:
    """Static input and output of a captured dense FFN."""
    return _static(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl) * either(graph_mlp)


@term("graph_static.moe", row="device_bytes", per="live_moe", source=_STATIC)
def moe_static(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_moe: Value,
    graph_moe_router: Value,
) -> Value:
    """Static input and output of a captured MoE layer or router."""
    captured = either(graph_moe, graph_moe_router)
    return _static(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl) * captured


GRAPH_TERMS: tuple[Term, ...] = (
    attention_static,
    gdn_static,
    mamba_static,
    dense_static,
    moe_static,
)
