"""The order of forward and backward passes on one pipeline rank, and what is in flight before each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class State(NamedTuple):
    """What a pipeline rank holds just before one pass.

    Parameters
    ----------
    forward : whether the pass is a forward.
    chunk : the virtual stage of the rank that it works on.
    in_flight : micro-batches held for each chunk, shape (vpp,).
    stale : 1 for a chunk whose last pass was a backward, shape (vpp,).
    """

    forward: bool
    chunk: int
    in_flight: tuple[int, ...]
    stale: tuple[int, ...]


def passes(pp: int, vpp: int, rank: int, microbatches: int, overlap: bool) -> list[tuple[bool, int]]:
    """The passes of one rank in order, as (is forward, chunk): 1F1B, or interleaved 1F1B in groups of ``pp``.

    ``overlap`` is expert-parallel overlap, which keeps one more forward in flight.
    Source: NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py.
    """
    total = microbatches * vpp
    warmup = pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp
    warmup = min(warmup + int(overlap), total)
    order: list[int] = []
    for group in range(0, microbatches, pp):
        for chunk in range(vpp):
            order += [chunk] * min(pp, microbatches - group)
    if vpp == 1:
        order = [0] * total
    out = [(True, c) for c in order[:warmup]]
    for i in range(total - warmup):
        out += [(True, order[warmup + i]), (False, vpp - 1 - order[i])]
    return out + [(False, vpp - 1 - c) for c in order[total - warmup :]]


def representative(pp: int, vpp: int, microbatches: int) -> int:
    """A number of micro-batches, at most the given one, whose passes reach every state of the longer run."""
    return min(microbatches, 4 * pp if vpp > 1 else pp + 3)


@lru_cache(maxsize=65536)
def states(pp: int, vpp: int, rank: int, microbatches: int, overlap: bool) -> tuple[State, ...]:
    """The distinct states of one rank, without those that hold no more than another for the same pass.

    ``microbatches`` should be `representative` of the run, which keeps the cache small.
    """
    seq = passes(pp, vpp, rank, microbatches, overlap)
    forward = np.array([f for f, _ in seq])
    chunk = np.array([c for _, c in seq])
    hot = np.zeros((len(seq), vpp), np.int64)
    hot[np.arange(len(seq)), chunk] = np.where(forward, 1, -1)
    before = np.cumsum(hot, axis=0) - hot
    index = np.arange(1, len(seq) + 1)[:, None]
    last_forward = np.maximum.accumulate(np.where(hot > 0, index, 0), axis=0)
    last_backward = np.maximum.accumulate(np.where(hot < 0, index, 0), axis=0)
    stale_after = (last_backward > last_forward).astype(np.int64)
    stale = np.vstack([np.zeros((1, vpp), np.int64), stale_after[:-1]])
    table = np.unique(np.column_stack([forward.astype(np.int64), chunk, before, stale]), axis=0)
    kept: list[State] = []
    for is_forward in (1, 0):
        for c in range(vpp):
            rows = table[(table[:, 0] == is_forward) & (table[:, 1] == c)][:, 2:]
            for row in undominated(rows):
                kept.append(State(bool(is_forward), c, tuple(row[:vpp].tolist()), tuple(row[vpp:].tolist())))
    return tuple(kept)


def undominated(rows: Ints) -> Ints:
    """The rows that no other row equals or exceeds in every column, in a stable order."""
    if len(rows) < 2:
        return rows
    rows = np.unique(rows, axis=0)
    order = np.lexsort((np.arange(len(rows)), -rows.sum(axis=1)))
    rows = rows[order]
    keep: list[int] = []
    for i in range(len(rows)):
        if keep and (rows[keep] >= rows[i]).all(axis=1).any():
            continue
        keep.append(i)
    return rows[keep]
