"""What a pipeline holds and does at its busiest ranks, and the least of it over several pipelines."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import SUMMIT
from mbsolve.constraints.placement import (
    STAGE_COUNTS,
    Replay,
    Stage,
    chunks_of,
    halves_of,
    replayed,
    stage_counts,
    virtual_stages,
)
from mbsolve.constraints.schedule import Ints, representative
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import LayerKind, Model
from mbsolve.solver.columns import Columns
from mbsolve.solver.rows import top_rank
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Floats

FFNS: Final = ("dense", "moe")
MIXERS: Final = ("attention", "gdn", "mamba")
# The rank with the most layers, the mean rank, and the last one, which computes the loss.
STAGES: Final = 3


def groups_of(model: Model) -> tuple[str, ...]:
    """What is replayed or sent to the host as one in a relaxed shape.

    The layers of each kind of FFN, with their attention; of a hybrid each kind of half on its own, which relaxes
    that the halves of a layer go together.
    """
    if not model.hybrid:
        return FFNS
    there = {half for kind in (*model.layers(), model.mtp_layer()) for half in halves_of(kind)}
    return tuple(half for half in (*MIXERS, *FFNS) if half in there)


def _groups_in(model: Model, kind: LayerKind) -> tuple[str, ...]:
    return halves_of(kind) if model.hybrid else (kind.ffn,)


class Profile(NamedTuple):
    """Counts of some ranks of a pipeline.

    Parameters
    ----------
    stages : (STAGES, stage counts), nothing replayed.
    shares : (STAGES, groups) the least share of layers replayed for a share replayed on the rank that holds the most
        layers in flight. Block recompute takes the first layers of every virtual stage, so thin stages replay a
        larger share than thick ones. 1 where all stages are alike.
    top : `moments.summit` of that rank.
    """

    stages: Floats
    shares: Floats
    top: Ints


def whole_model(model: Model) -> dict[str, int]:
    """Stage counts of a pipeline of one rank, nothing replayed."""
    return stage_counts(virtual_stages(model, 1, 1, Split()), 1, Replay())


@lru_cache(maxsize=65536)
def profile(
    model: Model, pp: int, vpp: int, split: Split, microbatches: int, overlap: bool, replay: Replay
) -> Profile:
    """The profile of a pipeline; ``microbatches`` should be `schedule.representative` of the run."""
    full, top = top_rank(model, pp, vpp, split, replay, microbatches, overlap)
    return Profile(*_pipeline(model, pp, vpp, split, full), top)


@lru_cache(maxsize=65536)
def _pipeline(model: Model, pp: int, vpp: int, split: Split, full: int) -> tuple[Floats, Floats]:
    """`Profile.stages` and `Profile.shares`, where rank ``full`` holds the most."""
    stages = virtual_stages(model, pp, vpp, split)
    groups = groups_of(model)
    firsts = [_firsts(model, stage) for stage in stages]
    sizes = np.array([first[-1] for first in firsts])
    ranks = sizes.reshape(vpp, pp, len(groups)).sum(axis=0)
    slow = max(range(pp), key=lambda r: (ranks[r, -1], ranks[r].sum(), -r))
    every = np.array(
        [list(stage_counts(chunks_of(stages, pp, r), pp, Replay()).values()) for r in range(pp)], float
    )
    shares = np.ones((STAGES, len(groups)))
    some = (slice(slow, None, pp), slice(None), slice(pp - 1, None, pp))
    with np.errstate(invalid="ignore", divide="ignore"):
        for number in range(1, max(len(first) for first in firsts)):
            done = np.array([first[min(number, len(first) - 1)] for first in firsts])
            most = np.nan_to_num(done[full::pp] / sizes[full::pp]).max(axis=0)
            for i, mine in enumerate(some):
                share = done[mine].sum(axis=0) / sizes[mine].sum(axis=0) / most
                shares[i] = np.fmin(shares[i], np.where(most > 0, share, 1.0))
    return np.array([every[slow], every.mean(axis=0), every[-1]]), shares


@lru_cache(maxsize=4096)
def _firsts(model: Model, stage: Stage) -> Ints:
    """Layers of each group among those that block recompute of 0, 1, 2 ... layers takes in a virtual stage."""
    layers = [item for item in stage if item.kind is not None]
    most = max((sum(i.what == what for i in layers) for what in ("layer", "mtp")), default=0)
    groups = groups_of(model)
    out = np.zeros((most + 1, len(groups)), np.int64)
    for number in range(1, most + 1):
        flags = replayed(stage, Replay("block", number))
        for flag, item in zip(flags, layers, strict=True):
            if flag and item.kind is not None:
                for group in _groups_in(model, item.kind):
                    out[number, groups.index(group)] += 1
    return out


def profiles(
    job: Job, source: Shapes, nodes: Columns, overlap: bool | None, replay: Replay
) -> tuple[Profile, Bools]:
    """The fields of `Profile` for each grid or layout, and whether it has a pipeline at all.

    For a grid every number is at its least over the grid's pipelines.

    Parameters
    ----------
    nodes : grids or layouts, with their derived sizes.
    overlap : whether expert-parallel overlap is on; None where it may be either.
    """
    whole = "split" in nodes.codes
    mode = {} if overlap is None else {"ep_overlap": overlap}
    names = ("pp", "microbatches", "vpp", "split") if whole else ("pp", "microbatches")
    first, inverse = nodes.classes(names)
    found: list[Profile] = []
    possible = np.ones(len(first), bool)
    for i, r in enumerate(first):
        at = {n: nodes.values[n][int(nodes.codes[n][r])] for n in names}
        pp, micro = at["pp"], at["microbatches"]
        key = tuple(at.values()), overlap, replay
        if key not in source.profiles:
            pipelines = [(at["vpp"], at["split"])] if whole else source.pipelines(pp)
            some = [
                profile(job.model, pp, vpp, split, representative(pp, vpp, micro), bool(overlap), replay)
                for vpp, split in pipelines
                if source.runs({"pp": pp, "vpp": vpp, "split": split, "microbatches": micro, **mode})
            ]
            # The least of every number.
            least = Profile(*(np.min(field, axis=0) for field in zip(*some, strict=True))) if some else None
            source.profiles[key] = least
        known = source.profiles[key]
        possible[i] = known is not None
        found.append(known or _nothing(job.model))
    fields = (np.array(field)[inverse] for field in zip(*found, strict=True))
    return Profile(*fields), possible[inverse]


def _nothing(model: Model) -> Profile:
    return Profile(
        np.zeros((STAGES, len(STAGE_COUNTS))),
        np.ones((STAGES, len(groups_of(model)))),
        np.zeros((len(SUMMIT), len(COLUMN)), np.int64),
    )
