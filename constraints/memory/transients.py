"""What a pass holds for a moment, above everything that is saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.compose import where_captured
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import BF16, Value, flag, operand_factor
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

_SEEN = "; H200 one-rank training step, 2026-11-30"
MLP = Source("NVIDIA/Megatron-LM", "megatron/core/transformer/mlp.py" + _SEEN)
EXPERTS = Source("NVIDIA/Megatron-LM", "megatron/core/transformer/moe/token_dispatcher.py" + _SEEN)
ATTENTION = Source(
    "NVIDIA/TransformerEngine",
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py" + _SEEN,
)
LOSS = Source("NVIDIA/TransformerEngine", "transformer_engine/pytorch/cross_entropy.py" + _SEEN)
EMBEDDING = Source("NVIDIA/Megatron-LM", "megatron/core/models/gpt/gpt_model.py" + _SEEN)


@term("transient.dense_forward", row="device_bytes", per="at_forward_dense", source=MLP)
def dense_forward(
    job: Job,
    model: Model,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    recompute_mlp: Value,
) -> Value:
    """Forward of a dense FFN."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    wide = (sizes.gates(model) + 1) * sizes.mlp_width(job, model, mbs, cp, tp)
    return np.where(flag(recompute_mlp) > 0, wide + 2 * kept, 2 * sizes.gathered_hidden(job, model, mbs, cp))


