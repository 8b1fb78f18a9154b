"""The FLOPs of a token in the stack's own counting."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mbsolve.models.counts import dense_linears, elements, expert_linears, need
from mbsolve.models.kinds import LayerKind
from mbsolve.models.recurrent import counted_multiply_adds

if TYPE_CHECKING:
    from mbsolve.models.card import Model


CONVENTION: Final = (
    "3 x the forward pass, 2 FLOPs a multiply-add; causal attention at half its square, top-k and shared experts, the "
    "output layer; no recompute, no router, norms or softmax"
)
"""What `flops_per_token` counts, in words."""


def _multiply_adds(model: Model, kind: LayerKind, seq_len: int) -> float:
    """Multiply-adds of one token in one layer: every weight it meets once, and its share of the core attention."""
    visited = (model.moe_topk or 0) * int(elements(expert_linears(model, kind, 1)))
    if kind.mixer in ("gdn", "mamba"):
        ffn = LayerKind("none", kind.ffn)
        return (
            int(elements(dense_linears(model, ffn, 1))) + visited + counted_multiply_adds(model, kind.mixer)
        )
    context = seq_len / 2 if kind.mixer != "none" else 0.0
    if kind.mixer == "window_attention":
        window = need(model.sliding_window, "sliding_window")
        context = window - window * (window - 1) / (2 * seq_len) if window < seq_len else context
    if model.mla:
        widths = (model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim)
        per_head = sum(need(width, "MLA head width") for width in widths)
    else:
        per_head = 2 * model.head_dim
    return (
        int(elements(dense_linears(model, kind, 1)))
        + visited
        + context * model.num_attention_heads * per_head
    )


def flops_per_token(model: Model, seq_len: int) -> float:
    """Return the model FLOPs of training on one token, as published TFLOP/s count them.

    Parameters
    ----------
    model
        The card; each of its MTP layers counts as a layer, a 2h -> h projection and one more output layer. Where
        a pattern says the layers, the stack leaves that projection out; among gated delta nets it takes the MTP
        layers for the next ones of the period.
    seq_len
        Tokens of a sequence; at least 1. A causal token sees half of them on average; in a window of ``w``
        it sees ``w`` less what the first tokens lack, ``w (w - 1) / (2 seq_len)``.

    Returns
    -------
    float
        3 x forward (no recompute), 2 FLOPs a multiply-add. MLA by its low-rank projections, top-k and shared
        experts and the projections of their latent, no router, norms or softmax.
    """
    logits = model.vocab_size * model.hidden_size
    kinds = Counter(model.layers())
    for depth in range(model.mtp_num_layers):
        kinds[_counted_mtp(model, depth)] += 1
    layers = sum(count * _multiply_adds(model, kind, seq_len) for kind, count in kinds.items())
    projection = 0 if model.layer_pattern is not None else 2 * model.hidden_size**2
    return 3 * 2.0 * (layers + logits + model.mtp_num_layers * (projection + logits))


def _counted_mtp(model: Model, depth: int) -> LayerKind:
    period = model.linear_attention_period
    if period is not None and (model.num_layers + depth + 1) % period:
        return LayerKind("gdn", model.mtp_layer().ffn)
    return model.mtp_layer()
