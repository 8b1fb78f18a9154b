"""The counts of a set of shapes as arrays: one row for each kind of stage, and for each moment of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.job import Job
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import SUMMIT, summit, worst_moments
from mbsolve.constraints.placement import (
    STAGE_COUNTS,
    Replay,
    Stage,
    chunks_of,
    stage_classes,
    virtual_stages,
)
from mbsolve.constraints.schedule import Ints, representative, walk
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model
from mbsolve.solver.columns import Columns

STAGE_COLUMN = {name: i for i, name in enumerate(STAGE_COUNTS)}
Floats = NDArray[np.float64]
SCHEDULE = (
    "pp",
    "vpp",
    "split",
    "recompute_method",
    "recompute_num_layers",
    "activation_offload_layers",
    "ep_overlap",
    "microbatches",
)


_moments = lru_cache(maxsize=65536)(worst_moments)


@dataclass(frozen=True)
class Rows:
    """Counts for each shape.

    Parameters
    ----------
    stages : (shapes, stage classes, stage columns), padded with zeros; class 0 holds the first pipeline rank.
        Whole numbers for real stages, fractions for the mean stage of a relaxed grid.
    ranks : (shapes, stage classes) pipeline ranks of each class.
    moments : (shapes, moments, moment columns); padding is zeros or repeats the first moment.
    """

    stages: Ints | Floats
    ranks: Ints
    moments: Ints

    def take(self, index: Ints) -> Rows:
        """The rows of some shapes."""
        return Rows(self.stages[index], self.ranks[index], self.moments[index])


def stage_rows(job: Job, shapes: Columns) -> tuple[Ints, Ints]:
    """Stage counts and ranks of each shape."""
    names = SCHEDULE[:6]
    first, inverse = shapes.classes(names)
    found = []
    for r in first:
        at = {n: shapes.values[n][int(shapes.codes[n][r])] for n in names}
        replay = Replay(at["recompute_method"], at["recompute_num_layers"], at["activation_offload_layers"])
        classes = stage_classes(job.model, at["pp"], at["vpp"], at["split"], replay)
        found.append((np.array(list(classes), np.int64), np.array(list(classes.values()), np.int64)))
    width = max((len(f[0]) for f in found), default=1)
    stages = np.zeros((len(found), width, len(STAGE_COUNTS)), np.int64)
    ranks = np.zeros((len(found), width), np.int64)
    for i, (counts, n) in enumerate(found):
        stages[i, : len(counts)] = counts
        ranks[i, : len(n)] = n
    return stages[inverse], ranks[inverse]


def moment_rows(job: Job, shapes: Columns) -> Ints:
    """Counts of the moments of each full shape, padded by repeating the first."""
    first, inverse = shapes.classes(SCHEDULE)
    found = []
    for r in first:
        at = {n: shapes.values[n][int(shapes.codes[n][r])] for n in SCHEDULE}
        replay = Replay(at["recompute_method"], at["recompute_num_layers"], at["activation_offload_layers"])
        few = representative(at["pp"], at["vpp"], at["microbatches"])
        found.append(_moments(job.model, at["pp"], at["vpp"], at["split"], replay, few, at["ep_overlap"]))
    height = max((len(f) for f in found), default=1)
    moments = np.zeros((len(found), height, len(COLUMN)), np.int64)
    for i, counts in enumerate(found):
        moments[i, : len(counts)] = counts
        moments[i, len(counts) :] = counts[0]
    return moments[inverse]


def no_moments(rows: int) -> Ints:
    """A moment at which nothing is held, for shapes whose memory is not looked at."""
    return np.zeros((rows, 1, len(COLUMN)), np.int64)


def padded(found: Sequence[Ints]) -> Ints:
    """The moments of several shapes as one array, at least one for each, padded with zeros."""
    out = np.zeros((len(found), max((len(f) for f in found), default=0) or 1, len(COLUMN)), np.int64)
    for i, rows in enumerate(found):
        out[i, : len(rows)] = rows
    return out


def first_moments(job: Job, shapes: Columns) -> Ints:
    """A few moments of the rank of each full shape that holds the most layers in flight (`moments.summit`).

    They cost a fraction of `moment_rows`, and reject most shapes that do not fit.
    """
    first, inverse = shapes.classes(SCHEDULE)
    out = np.zeros((len(first), len(SUMMIT), len(COLUMN)), np.int64)
    for i, r in enumerate(first):
        at = {n: shapes.values[n][int(shapes.codes[n][r])] for n in SCHEDULE}
        replay = Replay(at["recompute_method"], at["recompute_num_layers"], at["activation_offload_layers"])
        few = representative(at["pp"], at["vpp"], at["microbatches"])
        out[i] = top_rank(job.model, at["pp"], at["vpp"], at["split"], replay, few, at["ep_overlap"])[1]
    return out[inverse]


@lru_cache(maxsize=65536)
def top_rank(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> tuple[int, Ints]:
    """The rank that holds the most layers in flight, MoE layers first, and its `moments.summit`."""
    stages = virtual_stages(model, pp, vpp, split)
    full = replay.method == "uniform"
    best: tuple[tuple[int, ...], int] | None = None
    most = -1
    for r in range(pp):
        layers = np.array(_sizes(stages[r::pp]))
        size = int(layers[:, 0 if full else 1].sum()) or int(layers[:, 0].sum())
        # An earlier rank with as many layers holds no fewer of them in flight.
        if size <= most:
            continue
        most = size
        steps = walk(pp, vpp, r, microbatches, overlap)
        forward = steps.chunk[steps.forward]
        held = steps.before[steps.forward] @ layers + layers[forward]
        every, moe = held[held[:, 0].argmax()].tolist()
        # Checkpointed layers hold the same, experts or not.
        score = (every, 0, -r) if full else (moe, every, -r)
        if best is None or score > best[0]:
            best = score, r
    rank = best[1] if best is not None else 0
    return rank, summit(chunks_of(stages, pp, rank), pp, rank, microbatches, replay, overlap)


def _sizes(chunks: Sequence[Stage]) -> tuple[tuple[int, int], ...]:
    """Layers of each chunk: all, and those with experts."""
    kinds = [[item.kind.ffn for item in chunk if item.kind is not None] for chunk in chunks]
    return tuple((len(k), k.count("moe")) for k in kinds)