@term("transient.dense_forward_nograd", row="device_bytes", per="at_nograd_dense", source=MLP)
def dense_nograd(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Forward of a checkpointed dense layer, which saves nothing."""
    wide = (sizes.gates(model) + 1) * sizes.mlp_width(job, model, mbs, cp, tp)
    return wide + 3 * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@term("transient.dense_backward", row="device_bytes", per="at_backward_dense", source=MLP)
def dense_backward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Backward of a dense FFN: both FFN gradients, or the gathered gradient beside one of them."""
    kept, wide = (
        sizes.hidden(job, model, mbs, cp, tp, sequence_parallel),
        sizes.mlp_width(job, model, mbs, cp, tp),
    )
    gathered = sizes.gathered_hidden(job, model, mbs, cp) * (np.asarray(tp) > 1)
    activation = kept + (sizes.gates(model) + 1 - operand_factor(job)) * wide
    return np.maximum(activation, kept + gathered + wide)


def _arriving(model: Model, ranks: Value) -> Value:
    """Rows that a dispatcher which sends a token once to each rank delivers, over the expert rows (balanced routing)."""
    routed = model.moe_topk or 1
    return ranks * (1.0 - (1.0 - 1.0 / ranks) ** routed) / routed


def _copies(
    model: Model, expert_hidden: Value, sent: Value, ep: Value, etp: Value, dispatcher: Value
) -> Value:
    """Expert rows, beside those saved, that the frames around the experts name at the end of their forward.

    All-to-all: permuted, received, expert output and unsorted tokens; under expert tensor parallelism the output
    is reduced in fp32, which takes two more. The all-gather dispatcher holds the
    output of this rank's experts and its share in the output of the whole group.
    DeepEP holds the tokens as they arrive and as they leave, and the expert output; HybridEP, which permutes on its
    way, the expert output alone. Of these three only the first is measured, the others follow from the code.
    """
    number, name = constant("forward_expert_copies"), np.asarray(dispatcher)
    ranks = np.asarray(ep, float) * etp
    exchanged = np.asarray(ep) > 1
    single = (model.num_experts or 0) // np.asarray(ep) == 1
    usual = np.where(exchanged, number["exchanged"], number["local"]) - single
    usual = np.where(np.asarray(etp) > 1, number["gathered"], usual)
    usual = np.where((name == "deepep") & exchanged, 1.0 + 2.0 * _arriving(model, ranks), usual)
    usual = np.where((name == "hybridep") & exchanged, 1.0, usual)
    group = expert_hidden + sent * ep * etp
    gathers = (name == "allgather") & (ranks > 1)
    return np.where(gathers, group, usual * expert_hidden)


def _quantised_copies(job: Job, expert_hidden: Value, dispatcher: Value) -> Value:
    """What a quantised forward holds beside `_copies`: the experts' input in bf16, which it does not save.

    Where neither router nor dispatcher pads the rows of each expert for the quantised product, the padded input too.
    """
    pads = (not job.settings.router_padding) & (np.asarray(dispatcher) != "hybridep")
    return expert_hidden * float(job.quantised) * (1.0 + pads)


def _nograd(model: Model, copies: Value, rows: Value, etp: Value, kept: Value, small: Value) -> Value:
    """Forward of the experts when nothing of it is saved."""
    tall = sizes.expert_hidden(rows, model)
    wide = (sizes.gates(model) + 1) * sizes.expert_width(rows, model, etp)
    return np.maximum(copies + wide, copies + tall) + 3 * kept + small


@term("transient.moe_forward", row="device_bytes", per="at_forward_moe", source=EXPERTS)
def moe_forward(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    ep: Value,
    etp: Value,
    dispatcher: Value,
    recompute_moe: Value,
) -> Value:
    """Forward of an MoE layer: tokens before and after dispatch, expert output, un-sorted tokens."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    sent = sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel)
    copies = _copies(model, sizes.expert_hidden(rows, model), sent, ep, etp, dispatcher)
    small = _small(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    checkpointed = _nograd(model, copies, rows, etp, kept, small) - kept
    saving = copies + _quantised_copies(job, sizes.expert_hidden(rows, model), dispatcher)
    return np.where(flag(recompute_moe) > 0, checkpointed, saving + _outputs(model) * kept)


@term("transient.moe_forward_nograd", row="device_bytes", per="at_nograd_moe", source=EXPERTS)
def moe_nograd(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    ep: Value,
    etp: Value,
    dispatcher: Value,
) -> Value:
    """Forward of a checkpointed MoE layer, which saves nothing."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    sent = sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel)
    copies = _copies(model, sizes.expert_hidden(rows, model), sent, ep, etp, dispatcher)
    small = _small(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    return _nograd(model, copies, rows, etp, kept, small)


@term("transient.moe_backward", row="device_bytes", per="at_backward_moe", source=EXPERTS)
def moe_backward(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    ep: Value,
    etp: Value,
    dispatcher: Value,
    recompute_moe: Value,
) -> Value:
    """Backward of an MoE layer; a recomputed one first runs its forward again."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    tall, wide = sizes.expert_hidden(rows, model), sizes.expert_width(rows, model, etp)
    sent = sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel)
    copies = _copies(model, tall, sent, ep, etp, dispatcher)
    group = sent * ep * etp * ((np.asarray(dispatcher) == "allgather") & (np.asarray(ep) * etp > 1))
    activation = (sizes.gates(model) + 1 - operand_factor(job)) * wide
    exchange = np.maximum(
        np.maximum(2 * tall, tall + wide), np.maximum(activation, group + np.maximum(group, tall))
    )
    plain = 2 * kept + exchange
    again = np.maximum(plain, copies + _quantised_copies(job, tall, dispatcher) + _outputs(model) * kept)
    return np.where(flag(recompute_moe) > 0, again, plain)


def _outputs(model: Model) -> int:
    """Hidden states beside the expert tokens: the combined output, and that of the shared experts."""
    return 2 if model.shared_expert_ffn_hidden_size else 1


def _small(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    return sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel) + sizes.routing_small(
        job, model, machine, mbs, cp, tp, sequence_parallel, etp
    )


@term("transient.attention_backward", row="device_bytes", per="at_backward_attention", source=ATTENTION)
def attention_backward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Backward of attention: gradients of q, k, v and output, residual gradients, fp32 query accumulator.

    A context-parallel ring adds a query gradient and two exchange buffers of keys, values and their
    gradients; gathering over CP adds all keys and values with their gradients (from the code).
    """
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    q, k, v = (f(job, model, mbs, cp, tp) for f in (sizes.query, sizes.key, sizes.value))
    o = sizes.attention_output(job, model, mbs, cp, tp)
    gathers = (cp > 1) * (job.settings.cp_comm_type == "all_gather")
    exchange = sizes.ring(job, cp) * (q + 4 * (k + v)) + gathers * 2 * cp * (k + v)
    return 3 * kept + 3 * q + k + v + o + exchange


@term("transient.loss", row="device_bytes", per="at_loss", source=LOSS)
def loss(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Logits at the loss: the output and, from Transformer Engine 2.20, the copy that the loss keeps."""
    return job.settings.logits_copies * sizes.logits(job, model, mbs, cp, tp)


@term("transient.loss_backward", row="device_bytes", per="at_loss_backward", source=LOSS)
def loss_backward(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Gradient of the final norm's output, gathered under tensor parallelism."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    return kept + sizes.gathered_hidden(job, model, mbs, cp) * (np.asarray(tp) > 1)


@term("transient.embedding_gradient", row="device_bytes", per="at_embedding_grad", source=EMBEDDING)
def embedding_gradient(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Gradient of the embedding in bf16, before it joins the gradient buffer."""
    kept = sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)
    return model.vocab_size * model.hidden_size / tp * BF16 + kept


@term("transient.p2p", row="device_bytes", per="p2p", source=source_of("p2p_tensors"))
def p2p(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """A hidden state alive between the sends and receives of the pipeline."""
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@term("residue.received", row="device_bytes", per="received", source=source_of("received_tensors"))
def residue(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Last input that a chunk received, and its gradient, where no micro-batch of the chunk is in flight."""
    return constant("received_tensors") * sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


def _eager(found: Term, scopes: tuple[str, ...]) -> Term:
    """A transient that goes into a graph's pool where its half is captured."""
    return replace(found, fn=where_captured(found.fn, scopes, inside=False))


TRANSIENT_TERMS: tuple[Term, ...] = (
    _eager(dense_forward, ("mlp",)),
    dense_nograd,
    _eager(dense_backward, ("mlp",)),
    moe_forward,
    moe_nograd,
    moe_backward,
    _eager(attention_backward, ("attn",)),
    loss,
    loss_backward,
    embedding_gradient,
    p2p,
    residue,
)
