"""Grids before their pipelines are crossed in: shapes that no layout of a grid can beat.

All layers are spread evenly over the pipeline for the time, since the slowest stage is no faster than the mean
one. For the memory the first rank is taken at a moment when it holds the most layers in flight, at the least
over the grid's pipelines. The dense layers and the MoE layers are each kept, replayed whole or (on one stage)
sent to the host; every mode is a mixture of these ways, and a bound that is linear takes its least at one of
them. Overlap and graphs are taken at whatever is least, term by term.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.job import Job
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.placement import (
    STAGE_COUNTS,
    Replay,
    Stage,
    chunks_of,
    replayed,
    stage_counts,
    virtual_stages,
)
from mbsolve.constraints.rule import Term
from mbsolve.constraints.schedule import Ints, States, representative, states
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model
from mbsolve.solver.columns import Columns
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Features, Floats, TermTable, raw_tables, tidy

FFNS: Final = ("dense", "moe")
# Moments of a relaxed shape.
MOMENTS: Final = 2


class Way(NamedTuple):
    """Which kinds of layers are replayed, and which are sent to the host; the rest is kept."""

    replayed: frozenset[str]
    sent: frozenset[str]
    # Whether full recompute is on: then no layer recomputes or offloads a part of itself, replayed or not.
    full: bool


# What a shape does with whole layers, and whether it overlaps; each is bounded on its own.
FAMILIES: Final = ("none", "overlap", "uniform", "block", "offload")


class Family(NamedTuple):
    """Shapes that are bounded together: the ways that they mix, and the overlap and graphs that they may have."""

    name: str
    ways: tuple[Way, ...]
    pairs: frozenset[tuple[bool, str]]

    def holds(self, mode: Sequence[Any]) -> bool:
        """Whether a combination of the mode decisions belongs to the family."""
        method, _, offload, overlap, _ = mode
        return FAMILIES[int(_family(method, offload, overlap))] == self.name


def families_of(model: Model, modes: Iterable[Sequence[Any]]) -> list[Family]:
    """The families in the order of ``FAMILIES``, one without pairs where no mode belongs to it.

    Parameters
    ----------
    modes : combinations of the mode decisions, in their order in the vocabulary.
    """
    kinds = sorted({kind.ffn for kind in model.layers()})
    some = [frozenset(c) for n in range(len(kinds) + 1) for c in itertools.combinations(kinds, n)]
    none: frozenset[str] = frozenset()
    ways = {
        "none": [Way(none, none, False)],
        "overlap": [Way(none, none, False)],
        "uniform": [Way(some[-1], none, True)],
        "block": [Way(s, none, True) for s in some],
        "offload": [Way(none, s, False) for s in some],
    }
    pairs: dict[str, set[tuple[bool, str]]] = {name: set() for name in FAMILIES}
    for method, _, offload, overlap, impl in modes:
        pairs[FAMILIES[int(_family(method, offload, overlap))]].add((overlap, impl))
    return [Family(n, tuple(ways[n]), frozenset(pairs[n])) for n in FAMILIES]


def _family(method: Any, offload: Any, overlap: Any) -> Ints:
    where = {name: i for i, name in enumerate(FAMILIES)}
    whole = np.where(np.equal(method, "uniform"), where["uniform"], where["block"])
    kept = np.where(overlap, where["overlap"], where["none"])
    return np.where(
        np.greater(offload, 0), where["offload"], np.where(np.equal(method, "none"), kept, whole)
    )


class Profile(NamedTuple):
    """Two ranks of a pipeline: the one with the most layers, and the one that holds the most layers in flight.

    Parameters
    ----------
    slow, full : stage counts of the two.
    held : layers of each of ``FFNS`` in flight on the second when it holds the most.
    shares : for the first rank and for the pipeline as a whole, and for each of ``FFNS``: the least share of layers
        replayed for a share replayed on the second rank. Block recompute takes the first layers of every virtual
        stage, so thin stages replay a larger share than thick ones. 1 where all stages are alike.
    """

    slow: tuple[int, ...]
    full: tuple[int, ...]
    held: tuple[int, ...]
    shares: tuple[float, ...]


@lru_cache(maxsize=65536)
def profile(
    model: Model, pp: int, vpp: int, split: Split, microbatches: int, overlap: bool = False
) -> Profile:
    """The profile of a pipeline; ``microbatches`` should be `schedule.representative` of the run."""
    stages = virtual_stages(model, pp, vpp, split)
    firsts = [_firsts(stage) for stage in stages]
    sizes = np.array([first[-1] for first in firsts])
    main = 1 if sizes[:, 1].any() else 0
    ranks = sizes.reshape(vpp, pp, len(FFNS)).sum(axis=0)
    slow = max(range(pp), key=lambda r: (ranks[r, main], ranks[r].sum(), -r))
    # Of ranks with the same layers the first one holds the most.
    alike = {sizes[r::pp].tobytes(): r for r in reversed(range(pp))}.values()
    held = {r: _held(states(pp, vpp, r, microbatches, overlap), sizes[r::pp], main) for r in sorted(alike)}
    full = max(held, key=lambda r: (held[r][main], held[r].sum(), -r))
    counts = [tuple(stage_counts(chunks_of(stages, pp, r), pp, Replay()).values()) for r in (slow, full)]
    shares = np.ones((2, len(FFNS)))
    with np.errstate(invalid="ignore", divide="ignore"):
        for number in range(1, max(len(first) for first in firsts)):
            done = np.array([first[min(number, len(first) - 1)] for first in firsts])
            most = np.nan_to_num(done[full::pp] / sizes[full::pp]).max(axis=0)
            for i, some in enumerate((slice(slow, None, pp), slice(None))):
                share = done[some].sum(axis=0) / sizes[some].sum(axis=0) / most
                shares[i] = np.fmin(shares[i], np.where(most > 0, share, 1.0))
    return Profile(counts[0], counts[1], tuple(held[full].tolist()), tuple(shares.ravel().tolist()))


@lru_cache(maxsize=4096)
def _firsts(stage: Stage) -> Ints:
    """Layers of each of ``FFNS`` among those that block recompute of 0, 1, 2 ... layers takes in a virtual stage."""
    layers = [item for item in stage if item.kind is not None]
    most = max((sum(i.what == what for i in layers) for what in ("layer", "mtp")), default=0)
    out = np.zeros((most + 1, len(FFNS)), np.int64)
    for number in range(1, most + 1):
        flags = replayed(stage, Replay("block", number))
        for flag, item in zip(flags, layers, strict=True):
            if flag and item.kind is not None:
                out[number, FFNS.index(item.kind.ffn)] += 1
    return out


def _held(passes: Iterable[States], layers: Ints, main: int) -> Ints:
    """Layers of each kind in flight on a rank at the end of the forward that leaves the most."""
    found = [s.in_flight @ layers + layers[s.chunk] for s in passes if s.forward]
    held = np.vstack(found)
    return np.asarray(held[np.lexsort([held.sum(axis=1), held[:, main]])[-1]])


def grid_profiles(job: Job, source: Shapes, grids: Columns, overlap: bool) -> list[NDArray[Any]]:
    """The fields of `Profile` for each grid, every number at its least over the grid's pipelines."""
    first, inverse = grids.classes(("pp", "microbatches"))
    found: list[list[Any]] = []
    for r in first:
        pp = grids.values["pp"][int(grids.codes["pp"][r])]
        micro = grids.values["microbatches"][int(grids.codes["microbatches"][r])]
        some = [
            profile(job.model, pp, vpp, split, representative(pp, vpp, micro), overlap)
            for vpp, split in source.pipelines(pp)
            if (vpp == 1 or micro % pp == 0) and (vpp > 1 or pp == 1 or not overlap)
        ]
        if not some:
            some = [Profile((0,) * len(STAGE_COUNTS), (0,) * len(STAGE_COUNTS), (0, 0), (1.0,) * 4)]
        found.append([np.min(field, axis=0) for field in zip(*some, strict=True)])
    return [np.array(field)[inverse] for field in zip(*found, strict=True)]


