"""Buffers of the MoE dispatchers that stay from step to step.

DeepEP and HybridEP take theirs from the driver, not from torch; they count with what torch allocates here, though
a figure of torch's allocator does not show them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import BF16, FP32, Value
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

GLOBAL = Source(
    "NVIDIA/Megatron-LM",
    "megatron/core/transformer/moe/token_dispatcher.py: MoEAllGatherTokenDispatcher.token_dispatch, use_global_buffer; "
    "H200 one-rank training step, 2026-11-30",
)
HYBRID = Source(
    "deepseek-ai/DeepEP",
    "branch hybrid-ep: csrc/hybrid_ep/buffer/intranode.cu, internode.cu; deep_ep/hybrid_ep_buffer.py",
)
DEEP = Source(
    "deepseek-ai/DeepEP",
    "csrc/config.hpp: get_nvl_buffer_size_hint, get_rdma_buffer_size_hint; deep_ep/buffer.py; "
    "NVIDIA/Megatron-LM megatron/core/transformer/moe/fused_a2a.py: get_buffer",
)

NODE: Final = 8
"""Ranks of one NVLink domain, for which DeepEP is compiled and which HybridEP takes by default."""

LEAST_TOKENS: Final = 512
"""Tokens that HybridEP makes room for at least."""

SCALED: Final = 128
"""Elements that share one fp32 scale."""

CHANNELS: Final = 10
"""DeepEP channels: one for each two of the 20 SMs that Megatron-Core gives it."""

TOKEN_EXTRA: Final = 8 + 128 * 8 + 128 * 4 + 128 * 4
"""DeepEP bytes of one token beside its hidden state: its source, and 128 each of indices, weights and scales."""

WORKSPACE: Final = 32 * 2**20
"""Bytes of DeepEP's workspace."""

# Tokens that a DeepEP channel receives at a time, by the largest group for which they hold.
_GROUPS: Final = np.array([8, 64, 96, 128])
_NVLINK_TOKENS: Final = np.array([256, 288, 480, 560, 720])
_RDMA_TOKENS: Final = np.array([0, 140, 132, 132, 132])


@term("buffer.allgather", row="device_bytes", per="has_moe", source=GLOBAL)
def allgather(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    ep: Value,
    etp: Value,
    dispatcher: Value,
) -> Value:
    """Global buffer of the all-gather dispatcher: the tokens of every rank of the group."""
    ranks = np.asarray(ep) * etp
    used = (np.asarray(dispatcher) == "allgather") & (ranks > 1)
    return sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel) * ranks * used


@term("buffer.hybridep", row="pool_bytes", per="has_moe", source=HYBRID)
def hybridep(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    ep: Value,
    etp: Value,
    dispatcher: Value,
) -> Value:
    """HybridEP: tokens, probabilities and scales of every rank of the group, once for dispatch and combine together.

    Across domains, for its own tokens, and for each other domain three times: those that come in, and on the way
    back the reduced ones that leave and the ones that come in.
    """
    ranks = np.asarray(ep, float) * etp
    domain = np.minimum(ranks, NODE)
    nodes = ranks / domain
    tokens = np.maximum(sizes.shard_tokens(job, mbs, cp, tp, sequence_parallel), LEAST_TOKENS)
    local = (model.num_experts or 0) / np.asarray(ep, float)
    token, scales = model.routed_width * BF16, model.routed_width / SCALED * FP32
    routed = token + local * domain * FP32
    inside = ranks * (routed + scales)
    own = token + local * ranks * FP32 + scales
    across = (nodes > 1) * (own + (nodes - 1) * (3 * routed + scales))
    used = (np.asarray(dispatcher) == "hybridep") & (ranks > 1)
    return tokens * (inside + across) * used


@term("buffer.deepep", row="pool_bytes", per="has_moe", source=DEEP)
def deepep(model: Model, ep: Value, etp: Value, dispatcher: Value) -> Value:
    """DeepEP: receive queues of each channel from each rank of the domain, and send and receive ones for each domain."""
    ranks = np.asarray(ep) * etp
    kind = np.searchsorted(_GROUPS, ranks)
    token = model.routed_width * BF16 + TOKEN_EXTRA
    nvlink = CHANNELS * np.minimum(ranks, NODE) * _NVLINK_TOKENS[kind] * token
    rdma = CHANNELS * (ranks / NODE) * _RDMA_TOKENS[kind] * (token + 16) * 2
    return (nvlink + rdma + WORKSPACE) * ((np.asarray(dispatcher) == "deepep") & (ranks > 1))


@term("reserve.overlap", row="pool_bytes", per="has_moe", source=source_of("overlap_stream_tensors"))
def overlapped(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
    ep_overlap: Value,
) -> Value:
    """Tokens that the allocator cannot pass from one stream to the other under expert-parallel overlap."""
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    return (
        constant("overlap_stream_tensors") * sizes.expert_hidden(rows, model) * np.asarray(ep_overlap, float)
    )


DISPATCHER_TERMS: tuple[Term, ...] = (allgather, hybridep, deepep, overlapped)
