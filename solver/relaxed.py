"""Grids before their pipelines are crossed in: shapes that no layout of a grid can beat.

All layers are spread evenly over the pipeline for the time, since the slowest stage is no faster than the mean
one. For the memory the first rank is taken at a moment when it holds the most layers in flight, at the least
over the grid's pipelines. The dense layers and the MoE layers are each kept, replayed whole or (on one stage)
sent to the host; every mode is a mixture of these ways, and a bound that is linear takes its least at one of
them. Overlap and graphs are taken at whatever is least, term by term.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.placement import (
    STAGE_COUNTS,
    Replay,
    chunks_of,
    replayed,
    stage_counts,
    virtual_stages,
)
from mbsolve.constraints.rule import Term
from mbsolve.constraints.schedule import Ints, representative, states
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model
from mbsolve.solver.columns import Columns
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Features, Floats, TermTable, raw_tables, tidy

FFNS = ("dense", "moe")


class Way(NamedTuple):
    """Which kinds of layers are replayed, and which are sent to the host; the rest is kept."""

    replayed: frozenset[str]
    sent: frozenset[str]


def ways_of(model: Model, offload: bool) -> list[Way]:
    """The ways that every mode mixes: all subsets of the layer kinds, replayed or sent."""
    kinds = sorted({kind.ffn for kind in model.layers()})
    some = [frozenset(c) for n in range(len(kinds) + 1) for c in itertools.combinations(kinds, n)]
    none: frozenset[str] = frozenset()
    return [Way(s, none) for s in some] + [Way(none, s) for s in some if s and offload]


# What a shape does with whole layers; each is bounded on its own.
FAMILIES = ("none", "uniform", "block", "offload")


def family_ways(ways: Sequence[Way]) -> dict[str, list[int]]:
    """The ways that the shapes of each family mix."""
    kept = [i for i, w in enumerate(ways) if not w.sent]
    sent = [i for i, w in enumerate(ways) if w.sent]
    return {"none": [0], "uniform": kept[-1:], "block": kept, "offload": [0, *sent]}


def family_of(shapes: Columns) -> Ints:
    """The position in ``FAMILIES`` of each full shape."""
    method = shapes.array("recompute_method")
    offload = shapes.array("activation_offload_layers") > 0
    return np.where(offload, 3, np.where(method == "uniform", 1, np.where(method == "block", 2, 0)))


@lru_cache(maxsize=65536)
def evenness(model: Model, pp: int, vpp: int, split: Split) -> tuple[float, ...]:
    """For each of ``FFNS``: the least share of layers replayed anywhere for a layer replayed on the first rank.

    Block recompute takes the first layers of every virtual stage, so a first rank of thin stages replays a
    larger share of its layers than the others. 1 where all stages are alike.
    """
    stages = virtual_stages(model, pp, vpp, split)
    sizes: list[list[str]] = [[item.kind.ffn for item in stage if item.kind is not None] for stage in stages]
    out = []
    for ffn in FFNS:
        total, least = sum(s.count(ffn) for s in sizes), 1.0
        for number in range(1, max(len(s) for s in sizes)):
            flags = [replayed(stage, Replay("block", number)) for stage in stages]
            done = [
                sum(int(f) for f, k in zip(flag, s, strict=True) if k == ffn)
                for flag, s in zip(flags, sizes, strict=True)
            ]
            first = max(
                (d / s.count(ffn) for d, s in zip(done[::pp], sizes[::pp], strict=True) if ffn in s),
                default=0,
            )
            if first:
                least = min(least, sum(done) / total / first)
        out.append(least)
    return tuple(out)


@lru_cache(maxsize=65536)
def summit(model: Model, pp: int, vpp: int, split: Split, microbatches: int) -> tuple[int, ...]:
    """Of the first rank: stage counts, then layers in flight (all, dense, MoE) when it holds the most layers."""
    chunks = chunks_of(virtual_stages(model, pp, vpp, split), pp, 0)
    counts = stage_counts(chunks, pp, Replay())
    kinds = [[item.kind.ffn for item in chunk if item.kind is not None] for chunk in chunks]
    layers = np.array([[len(k), k.count("dense"), k.count("moe")] for k in kinds])
    best = np.zeros(3, np.int64)
    for state in states(pp, vpp, 0, representative(pp, vpp, microbatches), False):
        if state.forward:
            held = state.in_flight @ layers + layers[state.chunk]
            best = max(best, held[held[:, 0].argmax()], key=lambda v: int(v[0]))
    return (*(counts[n] for n in STAGE_COUNTS), *best.tolist())


def grid_summits(job: Job, source: Shapes, grids: Columns) -> Ints:
    """`summit` of each grid, each count at its least over the grid's pipelines."""
    first, inverse = grids.classes(("pp", "microbatches"))
    out = []
    for r in first:
        pp = grids.values["pp"][int(grids.codes["pp"][r])]
        micro = grids.values["microbatches"][int(grids.codes["microbatches"][r])]
        found = [
            summit(job.model, pp, vpp, split, micro)
            for vpp, split in source.pipelines(pp)
            if vpp == 1 or micro % pp == 0
        ]
        out.append(np.min(found, axis=0) if found else np.zeros(len(STAGE_COUNTS) + 3, np.int64))
    return np.array(out, np.int64)[inverse]


