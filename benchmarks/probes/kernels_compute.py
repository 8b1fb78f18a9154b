"""Kernels bound by arithmetic: dense and grouped matrix products, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from kernels import Row, copies, random, rotating, sustained, timed
from transformer_engine.common.recipe import Float8BlockScaling, Float8CurrentScaling
from transformer_engine.pytorch.cpp_extensions import general_gemm
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

Case = tuple[Row, Callable[[], Row]]
E4M3, E5M2 = tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2

# model, layer, tokens, outputs, inputs
DENSE = [
    ("l8", "qkv", 8192, 6144, 4096),
    ("l8", "proj", 8192, 4096, 4096),
    ("l8", "fc1", 8192, 28672, 4096),
    ("l8", "fc2", 8192, 4096, 14336),
    ("l8", "logits", 8192, 128256, 4096),
    ("l8.tp2", "fc1", 8192, 14336, 4096),
    ("l8.cp2", "fc1", 4096, 28672, 4096),
    ("l70.tp8", "qkv", 8192, 1280, 8192),
    ("l70.tp8", "proj", 8192, 8192, 1024),
    ("l70.tp8", "fc1", 8192, 7168, 8192),
    ("l70.tp8", "fc2", 8192, 8192, 3584),
    ("l70.tp4", "fc1", 8192, 14336, 8192),
    ("l70.tp4", "fc2", 8192, 8192, 7168),
    ("dsv3", "q_down", 4096, 1536, 7168),
    ("dsv3", "q_up", 4096, 24576, 1536),
    ("dsv3", "kv_down", 4096, 576, 7168),
    ("dsv3", "kv_up", 4096, 32768, 512),
    ("dsv3", "proj", 4096, 7168, 16384),
    ("dsv3", "fc1", 4096, 36864, 7168),
    ("dsv3", "fc2", 4096, 7168, 18432),
    ("dsv3", "shared_fc1", 4096, 4096, 7168),
    ("dsv3", "shared_fc2", 4096, 7168, 2048),
    ("q30", "qkv", 4096, 5120, 2048),
    ("q30", "proj", 4096, 2048, 4096),
    ("q30", "logits", 4096, 151936, 2048),
]


def quantized(tensor: torch.Tensor, recipe: str, kind: Any, dims: int = 1) -> Any:
    """The tensor as the recipe would hand it to a matrix product."""
    if recipe == "bf16":
        return tensor
    if recipe == "tensorwise":
        return Float8CurrentScalingQuantizer(kind, "cuda", rowwise=True, columnwise=True)(tensor)
    return Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dims)(tensor)


def product(recipe: str, way: str, tokens: int, n: int, k: int, zeros: bool) -> Callable[[], Any]:
    """One matrix product of a linear layer, over fresh operands."""
    std = 0.0 if zeros else 1.0
    gradient = E5M2 if recipe == "tensorwise" else E4M3
    split = recipe == "blockwise" or way != "forward"
    if way == "forward":
        w, x = (
            quantized(random(n, k, std=0.02 * std), recipe, E4M3, 2),
            quantized(random(tokens, k, std=std), recipe, E4M3),
        )
        return lambda: general_gemm(w, x, out_dtype=torch.bfloat16, layout="TN", use_split_accumulator=split)
    dy = quantized(random(tokens, n, std=1e-3 * std), recipe, gradient)
    if way == "dgrad":
        w = quantized(random(n, k, std=0.02 * std), recipe, E4M3, 2)
        return lambda: general_gemm(
            w, dy, out_dtype=torch.bfloat16, layout="NN", grad=True, use_split_accumulator=split
        )
    x, main = quantized(random(tokens, k, std=std), recipe, E4M3), torch.zeros(n, k, device="cuda")
    return lambda: general_gemm(
        x,
        dy,
        out_dtype=torch.float32,
        layout="NT",
        grad=True,
        out=main,
        accumulate=True,
        use_split_accumulator=split,
    )


def dense() -> Iterator[Case]:
    """Every product alone for half a second and more, bf16 and FP8; two of them with zeros."""
    for recipe in ("bf16", "tensorwise", "blockwise"):
        for model, layer, tokens, n, k in DENSE:
            if recipe != "bf16" and (layer == "logits" or "cp2" in model or "tp2" in model):
                continue
            if recipe == "blockwise" and model not in ("l8", "dsv3"):
                continue
            for way in ("forward", "dgrad", "wgrad"):
                for zeros in (False, True) if (model, layer) == ("l8", "fc1") else (False,):
                    yield dense_case(recipe, model, layer, tokens, n, k, way, zeros)


def dense_case(
    recipe: str, model: str, layer: str, tokens: int, n: int, k: int, way: str, zeros: bool
) -> Case:
    """One product, as a case."""
    what = {
        "recipe": recipe,
        "model": model,
        "layer": layer,
        "tokens": tokens,
        "outputs": n,
        "inputs": k,
        "pass": way,
        "operands": "zeros" if zeros else "random",
    }

    def run() -> Row:
        size = 2 * (tokens * k + n * k + tokens * n)
        call = rotating([product(recipe, way, tokens, n, k, zeros) for _ in range(copies(size))])
        ms, repeats = sustained(call, 0.6 if way == "forward" else 0.3)
        return {"ms": ms, "repeats": repeats, "tflops": 2e-9 * tokens * n * k / ms}

    return what, run


# model, layer, outputs, inputs, local experts
GROUPED = [
    ("q30", "fc1", 1536, 2048, (16, 64)),
    ("q30", "fc2", 2048, 768, (16, 64)),
    ("q235", "fc1", 3072, 4096, (4, 16)),
    ("q235", "fc2", 4096, 1536, (4, 16)),
    ("dsv3", "fc1", 4096, 7168, (8,)),
    ("dsv3", "fc2", 7168, 2048, (8,)),
    ("gptoss", "fc1", 5760, 2880, (16,)),
    ("gptoss", "fc2", 2880, 2880, (16,)),
]
RECIPES = {
    "bf16": None,
    "tensorwise": Float8CurrentScaling(),
    "blockwise": Float8BlockScaling(),
}


def grouped() -> Iterator[Case]:
    """A grouped linear layer as a module; in FP8 its casts count too."""
    for recipe, tokens_an_expert in (
        ("bf16", (64, 256, 512, 1024, 2048, 4096)),
        ("blockwise", (256, 1024, 4096)),
        ("tensorwise", (256, 1024, 4096)),
    ):
        for model, layer, n, k, experts in GROUPED:
            for count in experts if recipe == "bf16" else experts[:1]:
                for tokens in tokens_an_expert:
                    if recipe != "bf16" and (n % 128 or k % 128):
                        continue
                    if tokens * count <= 262144:
                        yield grouped_case(recipe, model, layer, n, k, count, tokens)


def grouped_case(recipe: str, model: str, layer: str, n: int, k: int, experts: int, tokens: int) -> Case:
    """One grouped layer, as a case."""
    what = {
        "recipe": recipe,
        "model": model,
        "layer": layer,
        "outputs": n,
        "inputs": k,
        "experts": experts,
        "tokens_an_expert": tokens,
    }

    def run() -> Row:
        layer_of = te.GroupedLinear(
            experts, k, n, bias=False, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True
        )
        weights = [p for name, p in layer_of.named_parameters() if name.startswith("weight")]
        for weight in weights:
            weight.data.normal_(0, 0.02)
            weight.main_grad = torch.zeros(n, k, device="cuda")
        splits = [tokens] * experts
        x, dy = random(tokens * experts, k, grad=True), random(tokens * experts, n, std=1e-3)
        context = lambda: (
            te.autocast(enabled=True, recipe=RECIPES[recipe]) if RECIPES[recipe] else nullcontext()
        )

        def forward() -> torch.Tensor:
            with context():
                return layer_of(x, splits)

        def backward() -> None:
            torch.autograd.backward(forward(), dy)
            x.grad = None
            for weight in weights:
                weight.grad = None

        most = 3 if experts > 16 else 8
        first = timed(forward, most)
        all_three = timed(backward, most)
        for weight in weights:
            weight.requires_grad_(False)
        two = timed(backward, most)
        flops = 2e-9 * tokens * experts * n * k
        each = {"forward": first, "dgrad": two - first, "wgrad": all_three - two}
        return {
            **{f"{way}_ms": ms for way, ms in each.items()},
            **{f"{way}_tflops": flops / ms for way, ms in each.items() if ms > 0},
        }

    return what, run


# name, heads, groups, head dims of queries and values, window
ATTENTION = [
    ("gqa", 32, 8, 128, 128, None),
    ("gqa", 8, 1, 128, 128, None),
    ("gqa", 32, 4, 128, 128, None),
    ("mla", 128, 128, 192, 128, None),
    ("mla", 8, 8, 192, 128, None),
    ("mla", 4, 4, 192, 128, None),
    ("dim64", 64, 8, 64, 64, None),
    ("dim64.window", 64, 8, 64, 64, (128, 0)),
    ("dim256", 16, 2, 256, 256, None),
]


def attention() -> Iterator[Case]:
    """Causal attention of one sequence, fused as the stack chooses."""
    for name, heads, groups, qk, v, window in ATTENTION:
        for length in (4096, 8192, 32768, 131072):
            if heads * length <= (32 if name == "gqa" else 16) * 131072 and not (
                "dim" in name and length > 32768
            ):
                yield attention_case(name, heads, groups, qk, v, window, length)
    yield attention_case("mla", 128, 128, 192, 128, None, 32768)


def attention_case(
    name: str, heads: int, groups: int, qk: int, v: int, window: tuple[int, int] | None, length: int
) -> Case:
    """One attention, as a case."""
    what = {
        "attention": name,
        "heads": heads,
        "groups": groups,
        "qk_dim": qk,
        "v_dim": v,
        "window": window and window[0],
        "tokens": length,
    }

    def run() -> Row:
        sink = {"softmax_type": "learnable"} if window else {}
        core = te.DotProductAttention(
            heads,
            (qk, v),
            num_gqa_groups=groups,
            qkv_format="sbhd",
            attn_mask_type="causal",
            window_size=window,
            **sink,
        ).cuda()
        q = random(length, 1, heads, qk, grad=True)
        k, value = random(length, 1, groups, qk, grad=True), random(length, 1, groups, v, grad=True)
        dy = random(length, 1, heads * v, std=1e-3)
        forward = lambda: core(q, k, value)
        first = timed(forward, 12, 0.3)
        second = timed(lambda: torch.autograd.backward(forward(), dy), 12, 0.3) - first
        pairs = length * length / 2 if window is None else length * 128
        flops = 2e-9 * pairs * heads * (qk + v)
        return {
            "forward_ms": first,
            "backward_ms": second,
            "forward_tflops": flops / first,
            "backward_tflops": 2.5 * flops / second,
        }

    return what, run


PARTS = {"dense": dense, "grouped": grouped, "attention": attention}
