"""The attention sub-block, grouped-query or latent, with its norm, residual and collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Source
from mbsolve.constraints.time.core_attention import (
    core,
    exchange,
    exchange_launches,
    latent_widths,
    merge,
    window_core,
    window_exchange,
    window_merge,
)
from mbsolve.constraints.time.ops import Block, Op, Part
from mbsolve.constraints.time.rates import (
    BENCH,
    CHOSEN,
    FIT,
    NOTHING,
    Pass,
    gemm,
    gemm_launches,
    moved,
    quantise,
    sharded_tokens,
    tensor_parallel,
    tensor_parallel_launches,
    tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model

RING: Final = Source(
    "Transformer Engine 2.20", "pytorch/attention/dot_product_attention/context_parallel.py, ring exchange"
)


def layernorm(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Norm before a sub-block: reads and writes h in BF16 forward, twice as much backward."""
    size = model.hidden_size * sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    return moved(machine, 4.0 * size, 8.0 * size)


def residual(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Residual addition after a sub-block: two reads and a write forward, a read and a write backward."""
    size = model.hidden_size * sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    return moved(machine, 6.0 * size, 4.0 * size)


def _projections(
    job: Job, model: Model, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> list[tuple[Any, Any, Any]]:
    """(tokens, outputs, inputs) of the linear layers outside the MLA up-projections."""
    every, own = tokens(job, cp, mbs), sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    hidden, heads = model.hidden_size, model.num_attention_heads
    if not model.mla:
        queries = 2 * heads if model.attention_output_gate else heads
        out = (queries + 2 * model.num_query_groups) * model.head_dim / tp
        return [(every, out, hidden), (every, hidden, heads * model.head_dim / tp)]
    latent, nope, rope, value = latent_widths(model)
    query = (
        (own, model.q_lora_rank, hidden) if model.q_lora_rank else (every, heads * (nope + rope) / tp, hidden)
    )
    return [query, (own, latent + rope, hidden), (every, hidden, heads * value / tp)]


def projections(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Linear layers into and out of attention: QKV and output, or the MLA down-projections and output."""
    shapes = _projections(job, model, tp, cp, mbs, sequence_parallel)
    return NOTHING.plus(*(gemm(job, machine, m, n, k) for m, n, k in shapes))


def quantise_projections(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Quantising the operands of those linear layers."""
    shapes = _projections(job, model, tp, cp, mbs, sequence_parallel)
    return NOTHING.plus(*(quantise(job, machine, m, n, k) for m, n, k in shapes))


def projection_launches(job: Job, model: Model, machine: Machine) -> Pass:
    """Framework ops of those linear layers: two for grouped-query, three for latent attention."""
    return gemm_launches(job, machine, 3.0 if model.mla else 2.0)


def _up_projections(job: Job, model: Model, tp: Any, cp: Any, mbs: Any) -> list[tuple[Any, Any, Any]]:
    if not model.mla:
        return []
    every, heads = tokens(job, cp, mbs), model.num_attention_heads
    latent, nope, rope, value = latent_widths(model)
    query = [(every, heads * (nope + rope) / tp, model.q_lora_rank)] if model.q_lora_rank else []
    return [*query, (every, heads * (nope + value) / tp, latent)]


def up_projections(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """MLA up-projections of queries, keys and values."""
    return NOTHING.plus(*(gemm(job, machine, *shape) for shape in _up_projections(job, model, tp, cp, mbs)))


def quantise_up_projections(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Quantising the operands of the MLA up-projections."""
    return NOTHING.plus(
        *(quantise(job, machine, *shape) for shape in _up_projections(job, model, tp, cp, mbs))
    )


def up_projection_launches(job: Job, model: Model, machine: Machine) -> Pass:
    """Framework ops of the MLA up-projections."""
    return gemm_launches(job, machine, 0.0 if not model.mla else 2.0 if model.q_lora_rank else 1.0)


def latent_heads(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Rotary embedding and concatenation of the MLA heads."""
    if not model.mla:
        return NOTHING
    _, nope, rope, value = latent_widths(model)
    width = model.num_attention_heads / tp * (2 * (nope + rope) + value)
    size = 4.0 * tokens(job, cp, mbs) * width
    return moved(machine, size, size)


def latent_heads_launches(model: Model) -> Pass:
    """Framework ops of the MLA rotary embedding and concatenation."""
    return Pass(8.0, 10.0) if model.mla else NOTHING


def rotary(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Rotary embedding of queries and keys, and their norms where the model has them."""
    if model.mla:
        return NOTHING
    heads = model.num_attention_heads + model.num_query_groups
    size = 4.0 * tokens(job, cp, mbs) * heads * model.head_dim / tp
    return moved(machine, 2.0 * size, 3.0 * size) if model.qk_layernorm else moved(machine, size, size)


def rotary_launches(model: Model) -> Pass:
    """Framework ops of the rotary embedding and the query and key norms."""
    return NOTHING if model.mla else Pass(2.0, 3.0).times(2.0 if model.qk_layernorm else 1.0)


def tp_collectives(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any
) -> Pass:
    """Exposed tensor-parallel collectives of one sub-block."""
    return tensor_parallel(job, machine, topology, model.hidden_size, tp, cp, mbs)


def norm_ops(block: Block, graph: tuple[str, ...]) -> tuple[Op, ...]:
    """The norm before and the residual after any sub-block."""
    norm = Part(graph, "layernorm", ("layernorm",))
    return (
        Op("elementwise", block, "layernorm", layernorm, Pass(1.0, 2.0), BENCH, norm),
        Op("elementwise", block, "residual", residual, Pass(1.0, 1.0), BENCH, Part(graph)),
    )


def _ops(
    block: Block, inner: Callable[..., Pass], ring: Callable[..., Pass], sums: Callable[..., Pass]
) -> tuple[Op, ...]:
    graph = ("attn",)
    rest = Part(graph)
    up = Part(graph, "mla_up_proj", ("mla_up_proj",))
    heart = Part(graph, "core_attn", ("core_attn",))
    return (
        *norm_ops(block, graph),
        Op("gemm", block, "qkv_and_proj", projections, projection_launches, FIT, rest),
        Op("quantise", block, "qkv_and_proj", quantise_projections, NOTHING, CHOSEN, rest),
        Op("gemm", block, "mla_up_proj", up_projections, up_projection_launches, FIT, up),
        Op("quantise", block, "mla_up_proj", quantise_up_projections, NOTHING, CHOSEN, up),
        Op("elementwise", block, "mla_up_proj", latent_heads, latent_heads_launches, BENCH, up),
        Op("elementwise", block, "rotary", rotary, rotary_launches, BENCH, rest),
        Op("attention", block, "core", inner, Pass(2.0, 4.0), BENCH, heart),
        Op("elementwise", block, "ring_merge", sums, NOTHING, RING, heart),
        Op("cp", block, "exchange", ring, exchange_launches, CHOSEN, heart),
        Op("tp", block, "collectives", tp_collectives, tensor_parallel_launches, FIT, rest),
    )


ATTENTION_OPS: Final = _ops("attention", core, exchange, merge)
WINDOW_OPS: Final = _ops("window_attention", window_core, window_exchange, window_merge)
