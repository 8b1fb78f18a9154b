"""Time single kernels of the training stack on one GPU, with random operands.

Usage: ``python kernels.py OUT.jsonl SECONDS [PART...]``; parts are those of `PARTS`, all by default. A row a line; a kernel
that fails leaves a row with ``error``. Times are of the GPU unless the name says ``host``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from clocks import Clocks

Call = Callable[[], Any]
Row = dict[str, Any]
AHEAD_CYCLES_A_MS = 1_900_000
L2_BYTES = 256 << 20


def gpu_ms(call: Call, repeats: int, ahead_ms: float = 0.0) -> float:
    """Milliseconds of the GPU a call; the GPU first waits ``ahead_ms``, so that the host keeps ahead of it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if ahead_ms:
        torch.cuda._sleep(int(ahead_ms * AHEAD_CYCLES_A_MS))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def host_us(call: Call, repeats: int = 200) -> float:
    """Microseconds of the host a call, the GPU having less to do."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats * 1e6


def timed(call: Call, most: int = 12, seconds: float = 0.05) -> float:
    """Milliseconds of the GPU a call after warming up; the launches of all repeats are queued before the first runs."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    host_ms = (time.perf_counter() - began) * 1e3
    torch.cuda.synchronize()
    once = gpu_ms(call, 1, host_ms * 1.5)
    repeats = max(2, min(most, int(seconds * 1e3 / max(once, 1e-3))))
    ahead = 0.0 if once > 5 * host_ms + 1 else min(200.0, host_ms * repeats * 1.3 + 0.5)
    return gpu_ms(call, repeats, ahead)


def sustained(call: Call, seconds: float) -> tuple[float, int]:
    """Milliseconds a call over ``seconds`` of one kernel after another, the clock having settled."""
    once = timed(call, 5)
    repeats = max(3, int(seconds * 1e3 / once))
    gpu_ms(call, max(1, repeats // 3))
    return gpu_ms(call, repeats), repeats


def rotating(calls: list[Call]) -> Call:
    """One call that takes the next of several, so that operands do not stay in the cache."""
    state = [0]

    def call() -> None:
        state[0] = (state[0] + 1) % len(calls)
        calls[state[0]]()

    return call


def copies(n_bytes: float) -> int:
    """How many sets of operands of so many bytes outgrow the cache."""
    return max(1, min(8, int(L2_BYTES // max(1.0, n_bytes)) + 1))


def random(*shape: int, std: float = 1.0, grad: bool = False) -> torch.Tensor:
    """Random bf16 values; a gradient is dropped as it comes, so that no backward adds to an earlier one."""
    out = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * std).requires_grad_(grad)
    if grad:
        out.register_post_accumulate_grad_hook(lambda tensor: setattr(tensor, "grad", None))
    return out


def both_ways(forward: Callable[[], torch.Tensor], most: int = 12) -> tuple[float, float]:
    """Milliseconds of the GPU of the forward, and of the backward."""
    out = forward()
    grad = torch.randn_like(out)
    first = timed(forward, most)
    second = timed(lambda: torch.autograd.backward(forward(), grad), most)
    return first, second - first


def main(out: Path, seconds: float, wanted: list[str]) -> None:
    """Run parts until the seconds are used up, and append their rows."""
    import kernels_compute
    import kernels_host
    import kernels_memory
    import kernels_scan

    parts: dict[str, Callable[[], Iterator[tuple[Row, Callable[[], Row]]]]] = {
        **kernels_compute.PARTS,
        **kernels_memory.PARTS,
        **kernels_host.PARTS,
        **kernels_scan.PARTS,
    }
    end = time.time() + seconds
    clocks = Clocks("0")
    with out.open("a", buffering=1) as lines:
        for name in wanted or list(parts):
            began_part = time.time()
            cases = parts[name]()
            while time.time() < end:
                what: Row = {}
                began = time.time()
                try:
                    case = next(cases, None)
                    if case is None:
                        break
                    what, run = case
                    row = {"part": name, **what, **run()}
                except (
                    RuntimeError,
                    TypeError,
                    ValueError,
                    AssertionError,
                    AttributeError,
                    ImportError,
                ) as error:
                    row = {"part": name, **what, "error": f"{type(error).__name__}: {error}"[:300]}
                    print(json.dumps(row)[:400], flush=True)
                row["clocks"] = clocks.between([(began, time.time())])
                lines.write(json.dumps(row) + "\n")
            torch.cuda.empty_cache()
            print(name, round(time.time() - began_part, 1), "s", flush=True)
    clocks.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
