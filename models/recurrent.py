"""Gated delta nets and Mamba-2: their weights on one rank, and the multiply-adds that the stack counts for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mbsolve.models.card import Model
    from mbsolve.models.kinds import Mixer


class Recurrent(NamedTuple):
    """Widths of a recurrent mixer, before they are cut over tensor parallelism.

    Attributes
    ----------
    inner
        Width of its output, before the output projection.
    projected
        Outputs of the input projection.
    convolved
        Channels of the causal convolution.
    state
        Width of the state that each of the ``inner`` channels carries along.
    heads
        Heads that decay on their own.
    """

    inner: int
    projected: int
    convolved: int
    state: int
    heads: int


def recurrent(model: Model, mixer: Mixer) -> Recurrent:
    """Return the widths of a mixer, ``gdn`` or ``mamba``; all zero if the model has none.

    A gated delta net projects queries, keys, values, the output gate and two scalars a value head; Mamba-2 the
    gate, its input, the two matrices of each group and the step of each head. All but gate and scalars are convolved.
    """
    if mixer == "mamba" and model.mamba_num_heads is not None:
        heads, state = model.mamba_num_heads, model.mamba_state_dim or 0
        inner = heads * (model.mamba_head_dim or 0)
        convolved = inner + 2 * (model.mamba_num_groups or 0) * state
        return Recurrent(inner, inner + convolved + heads, convolved, state, heads)
    if mixer == "gdn" and model.linear_num_value_heads is not None:
        heads, state = model.linear_num_value_heads, model.linear_key_head_dim or 0
        inner = heads * (model.linear_value_head_dim or 0)
        convolved = inner + 2 * (model.linear_num_key_heads or 0) * state
        return Recurrent(inner, inner + convolved + 2 * heads, convolved, state, heads)
    return Recurrent(0, 0, 0, 0, 0)


def recurrent_linears(model: Model, mixer: Mixer, tp: Any) -> list[tuple[Any, Any]]:
    """Return (rows, columns) of the input and the output projection on one rank."""
    widths = recurrent(model, mixer)
    return [(widths.projected // tp, model.hidden_size), (model.hidden_size, widths.inner // tp)]


def recurrent_vectors(model: Model, mixer: Mixer, tp: Any) -> Any:
    """Return the parameters on one rank that are no projection: norms, convolution, decay and step."""
    widths = recurrent(model, mixer)
    if mixer == "mamba":
        # Convolution with its bias, then step bias, decay and skip of each head, and the gated norm.
        taps = (model.mamba_conv_kernel or 0) + 1
        return model.hidden_size + (widths.convolved * taps + 3 * widths.heads + widths.inner) // tp
    # The norm of a gated delta net is one head wide and whole on every rank; its convolution has no bias.
    taps = model.linear_conv_kernel or 0
    own = (widths.convolved * taps + 2 * widths.heads) // tp
    return model.hidden_size + (model.linear_value_head_dim or 0) + own


def counted_multiply_adds(model: Model, mixer: Mixer) -> float:
    """Return the multiply-adds of a mixer for one token as the stack's own FLOPs function counts them.

    For Mamba-2 it takes twice the hidden size for the inner width, whatever heads there are, leaves the
    convolution out, and counts 7 FLOPs for each element of the scan's state.
    """
    hidden, widths = model.hidden_size, recurrent(model, mixer)
    if mixer == "mamba":
        inner = 2 * hidden
        groups = 2 * (model.mamba_num_groups or 0) * widths.state
        return hidden * (2 * inner + groups + widths.heads) + 3.5 * inner * widths.state + inner * hidden
    value = model.linear_value_head_dim or 0
    taps = model.linear_conv_kernel or 0
    rule = 4 * widths.heads * value * value
    return hidden * widths.projected + taps * widths.convolved + rule + hidden * widths.inner