def grid_evenness(job: Job, source: Shapes, grids: Columns) -> Floats:
    """`evenness` of each grid at its least over the grid's pipelines."""
    first, inverse = grids.classes(("pp",))
    out = []
    for r in first:
        pp = grids.values["pp"][int(grids.codes["pp"][r])]
        found = [evenness(job.model, pp, vpp, split) for vpp, split in source.pipelines(pp)]
        out.append(np.min(found, axis=0) if found else np.ones(len(FFNS)))
    return np.array(out)[inverse]


def relaxed_grids(
    job: Job, source: Shapes, grids: Columns, index: Ints, least: Sequence[TermTable]
) -> tuple[Columns, Rows, list[TermTable], Ints, list[Way]]:
    """Relaxed shapes of some grids, the most that their pipelines interleave, and the ways.

    The shapes of a grid follow one another, one for each way. ``least`` are the `least_tables` of all grids, of
    which ``grids`` are those at ``index``.
    """
    offload = max(source.demands.domains["activation_offload_layers"], default=0) > 0
    ways = ways_of(job.model, offload)
    codes = {k: np.repeat(v, len(ways)) for k, v in grids.codes.items()}
    way = np.tile(np.arange(len(ways)), grids.rows)
    full = np.array([bool(w.replayed) for w in ways])[way]
    codes["recompute_method"] = full.astype(np.int64)
    n = grids.rows * len(ways)
    shapes = Columns({**grids.values, "recompute_method": ["none", "uniform"]}, codes, n)
    single = shapes.array("pp") == 1
    gone = {f: np.array([f in w.replayed for w in ways])[way] for f in FFNS}
    sent = {f: np.array([f in w.sent for w in ways])[way] & single for f in FFNS}
    rows_of = np.repeat(index, len(ways))
    tables = [replace(t, classes=t.classes[rows_of]) for t in least]
    even = np.repeat(grid_evenness(job, source, grids), len(ways), axis=0)
    top = np.repeat(grid_summits(job, source, grids), len(ways), axis=0)
    unit = max(1, next((n for n in source.demands.domains["recompute_num_layers"] if n), 1))
    rows = Rows(
        _mean_stages(job, shapes, gone, sent, even),
        np.ones((n, 1), np.int64),
        _moments(job, top, gone, sent, unit),
    )
    deepest = np.array([source.deepest(int(p)) for p in shapes.array("pp")], np.int64)
    return shapes, rows, tables, deepest, ways


