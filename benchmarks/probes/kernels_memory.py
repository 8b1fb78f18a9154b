"""Kernels bound by memory: norms, activations, rotary embedding, casts, the permutation of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from kernels import Row, both_ways, copies, random, rotating, timed
from megatron.core.fusions.fused_bias_dropout import bias_dropout_add_fused_train
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl, weighted_bias_swiglu_impl
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy
from transformer_engine.pytorch.permutation import (
    moe_permute_with_probs,
    moe_sort_chunks_by_index_with_probs,
    moe_unpermute,
)
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

Case = tuple[Row, Callable[[], Row]]
torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.automatic_dynamic_shapes = False


def rates(forward_ms: float, backward_ms: float, read: float, back: float) -> Row:
    """Times, the bytes that each way must move, and GB/s."""
    return {
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "forward_bytes": read,
        "backward_bytes": back,
        "forward_gbps": read / forward_ms / 1e6,
        "backward_gbps": back / backward_ms / 1e6 if backward_ms > 0 else None,
    }


def spread(make: Callable[[], Callable[[], torch.Tensor]], n_bytes: float) -> tuple[float, float]:
    """Forward and backward over several sets of operands."""
    calls = [make() for _ in range(copies(n_bytes))]
    return both_ways(rotating_value(calls))


def rotating_value(calls: list[Callable[[], torch.Tensor]]) -> Callable[[], torch.Tensor]:
    """As `rotating`, and hand back what the call returned."""
    state = [0]

    def call() -> torch.Tensor:
        state[0] = (state[0] + 1) % len(calls)
        return calls[state[0]]()

    return call


def norm(tokens: int, width: int) -> Row:
    layer = te.RMSNorm(width, dtype=torch.bfloat16).cuda()
    size = 2 * tokens * width

    def make() -> Callable[[], torch.Tensor]:
        x = random(tokens, width, grad=True)
        return lambda: layer(x)

    return rates(*spread(make, 2 * size), 2 * size, 3 * size)


def swiglu(tokens: int, width: int) -> Row:
    size = 2 * tokens * width

    def make() -> Callable[[], torch.Tensor]:
        x = random(tokens, 1, 2 * width, grad=True)
        return lambda: bias_swiglu_impl(x, None, False, False)

    return rates(*spread(make, 3 * size), 3 * size, 5 * size)


def weighted_swiglu(tokens: int, width: int) -> Row:
    size = 2 * tokens * width

    def make() -> Callable[[], torch.Tensor]:
        x, w = random(tokens, 2 * width, grad=True), torch.rand(tokens, 1, device="cuda", requires_grad=True)
        return lambda: weighted_bias_swiglu_impl(x, None, w)

    return rates(*spread(make, 3 * size), 3 * size, 5 * size)


def dropout_add(tokens: int, width: int) -> Row:
    size = 2 * tokens * width

    def make() -> Callable[[], torch.Tensor]:
        x, r = random(tokens, 1, width, grad=True), random(tokens, 1, width, grad=True)
        return lambda: bias_dropout_add_fused_train((x, None), r, 0.0)

    return rates(*spread(make, 3 * size), 3 * size, 3 * size)


def rope(tokens: int, heads: int, fused: bool = False) -> Row:
    size = 2 * tokens * heads * 128
    freqs = torch.rand(tokens, 1, 1, 128, device="cuda")

    def make() -> Callable[[], torch.Tensor]:
        x = random(tokens, 1, heads, 128, grad=True)
        if fused:
            return lambda: apply_rotary_pos_emb(x, freqs, tensor_format="sbhd", fused=True)
        return lambda: _apply_rotary_pos_emb_bshd(x, freqs)

    return rates(*spread(make, 2 * size), 2 * size, 2 * size)


def loss(tokens: int, vocabulary: int) -> Row:
    size = 2 * tokens * vocabulary
    target = torch.randint(0, vocabulary, (tokens, 1), device="cuda")
    x = random(tokens, 1, vocabulary, grad=True)
    forward = timed(lambda: parallel_cross_entropy(x, target))
    both = timed(lambda: parallel_cross_entropy(x, target).sum().backward())
    return rates(forward, both - forward, 3 * size, 2 * size)


def cast(tokens: int, width: int, recipe: str, columns: bool, dims: int = 1) -> Row:
    kind = tex.DType.kFloat8E4M3
    quantizer: Any = (
        Float8CurrentScalingQuantizer(kind, "cuda", rowwise=True, columnwise=columns)
        if recipe == "tensorwise"
        else Float8BlockQuantizer(kind, rowwise=True, columnwise=columns, block_scaling_dim=dims)
    )
    n = tokens * width
    sets = [random(tokens, width) for _ in range(copies(2 * n))]
    moved = n * (2 * (2 if recipe == "tensorwise" else 1) + 1 + columns)
    ms = timed(rotating([lambda x=x: quantizer(x) for x in sets]))
    return {"forward_ms": ms, "forward_bytes": moved, "forward_gbps": moved / ms / 1e6}


def copy(tokens: int, width: int) -> Row:
    sets = [(random(tokens, width), random(tokens, width)) for _ in range(copies(4 * tokens * width))]
    ms = timed(rotating([lambda a=a, b=b: a.copy_(b) for a, b in sets]))
    return {"forward_ms": ms, "forward_bytes": 4 * tokens * width, "forward_gbps": 4e-6 * tokens * width / ms}


SIZES = [(1024, 4096), (4096, 2048), (4096, 7168), (8192, 4096), (8192, 8192), (16384, 4096), (32768, 2048)]


def elementwise() -> Iterator[Case]:
    """Kernels that read and write their operands once."""
    one: list[tuple[str, Callable[..., Row], list[tuple[int, int]]]] = [
        ("copy", copy, SIZES),
        ("rms_norm", norm, [*SIZES, (4096, 1536), (4096, 512), (131072, 128)]),
        ("swiglu", swiglu, [(4096, 18432), (8192, 14336), (8192, 7168), (8192, 3584), (4096, 2048)]),
        ("weighted_swiglu", weighted_swiglu, [(8192, 768), (32768, 768), (131072, 768), (32768, 2048)]),
        ("bias_dropout_add", dropout_add, SIZES),
        ("rope", rope, [(4096, 32), (8192, 32), (8192, 8), (4096, 4), (4096, 128)]),
        ("rope_fused", lambda t, h: rope(t, h, True), [(4096, 32), (8192, 32), (8192, 8), (4096, 4)]),
        ("cross_entropy", loss, [(4096, 151936), (8192, 128256), (4096, 129280)]),
        ("cast.tensorwise.rows", lambda t, w: cast(t, w, "tensorwise", False), SIZES),
        ("cast.tensorwise", lambda t, w: cast(t, w, "tensorwise", True), SIZES),
        ("cast.blockwise.rows", lambda t, w: cast(t, w, "blockwise", False), SIZES),
        ("cast.blockwise", lambda t, w: cast(t, w, "blockwise", True), SIZES),
        ("cast.blockwise.weight", lambda t, w: cast(t, w, "blockwise", True, 2), SIZES),
    ]
    for name, run, sizes in one:
        for rows, width in sizes:
            yield (
                {"kernel": name, "rows": rows, "width": width},
                lambda run=run, rows=rows, width=width: run(rows, width),
            )


def permutation() -> Iterator[Case]:
    """Tokens to the order of experts and back; chunks of experts of 8 ranks sorted by expert."""
    for width, topk, experts in ((2048, 8, 128), (4096, 8, 128), (7168, 8, 256), (2880, 4, 128)):
        for tokens in (1024, 4096, 8192, 16384):
            yield (
                {"tokens": tokens, "width": width, "topk": topk, "experts": experts},
                lambda a=(tokens, width, topk, experts): permuted(*a),
            )


def first_of(result: Any) -> torch.Tensor:
    """The tensor that a call returned, or the first of several."""
    return result[0] if isinstance(result, tuple) else result


def permuted(tokens: int, width: int, topk: int, experts: int) -> Row:
    chosen = torch.rand(tokens, experts, device="cuda").topk(topk, dim=1).indices
    routing = torch.zeros(tokens, experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)
    probs = (torch.rand(tokens, experts, device="cuda") * routing).requires_grad_(True)
    x, y = random(tokens, width, grad=True), random(tokens * topk, width, grad=True)
    permute = lambda: moe_permute_with_probs(x, probs, routing, tokens * topk)
    order, _, row_map = permute()
    unpermute = lambda: moe_unpermute(y, row_map, restore_shape=x.shape)
    ranks = 8
    split = torch.full((experts,), tokens * topk // experts, dtype=torch.int32, device="cuda")
    index = torch.arange(experts, device="cuda", dtype=torch.int32).view(ranks, -1).T.reshape(-1).contiguous()
    weights = torch.rand(tokens * topk, device="cuda", requires_grad=True)
    sort = lambda: moe_sort_chunks_by_index_with_probs(y, weights, split, index)
    dy, dx = torch.randn_like(order), random(tokens, width)
    out: Row = {}
    for name, forward, back in (("permute", permute, dy), ("unpermute", unpermute, dx), ("sort", sort, dy)):
        head = lambda forward=forward: first_of(forward())
        first = timed(forward, 6)
        second = timed(lambda head=head, back=back: torch.autograd.backward(head(), back), 6) - first
        moved = 2 * width * tokens * (topk + 1) if name != "sort" else 4 * width * tokens * topk
        out |= {f"{name}_{k}": v for k, v in rates(first, second, moved, moved).items()}
    return out


PARTS = {"elementwise": elementwise, "permutation": permutation}
