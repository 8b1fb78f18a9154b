"""Bytes of the tensors that everything else is made of.

Decisions may be Python scalars or arrays that broadcast; facts are scalars. Results are bytes (or tokens, where
the name says so) of one micro-batch on one rank.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.constants import constant
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

Value: TypeAlias = Any
"""A Python scalar or a numpy array."""

BF16, FP32, INT32 = 2, 4, 4
STATE_BYTES = {"fp32": FP32, "bf16": BF16, "fp16": 2, "fp8": 2}
"""Bytes of one element of optimizer state in each of its formats; the FP8 tensors have a transposed copy."""


def flag(decision: Value) -> Value:
    """A boolean decision as 0.0 or 1.0."""
    return np.asarray(decision, float)


def either(*decisions: Value) -> Value:
    """1.0 where any of the decisions is on."""
    off: Value = 1.0
    for decision in decisions:
        off = off * (1 - flag(decision))
    return 1 - off


def operand_factor(job: Job) -> float:
    """Size of a saved operand of a matrix product, relative to bf16."""
    return float(constant("saved_operand_factor")[job.precision])


def pinned(size: Value, varies: bool = False) -> Value:
    """Bytes that one pinned host tensor takes: the next power of two.

    A tensor whose rows vary with the routing exceeds a size that is itself a power of two in some steps, and the
    pool keeps the larger block: it counts as the power of two above its mean size.
    """
    part, exponent = np.frexp(np.asarray(size, float))
    exact = (part == 0.5) & (not varies)
    return np.where(part > 0, np.ldexp(1.0, exponent - exact.astype(int)), 0.0)


def tokens(job: Job, mbs: Value, cp: Value) -> Value:
    """Tokens of one micro-batch on a context-parallel rank."""
    return mbs * job.seq_len / cp


def shard_tokens(job: Job, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Tokens of the rank's share of the sequence between tensor-parallel regions."""
    return tokens(job, mbs, cp) / np.where(flag(sequence_parallel) > 0, tp, 1)


def hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """One hidden state of the rank's sequence shard (the ``U`` of the formulas)."""
    return shard_tokens(job, mbs, cp, tp, sequence_parallel) * model.hidden_size * BF16


def gathered_hidden(job: Job, model: Model, mbs: Value, cp: Value) -> Value:
    """One hidden state gathered over tensor parallelism; not smaller than `hidden`."""
    return tokens(job, mbs, cp) * model.hidden_size * BF16


def query(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Queries of the rank's heads."""
    width = (model.qk_nope_head_dim or 0) + (model.qk_rope_head_dim or 0) if model.mla else model.head_dim
    return tokens(job, mbs, cp) * model.num_attention_heads * width / tp * BF16


def key(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Keys of the rank's heads; MLA gives each query head its own."""
    if model.mla:
        return query(job, model, mbs, cp, tp)
    return tokens(job, mbs, cp) * np.maximum(model.num_query_groups / tp, 1) * model.head_dim * BF16


def value(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Values of the rank's heads."""
    return attention_output(job, model, mbs, cp, tp) if model.mla else key(job, model, mbs, cp, tp)


def attention_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the core attention."""
    width = model.v_head_dim or 0 if model.mla else model.head_dim
    return tokens(job, mbs, cp) * model.num_attention_heads * width / tp * BF16


def ring(job: Job, cp: Value) -> Value:
    """Whether context parallelism passes keys and values round a ring."""
    return (cp > 1) * ("p2p" in job.settings.cp_comm_type)


def mlp_width(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """One FFN-wide tensor of a dense layer."""
    return tokens(job, mbs, cp) * (model.ffn_hidden_size or 0) / tp * BF16


def gates(model: Model) -> int:
    """FFN-wide tensors that the first projection makes."""
    return 2 if model.gated_mlp else 1


def expert_rows(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Token rows that the rank's experts process: the busiest rank's under natural routing, the bound where one is set."""
    routed = shard_tokens(job, mbs, cp, tp, sequence_parallel) * (model.moe_topk or 0)
    natural = job.settings.routing == "natural"
    skew = max(1.0, machine.calibration["natural_routing_factor"]) if natural else 1.0
    skew = job.settings.expert_rank_capacity or skew
    spread = either(sequence_parallel, np.asarray(tp) == 1)
    return routed * skew * np.where(spread > 0, etp, 1)


def expert_hidden(rows: Value, model: Model) -> Value:
    """One tensor over the expert rows (``Th``): hidden-wide, or as wide as the experts' latent."""
    return rows * model.routed_width * BF16


def dispatched(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """The rank's tokens as the dispatcher takes them and gives them back."""
    return shard_tokens(job, mbs, cp, tp, sequence_parallel) * model.routed_width * BF16


def expert_width(rows: Value, model: Model, etp: Value) -> Value:
    """One expert-wide tensor over the expert rows (``Tf``)."""
    return rows * (model.moe_ffn_hidden_size or 0) / etp * BF16


def shared_width(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """One tensor as wide as the shared experts."""
    return tokens(job, mbs, cp) * (model.shared_expert_ffn_hidden_size or 0) / tp * BF16


def permutation_map(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Row map of the token permutation, int32."""
    return (
        shard_tokens(job, mbs, cp, tp, sequence_parallel) * (2 * (model.num_experts or 0) + 1) * INT32
        if model.is_moe
        else 0.0
    )


def routing_attributes(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Probabilities (fp32) and routing map (bool) over all experts."""
    return shard_tokens(job, mbs, cp, tp, sequence_parallel) * (model.num_experts or 0) * (FP32 + 1)


def routing_small(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Top-k indices and probabilities, permuted probabilities, sort maps, and scores over all experts."""
    shard = shard_tokens(job, mbs, cp, tp, sequence_parallel)
    rows = expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    scores = int(model.router_score_function == "sigmoid") + int(model.aux_loss)
    return shard * (model.moe_topk or 0) * 12 + rows * 16 + shard * (model.num_experts or 0) * FP32 * scores


def logits(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Logits of the rank's part of the vocabulary, bf16."""
    return tokens(job, mbs, cp) * model.vocab_size / tp * BF16
