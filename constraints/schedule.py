"""The order of forward and backward passes on one pipeline rank, and what is in flight before each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class States(NamedTuple):
    """What a pipeline rank holds just before its passes of one kind.

    Parameters
    ----------
    forward : whether the passes are forwards.
    chunk : the virtual stage of the rank that they work on.
    stale : whether the last pass of that chunk was a backward.
    in_flight : micro-batches held for each chunk, shape (states, vpp).
    others : 1 for another chunk whose last pass was a backward, shape (states, vpp).
    """

    forward: bool
    chunk: int
    stale: bool
    in_flight: Ints
    others: Ints


def passes(pp: int, vpp: int, rank: int, microbatches: int, overlap: bool) -> list[tuple[bool, int]]:
    """The passes of one rank in order, as (is forward, chunk): 1F1B, or interleaved 1F1B in groups of ``pp``.

    ``overlap`` is expert-parallel overlap, which begins with one forward more under interleaving. From there on a
    forward fills layers as the backward beside it empties them, so the backward comes first here.
    Source: NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py.
    """
    total = microbatches * vpp
    warmup = pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp
    warmup = min(warmup + int(overlap and vpp > 1), total)
    order: list[int] = []
    for group in range(0, microbatches, pp):
        for chunk in range(vpp):
            order += [chunk] * min(pp, microbatches - group)
    if vpp == 1:
        order = [0] * total
    out = [(True, c) for c in order[:warmup]]
    for i in range(total - warmup):
        pair = [(True, order[warmup + i]), (False, vpp - 1 - order[i])]
        out += pair[::-1] if overlap and vpp > 1 else pair
    return out + [(False, vpp - 1 - c) for c in order[total - warmup :]]


def representative(pp: int, vpp: int, microbatches: int) -> int:
    """A number of micro-batches, at most the given one, whose passes reach every state of the longer run."""
    return min(microbatches, 4 * pp if vpp > 1 else pp + 3)


class Walk(NamedTuple):
    """The passes of a rank in order, and what it holds just before each.

    Parameters
    ----------
    forward, chunk : (passes,) whether it is a forward, and the virtual stage of the rank that it works on.
    before : (passes, vpp) micro-batches held for each chunk.
    stale : (passes, vpp) 1 for a chunk whose last pass was a backward.
    """

    forward: NDArray[np.bool_]
    chunk: Ints
    before: Ints
    stale: Ints


@lru_cache(maxsize=8192)
def walk(pp: int, vpp: int, rank: int, microbatches: int, overlap: bool) -> Walk:
    """The passes of one rank; ``microbatches`` should be `representative` of the run."""
    seq = passes(pp, vpp, rank, microbatches, overlap)
    forward = np.array([f for f, _ in seq])
    chunk = np.array([c for _, c in seq])
    hot = np.zeros((len(seq), vpp), np.int64)
    hot[np.arange(len(seq)), chunk] = np.where(forward, 1, -1)
    before = np.cumsum(hot, axis=0) - hot
    index = np.arange(1, len(seq) + 1)[:, None]
    last_forward = np.maximum.accumulate(np.where(hot > 0, index, 0), axis=0)
    last_backward = np.maximum.accumulate(np.where(hot < 0, index, 0), axis=0)
    stale = np.zeros((len(seq), vpp), np.int64)
    stale[1:] = (last_backward > last_forward)[:-1]
    return Walk(forward, chunk, before, stale)


@lru_cache(maxsize=8192)
def states(pp: int, vpp: int, rank: int, microbatches: int, overlap: bool) -> tuple[States, ...]:
    """The states of one rank, by kind of pass.

    ``microbatches`` should be `representative` of the run, which keeps the cache small.
    """
    forward, chunk, before, stale = walk(pp, vpp, rank, microbatches, overlap)
    out: list[States] = []
    for way in (True, False):
        for c in range(vpp):
            for old in (False, True):
                mine = (forward == way) & (chunk == c) & (stale[:, c] == old)
                if mine.any():
                    others = stale[mine].copy()
                    others[:, c] = 0
                    out.append(States(way, c, old, before[mine], others))
    return tuple(out)


def undominated(rows: Ints) -> Ints:
    """The rows that no other row equals or exceeds in every column, largest sum first."""
    return rows[undominated_index(rows)]


def undominated_index(rows: Ints) -> Ints:
    """Positions of `undominated` rows; of equal rows the first one is kept."""
    if len(rows) < 2:
        return np.arange(len(rows))
    left = np.argsort(-rows.sum(axis=1), kind="stable")
    live = rows[:, (rows != rows[0]).any(axis=0)]
    keep: list[int] = []
    while len(left):
        best = left[0]
        keep.append(int(best))
        left = left[1:]
        left = left[(live[left] > live[best]).any(axis=1)]
    return np.array(keep, np.int64)
