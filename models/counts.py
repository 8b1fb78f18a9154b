"""Exact parameter counts of one rank and of the whole model.

Every tensor-parallel (`tp`), expert-parallel (`ep`) and expert-tensor-parallel (`etp`) degree may be an integer
or an array of integers; arrays give arrays. Divisions round down, so degrees are expected to divide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mbsolve.models.kinds import LayerKind
from mbsolve.models.recurrent import recurrent_linears, recurrent_vectors

if TYPE_CHECKING:
    from mbsolve.models.card import Model

Degree = int | NDArray[np.integer[Any]]
Count = int | NDArray[np.int64]
Linears = list[tuple[Count, Count]]
C = TypeVar("C", int, NDArray[np.int64])


class LayerParameters(NamedTuple, Generic[C]):
    """Parameters of one layer on one rank.

    Attributes
    ----------
    dense
        Parameters sharded or replicated with the dense grid (attention, norms, router, shared experts, dense FFN).
    expert
        Parameters of the routed experts on this rank.
    cached
        Elements of the Transformer Engine linear weights, dense and expert: those of which FP8 keeps a copy.
    """

    dense: C
    expert: C
    cached: C


def _as_count(degree: Degree) -> Count:
    """Widen arrays to 64 bits: counts of large models overflow 32."""
    return degree if isinstance(degree, int) else np.asarray(degree, dtype=np.int64)


def elements(linears: Linears) -> Count:
    """Elements of some weights, given by (rows, columns)."""
    total: Count = 0
    for rows, columns in linears:
        total = total + rows * columns
    return total


def need(value: int | None, field: str) -> int:
    """Return a value that the card's validators have made sure of."""
    if value is None:
        raise ValueError(f"{field} is missing, but the layer needs it.")
    return value


def _attention_linears(model: Model, tp: Count) -> Linears:
    """(rows, columns) of the attention weights; the MLA down projections are replicated over tensor parallelism."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if not model.mla:
        # Upstream splits this matrix evenly also where ranks outnumber groups, and gathers what a rank lacks.
        queries = 2 * heads if model.attention_output_gate else heads
        qkv = (queries + 2 * model.num_query_groups) * model.head_dim // tp
        return [(qkv, hidden), (hidden, heads * model.head_dim // tp)]
    nope, rope = (
        need(model.qk_nope_head_dim, "qk_nope_head_dim"),
        need(model.qk_rope_head_dim, "qk_rope_head_dim"),
    )
    value, latent = need(model.v_head_dim, "v_head_dim"), need(model.kv_lora_rank, "kv_lora_rank")
    up = heads * (nope + rope) // tp
    if model.q_lora_rank is None:
        first: Linears = [(up, hidden)]
    else:
        first = [(model.q_lora_rank, hidden), (up, model.q_lora_rank)]
    return [
        *first,
        (latent + rope, hidden),
        (heads * (nope + value) // tp, latent),
        (hidden, heads * value // tp),
    ]


def _ffn_linears(model: Model, outer: int, width: int, tp: Count) -> Linears:
    gated = 2 if model.gated_mlp else 1
    return [(gated * width // tp, outer), (outer, width // tp)]


def _mixer_linears(model: Model, kind: LayerKind, tp: Count) -> Linears:
    if kind.mixer == "none":
        return []
    if kind.mixer in ("gdn", "mamba"):
        return recurrent_linears(model, kind.mixer, tp)
    return _attention_linears(model, tp)


def dense_linears(model: Model, kind: LayerKind, tp: Count) -> Linears:
    """(rows, columns) of the weights of one layer on one rank, routed experts left out."""
    mixer = _mixer_linears(model, kind, tp)
    if kind.ffn == "dense":
        width = need(model.ffn_hidden_size, "ffn_hidden_size")
        return mixer + _ffn_linears(model, model.hidden_size, width, tp)
    if kind.ffn == "none":
        return mixer
    shared = model.shared_expert_ffn_hidden_size
    latent = latent_linears(model)
    return mixer + latent + (_ffn_linears(model, model.hidden_size, shared, tp) if shared else [])


def latent_linears(model: Model) -> Linears:
    """(rows, columns) of the projections into and out of the experts' latent, whole on every rank; none without one."""
    hidden, latent = model.hidden_size, model.moe_latent_size
    return [(latent, hidden), (hidden, latent)] if latent else []