def relaxed_grids(
    job: Job, source: Shapes, grids: Columns, tables: Sequence[TermTable], family: Family
) -> tuple[Columns, Rows, list[TermTable], Ints]:
    """Relaxed shapes of some grids in one family, and the most that their pipelines interleave.

    The shapes of a grid follow one another, one for each way. ``tables`` are those of the grids for the family.
    """
    ways = family.ways
    codes = {k: np.repeat(v, len(ways)) for k, v in grids.codes.items()}
    way = np.tile(np.arange(len(ways)), grids.rows)
    full = np.array([w.full for w in ways])[way]
    n = grids.rows * len(ways)
    codes["recompute_method"] = full.astype(np.int64)
    values = {**grids.values, "recompute_method": ["none", "uniform"]}
    overlaps = sorted({overlap for overlap, _ in family.pairs})
    if len(overlaps) == 1:
        values["ep_overlap"], codes["ep_overlap"] = overlaps, np.zeros(n, np.int64)
    shapes = Columns(values, codes, n)
    single = shapes.array("pp") == 1
    gone = {f: np.array([f in w.replayed for w in ways])[way] for f in FFNS}
    sent = {f: np.array([f in w.sent for w in ways])[way] & single for f in FFNS}
    spread = [replace(t, classes=np.repeat(t.classes, len(ways))) for t in tables]
    slow, most, held, shares = (
        np.repeat(field, len(ways), axis=0) for field in grid_profiles(job, source, grids, overlaps == [True])
    )
    unit = max(1, next((n for n in source.demands.domains["recompute_num_layers"] if n), 1))
    whole = stage_counts(virtual_stages(job.model, 1, 1, Split()), 1, Replay())
    mean = np.array([whole[n] for n in STAGE_COUNTS]) / shapes.array("pp").astype(float)[:, None]
    rows = Rows(
        np.stack(
            [
                _stages(job, counts, gone, sent, share)
                for counts, share in ((slow, shares[:, : len(FFNS)]), (mean, shares[:, len(FFNS) :]))
            ],
            1,
        ),
        np.tile([0, 1], (n, 1)),
        _moments(job, most, held, gone, sent, unit),
    )
    deepest = np.array([source.deepest(p) for p in shapes.values["pp"]], np.int64)[shapes.codes["pp"]]
    return shapes, rows, spread, deepest


