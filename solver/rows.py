"""The counts of a set of shapes as arrays: one row for each kind of stage, and for each moment of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.job import Job
from mbsolve.constraints.moments import COLUMN, held_by, worst_moments
from mbsolve.constraints.placement import STAGE_COUNTS, Replay, chunks_of, stage_classes, virtual_stages
from mbsolve.constraints.schedule import Ints, representative, states
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


def first_moments(job: Job, shapes: Columns, stages: Ints) -> Ints:
    """One moment of the first rank of each full shape: the end of the forward that leaves the most in flight.

    It costs a fraction of `moment_rows`, and rejects most shapes that do not fit.
    """
    first, inverse = shapes.classes(SCHEDULE)
    live = np.zeros((len(first), len(COLUMN)), np.int64)
    for i, r in enumerate(first):
        at = {n: shapes.values[n][int(shapes.codes[n][r])] for n in SCHEDULE}
        replay = Replay(at["recompute_method"], at["recompute_num_layers"], at["activation_offload_layers"])
        few = representative(at["pp"], at["vpp"], at["microbatches"])
        live[i] = _fullest(job.model, at["pp"], at["vpp"], at["split"], replay, few, at["ep_overlap"])
    out = live[inverse]
    out[:, : len(STAGE_COUNTS)] = stages[:, 0]
    return out[:, None, :]


@lru_cache(maxsize=65536)
def _fullest(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> Ints:
    """Counts in flight on the first rank at that moment."""
    chunks = chunks_of(virtual_stages(model, pp, vpp, split), pp, 0)
    whole = np.array([held_by(chunk, replay) for chunk in chunks])
    best, most = np.zeros(len(COLUMN), np.int64), -1
    for state in states(pp, vpp, 0, microbatches, overlap):
        if state.forward:
            held = state.in_flight @ whole + whole[state.chunk]
            k = int(held.sum(axis=1).argmax())
            if held[k].sum() > most:
                best, most = held[k], int(held[k].sum())
    if replay.method == "uniform" and best[COLUMN["live_unit"]]:
        # The backward that follows holds the attention of one whole layer in place of its input.
        best = best.copy()
        best[COLUMN["live_unit"]] -= 1
        best[COLUMN["live_attention"]] += 1
    return best