def expert_linears(model: Model, kind: LayerKind, etp: Count) -> Linears:
    """(rows, columns) of the weights of one routed expert on one rank; none in a dense layer."""
    if kind.ffn != "moe":
        return []
    width = need(model.moe_ffn_hidden_size, "moe_ffn_hidden_size")
    return _ffn_linears(model, model.routed_width, width, etp)


def _norm(model: Model, width: int) -> int:
    """Parameters of norms of this width in all: a scale, and an offset where the card says so."""
    return 2 * width if model.norm_bias else width


def _vectors(model: Model, kind: LayerKind, tp: Count) -> Count:
    """Norms, router, biases and sinks: what is no Transformer Engine weight matrix."""
    hidden = model.hidden_size
    total: Count = 0 if kind.ffn == "none" else _norm(model, hidden)
    if kind.mixer in ("gdn", "mamba"):
        total = total + recurrent_vectors(model, kind.mixer, tp)
    elif kind.mixer != "none" and model.mla:
        latents = (model.q_lora_rank or 0) + need(model.kv_lora_rank, "kv_lora_rank")
        total = total + _norm(model, hidden + latents)
    elif kind.mixer != "none":
        total = total + _norm(model, hidden + (2 * model.head_dim if model.qk_layernorm else 0))
    if kind.ffn == "moe":
        total = total + need(model.num_experts, "num_experts") * hidden
        total = total + (hidden if model.shared_expert_gate else 0)
    if model.attention_sink and kind.mixer in ("attention", "window_attention"):
        total = total + model.num_attention_heads // tp
    if model.linear_bias:
        linears = dense_linears(model, kind, tp)
        # Upstream builds the projections into and out of the MLA latents without biases.
        biased = linears if not model.mla else linears[len(_attention_linears(model, tp)) - 1 :]
        for rows, _ in biased:
            total = total + rows
        total = total + (need(model.num_experts, "num_experts") if kind.ffn == "moe" else 0)
    elif model.qkv_bias:
        total = total + _attention_linears(model, tp)[0][0]
    return total


@overload
def layer_parameters(
    model: Model, kind: LayerKind, tp: int = 1, ep: int = 1, etp: int = 1
) -> LayerParameters[int]: ...
@overload
def layer_parameters(
    model: Model, kind: LayerKind, tp: Degree = 1, ep: Degree = 1, etp: Degree = 1
) -> LayerParameters[Any]: ...
def layer_parameters(
    model: Model, kind: LayerKind, tp: Degree = 1, ep: Degree = 1, etp: Degree = 1
) -> LayerParameters[Any]:
    """Return the parameters of one layer on one rank.

    Parameters
    ----------
    model, kind
        The card and the kind of the layer.
    tp, ep, etp
        Parallel degrees, at least 1; integers, or arrays that broadcast together.

    Returns
    -------
    LayerParameters
        Plain integers, or arrays of the common shape if any degree is an array.
    """
    dense_ranks, expert_ranks, expert_shards = _as_count(tp), _as_count(ep), _as_count(etp)
    linears, routed = dense_linears(model, kind, dense_ranks), expert_linears(model, kind, expert_shards)
    experts = (model.num_experts or 0) // expert_ranks
    weights = experts * elements(routed)
    expert = weights
    if model.linear_bias:
        for rows, _ in routed:
            expert = expert + experts * rows
    matrices = elements(linears)
    counts: tuple[Any, Any, Any] = (matrices + _vectors(model, kind, dense_ranks), expert, matrices + weights)
    if all(isinstance(degree, int) for degree in (tp, ep, etp)):
        return LayerParameters(*counts)
    shape = np.broadcast_shapes(np.shape(tp), np.shape(ep), np.shape(etp))
    return LayerParameters(*(np.broadcast_to(count, shape) for count in counts))