class GridTables:
    """Term tables of grids for every overlap and graph implementation; terms that name the split are left out.

    Parameters
    ----------
    features, grids, terms : domains, grids with their derived sizes, and all terms.
    pairs : the overlaps and graph implementations to tabulate.
    """

    def __init__(
        self,
        features: Features,
        grids: Columns,
        terms: Sequence[Term],
        pairs: Iterable[tuple[bool, str]],
    ) -> None:
        # A grid has many splits.
        usable = [t for t in terms if not {"vpp", "split"} & set(t.scope)]
        zeros = np.zeros(grids.rows, np.int64)
        self.raw = {}
        for overlap, impl in sorted(pairs):
            one = Columns(
                {**grids.values, "ep_overlap": [overlap], "cuda_graph_impl": [impl]},
                {**grids.codes, "ep_overlap": zeros, "cuda_graph_impl": zeros},
                grids.rows,
            )
            self.raw[overlap, impl] = raw_tables(features, one, usable)
        some = {id(t.term) for found in self.raw.values() for t in found if t.values.any()}
        used = {id(t) for t in usable}
        # The terms that are not always nothing.
        self.terms = [t for t in terms if id(t) in some or id(t) not in used]

    def least(self, pairs: Iterable[tuple[bool, str]]) -> list[TermTable]:
        """The tables at the least over some pairs, entry by entry."""
        best: list[TermTable] = []
        for pair in sorted(pairs):
            found = self.raw[pair]
            best = [b.least(f) for b, f in zip(best, found, strict=True)] if best else found
        return tidy(best)


def _stages(
    job: Job, counts: NDArray[Any], gone: dict[str, Bools], sent: dict[str, Bools], share: Floats
) -> Floats:
    """Stage counts of a stage, in fractions: ``counts`` of which some layers are replayed or sent."""
    out = counts.astype(float)
    column = STAGE_COLUMN
    mixers = {kind.mixer for kind in job.model.layers()}
    for j, ffn in enumerate(FFNS):
        again = counts[:, column[ffn]] * gone[ffn] * share[:, j]
        away = counts[:, column[ffn]] * sent[ffn]
        out[:, column[f"replayed_{ffn}"]] = again
        out[:, column[f"offloaded_{ffn}"]] = away
        out[:, column["offloaded_attention"]] += away
        # Which of two mixers a block replays depends on its place: then neither is counted.
        if len(mixers) == 1:
            out[:, column[f"replayed_{next(iter(mixers))}"]] += again
    out[:, column["one"]] = 1.0
    return out


def _moments(
    job: Job, full: Ints, held: Ints, gone: dict[str, Bools], sent: dict[str, Bools], unit: int
) -> Ints:
    """Two moments of the fullest rank for each relaxed shape: a forward at the summit, and a layer made anew.

    No mode holds less than the mixture of its ways at either moment. So the summit counts a transient only where
    layers are not replayed, and the second moment only what replayed or reloaded layers bring to it.
    """
    out = np.zeros((len(full), MOMENTS, len(COLUMN)), np.int64)
    out[:, :, : len(STAGE_COUNTS)] = full[:, None]
    last = job.model.layers()[-1].ffn
    units = np.zeros(len(full), np.int64)
    for j, ffn in enumerate(FFNS):
        kept = np.where(gone[ffn] | sent[ffn], 0, held[:, j])
        out[:, 0, COLUMN[f"live_{ffn}"]] = kept
        out[:, 0, COLUMN["live_attention"]] += kept
        units += np.where(gone[ffn], held[:, j] // unit, 0)
    out[:, 0, COLUMN["live_unit"]] = units
    there = held[:, FFNS.index(last)] > 0
    out[:, 0, COLUMN[f"at_forward_{last}"]] = there & ~gone[last]
    anew = (gone[last] | sent[last]) & there
    out[:, 1, COLUMN["live_unit"]] = np.where(anew, np.maximum(units - 1, 0), units)
    out[:, 1, COLUMN["live_attention"]] = anew
    out[:, 1, COLUMN[f"live_{last}"]] = anew
    out[:, 1, COLUMN[f"at_forward_{last}"]] = anew
    return out
