"""Grids before their pipelines are crossed in: shapes that no layout of a grid can beat.

All layers are spread evenly over the pipeline for the time, since the slowest stage is no faster than the mean
one. For the memory the first rank is taken at a moment when it holds the most layers in flight, at the least
over the grid's pipelines. Layers are kept, replayed whole or (on one stage) sent to the host; every mode is a
mixture of these three, and a bound that is linear takes its least at one of them. Overlap and graphs are taken
at whatever is least, term by term.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.placement import STAGE_COUNTS, Replay, chunks_of, stage_counts, virtual_stages
from mbsolve.constraints.rule import Term
from mbsolve.constraints.schedule import Ints, representative, states
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model
from mbsolve.solver.columns import Columns
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Features, Floats, TermTable, raw_tables, tidy

# Kept, replayed, sent to the host.
WAYS = ("none", "uniform", "offload")


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


def relaxed_grids(
    job: Job, source: Shapes, grids: Columns, index: Ints, least: Sequence[TermTable]
) -> tuple[Columns, Rows, list[TermTable], Ints]:
    """Relaxed shapes of some grids, and the most that their pipelines interleave; one for each way, in order.

    ``least`` are the `least_tables` of all grids, of which ``grids`` are those at ``index``.
    """
    n = grids.rows * len(WAYS)
    codes = {k: np.repeat(v, len(WAYS)) for k, v in grids.codes.items()}
    way = np.tile(np.arange(len(WAYS)), grids.rows)
    codes["recompute_method"] = (way == 1).astype(np.int64)
    shapes = Columns({**grids.values, "recompute_method": ["none", "uniform"]}, codes, n)
    may_offload = max(source.demands.domains["activation_offload_layers"], default=0) > 0
    away = (way == 2) & (shapes.array("pp") == 1) & may_offload
    full = way == 1
    rows_of = np.repeat(index, len(WAYS))
    tables = [replace(t, classes=t.classes[rows_of]) for t in least]
    rows = Rows(
        _mean_stages(job, shapes, full, away),
        np.ones((n, 1), np.int64),
        _moments(job, source, grids, full, away),
    )
    return shapes, rows, tables, np.array([source.deepest(int(p)) for p in shapes.array("pp")], np.int64)


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


def _mean_stages(job: Job, shapes: Columns, full: Bools, away: Bools) -> Floats:
    """Stage counts of the mean stage, in fractions."""
    whole = stage_counts(virtual_stages(job.model, 1, 1, Split()), 1, Replay())
    replayed = stage_counts(virtual_stages(job.model, 1, 1, Split()), 1, Replay("uniform", 1))
    mean = np.array([whole[n] for n in STAGE_COUNTS], float)
    mean_full = np.array([replayed[n] for n in STAGE_COUNTS], float)
    sent = stage_counts(virtual_stages(job.model, 1, 1, Split()), 1, Replay(offloaded=job.model.num_layers))
    mean_sent = np.array([sent[n] for n in STAGE_COUNTS], float)
    out: Floats = (
        np.where(full[:, None], mean_full, np.where(away[:, None], mean_sent, mean))
        / shapes.array("pp").astype(float)[:, None]
    )
    out[:, STAGE_COLUMN["one"]] = 1.0
    return out[:, None, :]


def _moments(job: Job, source: Shapes, grids: Columns, full: Bools, away: Bools) -> Ints:
    """One moment of the first rank for each relaxed shape: a forward at the summit, or a replayed layer."""
    top = np.repeat(grid_summits(job, source, grids), len(WAYS), axis=0)
    out = np.zeros((len(top), 1, len(COLUMN)), np.int64)
    out[:, 0, : len(STAGE_COUNTS)] = top[:, : len(STAGE_COUNTS)]
    layers, dense, moe = (top[:, len(STAGE_COUNTS) + i] for i in range(3))
    some = layers > 0
    ffn = "moe" if job.model.layers()[-1].ffn == "moe" else "dense"
    there = (moe if ffn == "moe" else dense) > 0
    for name, plain, checkpointed in (
        ("live_attention", layers, some),
        ("live_dense", dense, there if ffn == "dense" else 0 * layers),
        ("live_moe", moe, there if ffn == "moe" else 0 * layers),
        ("live_unit", 0 * layers, np.where(away, 0, np.maximum(layers - 1, 0))),
    ):
        out[:, 0, COLUMN[name]] = np.where(full | away, checkpointed, plain)
    out[:, 0, COLUMN[f"at_forward_{ffn}"]] = there
    for name in ("replayed_attention", "replayed_window_attention", "replayed_dense", "replayed_moe"):
        out[:, 0, COLUMN[name]] = np.where(full, out[:, 0, COLUMN[name.removeprefix("replayed_")]], 0)
    return out