def layer_weight_shapes(
    model: Model, kind: LayerKind, tp: int = 1, etp: int = 1
) -> tuple[tuple[int, int], ...]:
    """Return the distinct (rows, columns) of the Transformer Engine weights of one layer on one rank.

    Gradient-accumulation fusion keeps one dummy gradient for each distinct shape of a process.
    """
    linears = dense_linears(model, kind, tp) + expert_linears(model, kind, etp)
    return tuple(dict.fromkeys((int(rows), int(columns)) for rows, columns in linears))


def _vocabulary_matrix(model: Model, tp: Count) -> Count:
    return model.vocab_size * model.hidden_size // tp


@overload
def embedding_parameters(model: Model, tp: int = 1) -> int: ...
@overload
def embedding_parameters(model: Model, tp: Degree = 1) -> Any: ...
def embedding_parameters(model: Model, tp: Degree = 1) -> Any:
    """Return the parameters of the embedding on one rank: vocabulary x hidden / tp, and all learnt positions."""
    return _vocabulary_matrix(model, _as_count(tp)) + (model.learned_positions or 0) * model.hidden_size


@overload
def head_parameters(model: Model, tp: int = 1, *, embedding_here: bool = False) -> int: ...
@overload
def head_parameters(model: Model, tp: Degree = 1, *, embedding_here: bool = False) -> Any: ...
def head_parameters(model: Model, tp: Degree = 1, *, embedding_here: bool = False) -> Any:
    """Return the parameters of the final norm and the output layer on one rank.

    Parameters
    ----------
    model, tp
        The card; the tensor-parallel degree, an integer or an array.
    embedding_here
        Whether the same rank holds the embedding: a tied matrix is then not counted again. On another stage
        it is a copy of its own.
    """
    matrix = _vocabulary_matrix(model, _as_count(tp))
    return matrix * (0 if model.tie_embeddings and embedding_here else 1) + _norm(model, model.hidden_size)


@overload
def mtp_extra_parameters(model: Model, tp: int = 1) -> int: ...
@overload
def mtp_extra_parameters(model: Model, tp: Degree = 1) -> Any: ...
def mtp_extra_parameters(model: Model, tp: Degree = 1) -> Any:
    """Return what one MTP block holds on one rank besides its layer: the 2h -> h projection and three norms."""
    hidden = model.hidden_size
    return 2 * hidden * hidden // _as_count(tp) + _norm(model, 3 * hidden)


def mtp_weight_shape(model: Model, tp: int = 1) -> tuple[int, int]:
    """Return (rows, columns) of the MTP projection's weight on one rank."""
    return model.hidden_size // tp, 2 * model.hidden_size


def total_parameters(model: Model) -> int:
    """Return all parameters: embedding, output layer and final norm in, MTP apart."""
    per_kind = {kind: layer_parameters(model, kind) for kind in set(model.layers())}
    layers = sum(per_kind[kind].dense + per_kind[kind].expert for kind in model.layers())
    return layers + embedding_parameters(model) + head_parameters(model, embedding_here=True)


def active_parameters(model: Model) -> int:
    """Return the parameters that one token uses, MTP apart.

    Convention: `total_parameters` less the routed experts that a token does not visit. The router, the shared
    experts, and the whole embedding and output layer count; some publishers leave the embedding out.
    """
    if model.num_experts is None:
        return total_parameters(model)
    idle = model.num_experts - need(model.moe_topk, "moe_topk")
    moe = [kind for kind in model.layers() if kind.ffn == "moe"]
    return total_parameters(model) - sum(
        layer_parameters(model, kind).expert // model.num_experts * idle for kind in moe
    )


def mtp_parameters(model: Model) -> int:
    """Return the parameters of all MTP blocks; embedding and output layer are shared with the main model."""
    layer = layer_parameters(model, model.mtp_layer())
    return model.mtp_num_layers * (layer.dense + layer.expert + mtp_extra_parameters(model))
