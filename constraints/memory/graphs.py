"""Buffers of captured graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.capture import graph_needs, scoped
from mbsolve.constraints.memory.compose import composed, where_captured
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.declare import Half
from mbsolve.constraints.memory.sizes import Value, either
from mbsolve.constraints.memory.transients import attention_backward, dense_backward
from mbsolve.constraints.placement import halves_of
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

_STATIC = source_of("graph_shared_tensors")
_MASK = Source(
    "NVIDIA/Megatron-LM",
    "megatron/core/transformer/cuda_graphs.py: static inputs of a layer; H200 one-rank training step, 2026-11-30",
)


def _input(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value, impl: Value
) -> Value:
    """Static input of a piece, where pieces are captured for each micro-batch in flight."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    return kept * (np.asarray(impl) == "transformer_engine")


def _mask(job: Job, mbs: Value, cp: Value, impl: Value) -> Value:
    """Boolean attention mask, a static input of a captured attention though nothing reads it."""
    return mbs * job.seq_len * (job.seq_len / cp) * (np.asarray(impl) == "transformer_engine")


def _static(half: Half, scopes: tuple[str, ...], what: str, masked: bool = False) -> Term:
    """Static input of a captured half, for each micro-batch in flight; with the attention mask where ``masked``."""

    def body(values: Mapping[str, Any]) -> Value:
        job, model, impl = values["job"], values["model"], values["cuda_graph_impl"]
        if all(half not in halves_of(kind) for kind in (*model.layers(), model.mtp_layer())):
            return 0.0
        mbs, cp = values["mbs"], values["cp"]
        held = _input(job, model, mbs, cp, values["tp"], values["sequence_parallel"], impl)
        held = held + _mask(job, mbs, cp, impl) * masked
        return held * either(*(values[f"graph_{scope}"] for scope in scopes))

    needs = ("job", "model", "mbs", "cp", "tp", "sequence_parallel", *graph_needs(scopes))
    fn = composed(f"Static input{' and mask' if masked else ''} of {what}", needs, body)
    name = f"graph_static.{half}"
    return Term(fn=fn, source=_MASK, name=name, row="device_bytes", per=f"pool_{half}")


@term("graph_static.dispatch", row="device_bytes", per="moe", source=_MASK)
def dispatch_static(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
    cuda_graph_impl: Value,
    graph_moe_preprocess: Value,
) -> Value:
    """Outputs of a captured preprocessing that the dispatcher names until the layer's next forward.

    Routing map, permutation map and sort maps; beside shared experts their output and the tokens to dispatch.
    """
    found = (
        sizes.routing_attributes(job, model, mbs, cp, tp, sequence_parallel)
        + sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel)
        + sizes.routing_small(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    )
    if model.shared_expert_ffn_hidden_size:
        found = found + sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
        found = found + sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel)
    return found * either(graph_moe_preprocess) * (np.asarray(cuda_graph_impl) == "transformer_engine")


@term("graph_static.shared", row="device_bytes", per="one", source=_STATIC)
def shared_static(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value, cuda_graph_impl: Value
) -> Value:
    """Hidden states that all graphs of a rank share: output and gradient at their border."""
    held = _input(job, model, mbs, cp, tp, sequence_parallel, cuda_graph_impl)
    return constant("graph_shared_tensors") * held


@term("graph_pool.moe.permuted", row="pool_bytes", per="pool_moe", source=_MASK)
def permuted_pool(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    cuda_graph_impl: Value,
    graph_moe_preprocess: Value,
    dispatcher: Value,
) -> Value:
    """Permuted tokens, an output of a captured preprocessing, which stays; without a graph they are dropped.

    The all-to-all dispatcher permutes before it exchanges; the others as they exchange or after it.
    """
    rows = sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel) * (model.moe_topk or 0)
    used = either(graph_moe_preprocess) * scoped(cuda_graph_impl) * (np.asarray(dispatcher) == "alltoall")
    return sizes.expert_hidden(rows, model) * used


def _pooled(name: str, per: str, transient: Term, scopes: tuple[str, ...]) -> Term:
    """The transient of a captured half's backward: one in the pool, which every graph of the rank reuses."""
    fn = where_captured(transient.fn, scopes, inside=True, note=" (in the graph's pool)")
    return Term(fn=fn, source=transient.source, name=name, row="pool_bytes", per=per)


@term("workspace.local_graphs", row="device_bytes", per="one", source=source_of("local_graph_workspace"))
def local_workspace(cuda_graph_impl: Value) -> Value:
    """Workspaces of matrix products inside graphs of the implementation "local"."""
    return constant("local_graph_workspace") * (np.asarray(cuda_graph_impl) == "local")


@term("graph_pool.local_buffers", row="pool_bytes", per="attention", source=source_of("local_graph_buffers"))
def local_buffers(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    microbatches: Value,
    cuda_graph_impl: Value,
    graph_attn: Value,
) -> Value:
    """Input and output that each micro-batch has of its own under the implementation "local"."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    each = constant("local_graph_buffers") * (np.maximum(microbatches, 2) + 1)
    return each * kept * (np.asarray(cuda_graph_impl) == "local") * either(graph_attn)


GRAPH_TERMS: tuple[Term, ...] = (
    _static("attention", ("attn",), "a captured attention", masked=True),
    _static("gdn", ("attn",), "a captured gated delta net, which scope attn captures", masked=True),
    _static("mamba", ("mamba",), "a captured Mamba-2 layer"),
    _static("dense", ("mlp",), "a captured dense FFN"),
    _static("moe", ("moe", "moe_router"), "a captured MoE layer or router"),
    dispatch_static,
    shared_static,
    permuted_pool,
    _pooled("graph_pool.backward.attention", "has_attention", attention_backward, ("attn",)),
    _pooled("graph_pool.backward.dense", "has_dense", dense_backward, ("mlp",)),
    local_buffers,
    local_workspace,
)
