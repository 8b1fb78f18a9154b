"""Scans of Mamba-2 and of the gated delta net, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from kernels import Row, both_ways, random

Case = tuple[Row, Callable[[], Row]]


def mamba() -> Iterator[Case]:
    """Mamba-2 by heads, state and length; heads of 64, chunks of 128."""
    for heads, groups, state in ((64, 8, 128), (32, 4, 128), (256, 8, 256)):
        for tokens in (4096, 8192, 32768):
            what = {"heads": heads, "groups": groups, "state": state, "tokens": tokens}
            yield what, lambda w=what: mamba_case(**w)


def mamba_case(heads: int, groups: int, state: int, tokens: int) -> Row:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x = random(1, tokens, heads, 64, grad=True)
    dt = random(1, tokens, heads, grad=True)
    a = -torch.rand(heads, device="cuda").requires_grad_(True)
    b, c = random(1, tokens, groups, state, grad=True), random(1, tokens, groups, state, grad=True)
    d, bias = torch.rand(heads, device="cuda", requires_grad=True), torch.rand(heads, device="cuda")
    forward = lambda: mamba_chunk_scan_combined(x, dt, a, b, c, 128, D=d, dt_bias=bias, dt_softplus=True)
    first, second = both_ways(forward, 5)
    return {"forward_ms": first, "backward_ms": second}


def delta_net() -> Iterator[Case]:
    """The gated delta rule by heads and length; heads of 128."""
    for heads in (32, 16):
        for tokens in (4096, 8192, 32768):
            yield {"heads": heads, "dim": 128, "tokens": tokens}, lambda h=heads, t=tokens: delta_case(h, t)


def delta_case(heads: int, tokens: int) -> Row:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, k = random(1, tokens, heads, 128, grad=True), random(1, tokens, heads, 128, grad=True)
    v = random(1, tokens, heads, 128, grad=True)
    g = torch.nn.functional.logsigmoid(torch.randn(1, tokens, heads, device="cuda")).requires_grad_(True)
    beta = torch.rand(1, tokens, heads, device="cuda").bfloat16().requires_grad_(True)
    forward = lambda: chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]
    first, second = both_ways(forward, 5)
    return {"forward_ms": first, "backward_ms": second}


PARTS = {"mamba": mamba, "delta_net": delta_net}
