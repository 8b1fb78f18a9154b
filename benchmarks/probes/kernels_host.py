"""What the host pays for a call of a module, at sizes where the GPU has little to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import transformer_engine.pytorch as te
from kernels import Row, host_us, random
from kernels_compute import RECIPES
from megatron.core.fusions.fused_bias_dropout import bias_dropout_add_fused_train
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
from transformer_engine.pytorch.permutation import moe_permute_with_probs, moe_unpermute

Case = tuple[Row, Callable[[], Row]]
WIDTH = 128


def main_grads(module: torch.nn.Module) -> torch.nn.Module:
    """The module, its weights with a gradient buffer as the stack gives them."""
    for p in module.parameters():
        p.main_grad = torch.zeros(p.shape, device="cuda")  # type: ignore[attr-defined]
    return module


def modules() -> Iterator[tuple[str, Callable[[], Callable[[], Any]], str]]:
    """Names, how to build a forward, and the recipe."""
    linear = {"bias": False, "params_dtype": torch.bfloat16, "fuse_wgrad_accumulation": True}
    x = random(128, 1, WIDTH, grad=True)

    def on(build: Callable[[], torch.nn.Module], *arguments: Any) -> Callable[[], Callable[[], Any]]:
        def prepared() -> Callable[[], Any]:
            module = main_grads(build())
            return lambda: module(*arguments)

        return prepared

    for recipe in RECIPES:
        normed = lambda: te.LayerNormLinear(WIDTH, WIDTH, normalization="RMSNorm", **linear)
        yield "LayerNormLinear", on(normed, x), recipe
        yield "Linear", on(lambda: te.Linear(WIDTH, WIDTH, **linear), x), recipe
        for experts in (1, 2, 4, 8, 16, 64):
            several = lambda n=experts: te.GroupedLinear(n, WIDTH, WIDTH, **linear)
            y = random(128 * experts, WIDTH, grad=True)
            yield f"GroupedLinear.{experts}", on(several, y, [128] * experts), recipe
    yield "RMSNorm", on(lambda: te.RMSNorm(WIDTH, dtype=torch.bfloat16).cuda(), x), "bf16"
    q = random(128, 1, 4, 64, grad=True)
    core = te.DotProductAttention(4, 64, qkv_format="sbhd", attn_mask_type="causal").cuda()
    yield "DotProductAttention", lambda: lambda: core(q, q, q), "bf16"
    gate = random(128, 1, 2 * WIDTH, grad=True)
    yield "bias_swiglu", lambda: lambda: bias_swiglu_impl(gate, None, False, False), "bf16"
    yield "bias_dropout_add", lambda: lambda: bias_dropout_add_fused_train((x, None), x, 0.0), "bf16"
    freqs = torch.rand(128, 1, 1, 64, device="cuda")
    yield "rope", lambda: lambda: _apply_rotary_pos_emb_bshd(q, freqs), "bf16"
    yield "add", lambda: lambda: x + x, "bf16"
    tokens, experts = 128, 16
    routing = torch.zeros(tokens, experts, dtype=torch.bool, device="cuda")
    routing[:, :2] = True
    probs = torch.rand(tokens, experts, device="cuda", requires_grad=True)
    flat = random(tokens, WIDTH, grad=True)
    yield "permute", lambda: lambda: moe_permute_with_probs(flat, probs, routing, 2 * tokens)[0], "bf16"
    row_map = moe_permute_with_probs(flat, probs, routing, 2 * tokens)[2]
    back = random(2 * tokens, WIDTH, grad=True)
    yield "unpermute", lambda: lambda: moe_unpermute(back, row_map, restore_shape=flat.shape), "bf16"


def host() -> Iterator[Case]:
    """Forward and backward of one module, one call after another."""
    for name, build, recipe in modules():
        yield (
            {"module": name, "recipe": recipe},
            lambda build=build, recipe=recipe: module_case(build(), recipe),
        )


def module_case(forward: Callable[[], Any], recipe: str) -> Row:
    def call() -> Any:
        with te.autocast(enabled=True, recipe=RECIPES[recipe]) if RECIPES[recipe] else nullcontext():
            return forward()

    grad = torch.randn_like(call())
    first = host_us(call)
    both = host_us(lambda: torch.autograd.backward(call(), grad))
    return {"forward_host_us": first, "backward_host_us": both - first}


def replay() -> Iterator[Case]:
    """Host and GPU time of a captured graph by its number of small kernels."""
    for kernels in (1, 10, 30, 100, 300, 1000):
        yield {"kernels": kernels}, lambda n=kernels: replay_case(n)


def replay_case(kernels: int) -> Row:
    x, graph = random(1024), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            x.add_(1.0)
    both = host_us(graph.replay, 100)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        graph.replay()
    launch = (time.perf_counter() - began) / 10 * 1e6
    torch.cuda.synchronize()
    return {"launch_host_us": launch, "replay_us": both, "replay_us_a_kernel": both / kernels}


PARTS = {"host": host, "replay": replay}