def least_tables(
    features: Features, source: Shapes, grids: Columns, terms: Sequence[Term]
) -> tuple[list[TermTable], list[Term]]:
    """Term tables of grids at the least over overlap and graph implementation, and the terms that are not always nothing.

    Terms that name the pipeline split are left out of the tables: a grid has many.
    """
    demands = source.demands.domains
    usable = [t for t in terms if not {"vpp", "split"} & set(t.scope)]
    best: list[TermTable] = []
    some: set[int] = set()
    zeros = np.zeros(grids.rows, np.int64)
    for overlap, impl in itertools.product(demands["ep_overlap"], demands["cuda_graph_impl"]):
        one = Columns(
            {**grids.values, "ep_overlap": [overlap], "cuda_graph_impl": [impl]},
            {**grids.codes, "ep_overlap": zeros, "cuda_graph_impl": zeros},
            grids.rows,
        )
        found = raw_tables(features, one, usable)
        some |= {id(t.term) for t in found if t.values.any()}
        best = [b.least(f) for b, f in zip(best, found, strict=True)] if best else found
    used = {id(t) for t in usable}
    return tidy(best), [t for t in terms if id(t) in some or id(t) not in used]


def _mean_stages(
    job: Job, shapes: Columns, gone: dict[str, Bools], sent: dict[str, Bools], even: Floats
) -> Floats:
    """Stage counts of the mean stage, in fractions."""
    whole = stage_counts(virtual_stages(job.model, 1, 1, Split()), 1, Replay())
    out = np.tile(np.array([whole[n] for n in STAGE_COUNTS], float), (shapes.rows, 1))
    mixers = [m for m in ("attention", "window_attention") if whole[m]]
    for j, ffn in enumerate(FFNS):
        again = whole[ffn] * gone[ffn] * even[:, j]
        away = whole[ffn] * sent[ffn]
        out[:, STAGE_COLUMN[f"replayed_{ffn}"]] = again
        out[:, STAGE_COLUMN[f"offloaded_{ffn}"]] = away
        out[:, STAGE_COLUMN["offloaded_attention"]] += away
        # Which of two mixers a block replays depends on its place: then neither is counted.
        if len(mixers) == 1:
            out[:, STAGE_COLUMN[f"replayed_{mixers[0]}"]] += again
    out /= shapes.array("pp").astype(float)[:, None]
    out[:, STAGE_COLUMN["one"]] = 1.0
    return out[:, None, :]


def _moments(job: Job, top: Ints, gone: dict[str, Bools], sent: dict[str, Bools], unit: int) -> Ints:
    """Two moments of the first rank for each relaxed shape: a forward at the summit, and a layer made anew.

    No mode holds less than the mixture of its ways at either moment. So the summit counts a transient only where
    layers are not replayed, and the second moment only what replayed or reloaded layers bring to it.
    """
    out = np.zeros((len(top), 2, len(COLUMN)), np.int64)
    out[:, :, : len(STAGE_COUNTS)] = top[:, None, : len(STAGE_COUNTS)]
    last = job.model.layers()[-1].ffn
    held = dict(zip(FFNS, (top[:, len(STAGE_COUNTS) + 1], top[:, len(STAGE_COUNTS) + 2]), strict=True))
    units = np.zeros(len(top), np.int64)
    for ffn in FFNS:
        kept = np.where(gone[ffn] | sent[ffn], 0, held[ffn])
        out[:, 0, COLUMN[f"live_{ffn}"]] = kept
        out[:, 0, COLUMN["live_attention"]] += kept
        units += np.where(gone[ffn], held[ffn] // unit, 0)
    out[:, 0, COLUMN["live_unit"]] = units
    there = held[last] > 0
    out[:, 0, COLUMN[f"at_forward_{last}"]] = there & ~gone[last]
    anew = (gone[last] | sent[last]) & there
    out[:, 1, COLUMN["live_unit"]] = np.where(anew, np.maximum(units - 1, 0), units)
    out[:, 1, COLUMN["live_attention"]] = anew
    out[:, 1, COLUMN[f"live_{last}"]] = anew
    out[:, 1, COLUMN[f"at_forward_{last}"]] = anew
    return out
