"""Data in the results of faked collectives, so that what follows computes on values and not on empty memory.

A fake process group leaves the output of a reduce-scatter, an all-to-all and a receive as it was allocated: mostly zeros,
on which matrix products draw less power and run faster. Here the output is copied from the input; the copies are timed.
Import it before the stack, which keeps references to these functions.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

_events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
_bytes = [0]
_sent: dict[tuple[int, torch.dtype], weakref.ref[torch.Tensor]] = {}


def _fill(out: torch.Tensor, source: torch.Tensor) -> None:
    if (
        out.data_ptr() == source.data_ptr()
        or not out.is_cuda
        or (not out.is_floating_point() and out.dtype != torch.uint8)
    ):
        return
    with torch.no_grad():
        to, of = out.reshape(-1), source.reshape(-1)
        n = min(to.numel(), of.numel())
        if not n or to.data_ptr() != out.data_ptr():
            return
        timed = not torch.cuda.is_current_stream_capturing()
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if timed:
            pair[0].record()
        for begin in range(0, to.numel(), n):
            part = to[begin : begin + n]
            part.copy_(of[: part.numel()])
        if timed:
            pair[1].record()
            _events.append(pair)
        _bytes[0] += 2 * to.numel() * to.element_size()


def taken() -> dict[str, float]:
    """Milliseconds and GiB moved by the copies since the last call; the GPU must be done."""
    out = {"ms": round(sum(a.elapsed_time(b) for a, b in _events), 3), "gib": round(_bytes[0] / 2**30, 3)}
    _events.clear()
    _bytes[0] = 0
    return out


def install() -> None:
    """Wrap the functions of `torch.distributed`."""
    scatter, exchange, send, receive, batch = (
        dist.reduce_scatter_tensor,
        dist.all_to_all_single,
        dist.isend,
        dist.irecv,
        dist.batch_isend_irecv,
    )

    def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, *a: Any, **k: Any) -> Any:
        work = scatter(output, input, *a, **k)
        if input.untyped_storage().data_ptr() != output.untyped_storage().data_ptr():
            _fill(output, input)
        return work

    def all_to_all_single(output: torch.Tensor, input: torch.Tensor, *a: Any, **k: Any) -> Any:
        work = exchange(output, input, *a, **k)
        _fill(output, input)
        return work

    def isend(tensor: torch.Tensor, *a: Any, **k: Any) -> Any:
        _sent[tensor.numel(), tensor.dtype] = weakref.ref(tensor)
        return send(tensor, *a, **k)

    def irecv(tensor: torch.Tensor, *a: Any, **k: Any) -> Any:
        work = receive(tensor, *a, **k)
        sent = _sent.pop((tensor.numel(), tensor.dtype), None)
        source = sent and sent()
        if source is not None:
            _fill(tensor, source)
        return work

    def batch_isend_irecv(ops: list[Any]) -> Any:
        work = batch(ops)
        sources = [op.tensor for op in ops if op.op is send]
        for op in ops:
            if op.op is receive:
                same = [s for s in sources if s.numel() == op.tensor.numel() and s.dtype == op.tensor.dtype]
                if same:
                    _fill(op.tensor, same[0])
        return work

    point = dist.P2POp

    def p2p_op(op: Any, *a: Any, **k: Any) -> Any:
        return point({isend: send, irecv: receive}.get(op, op), *a, **k)

    dist.P2POp = p2p_op
    dist.reduce_scatter_tensor = reduce_scatter_tensor
    dist.all_to_all_single = all_to_all_single
    dist.isend, dist.irecv, dist.batch_isend_irecv = isend, irecv, batch_isend_irecv
