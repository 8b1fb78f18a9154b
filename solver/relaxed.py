"""Grids and layouts before their modes are known: shapes that no shape of them can beat.

Of a pipeline only a few ranks are looked at, of a grid what all its pipelines have in common. The dense layers
and the MoE layers are each kept, replayed whole or (on one stage) sent to the host; every mode is a mixture of
these ways, and a bound that is linear takes its least at one of them. Graphs are taken at whatever is least, term
by term.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import SUMMIT
from mbsolve.constraints.placement import STAGE_COUNTS, Replay
from mbsolve.constraints.schedule import Ints
from mbsolve.models.card import Model
from mbsolve.solver.columns import Columns
from mbsolve.solver.profiles import FFNS, STAGES, groups_of, profiles, whole_model
from mbsolve.solver.rows import STAGE_COLUMN, Rows, no_moments
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Floats

# Moments of a relaxed shape at most.
MOMENTS: Final = len(SUMMIT) + 2


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

    @property
    def overlap(self) -> bool | None:
        """Whether its shapes overlap; None where they may or may not."""
        found = {overlap for overlap, _ in self.pairs}
        return found.pop() if len(found) == 1 else None

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
    kinds = groups_of(model) if model.hybrid else sorted({kind.ffn for kind in model.layers()})
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
    return np.where(np.greater(offload, 0), where["offload"], np.where(np.equal(method, "none"), kept, whole))


class Relaxed(NamedTuple):
    """Relaxed shapes of some grids or layouts: those of one follow one another, one for each way.

    Parameters
    ----------
    shapes, rows : inputs of a bounder.
    vpp : (shapes,) virtual stages; of a grid the most that its pipelines have.
    possible : (grids or layouts,) whether there is a pipeline at all.
    """

    shapes: Columns
    rows: Rows
    vpp: Ints
    possible: Bools


def in_family(nodes: Columns, family: Family) -> Columns:
    """Grids or layouts with what all shapes of a family have in common."""
    zeros = np.zeros(nodes.rows, np.int64)
    values, codes = dict(nodes.values), dict(nodes.codes)
    # Either full recompute or none; which of its methods it is makes no difference to a term.
    values["recompute_method"] = ["uniform" if family.ways[0].full else "none"]
    codes["recompute_method"] = zeros
    if family.overlap is not None:
        values["ep_overlap"], codes["ep_overlap"] = [family.overlap], zeros
    return Columns(values, codes, nodes.rows)


def coarse(job: Job, source: Shapes, grids: Columns, family: Family) -> Relaxed:
    """Relaxed shapes of some grids of which only the mean rank is looked at, and no moment of memory."""
    way = np.tile(np.arange(len(family.ways)), grids.rows)
    shapes = grids.take(np.repeat(np.arange(grids.rows), len(family.ways)))
    whole = whole_model(job.model)
    mean = np.array([whole[n] for n in STAGE_COUNTS]) / shapes.array("pp").astype(float)[:, None]
    mean[:, STAGE_COLUMN["one"]] = 1.0
    gone, sent = _away(job.model, family, way, shapes)
    # How evenly layers are replayed is not known here, unless all of them are.
    share = np.full((shapes.rows, len(groups_of(job.model))), float(family.name == "uniform"))
    rows = Rows(
        _stages(job, mean, gone, sent, share)[:, None],
        np.ones((shapes.rows, 1), np.int64),
        no_moments(shapes.rows),
    )
    return Relaxed(shapes, rows, _deepest(source, shapes), np.ones(grids.rows, bool))


def _away(
    model: Model, family: Family, way: Ints, shapes: Columns
) -> tuple[dict[str, Bools], dict[str, Bools]]:
    """For each group of layers, the shapes that replay it, and those that send it to the host."""
    single, groups = shapes.array("pp") == 1, groups_of(model)
    gone = {g: np.array([g in w.replayed for w in family.ways])[way] for g in groups}
    sent = {g: np.array([g in w.sent for w in family.ways])[way] & single for g in groups}
    return gone, sent


def _deepest(source: Shapes, shapes: Columns) -> Ints:
    """Most virtual stages of a rank among the pipelines of each shape."""
    return np.array([source.deepest(p) for p in shapes.values["pp"]], np.int64)[shapes.codes["pp"]]


def relaxed(job: Job, source: Shapes, nodes: Columns, family: Family) -> Relaxed:
    """Relaxed shapes of some grids or layouts (``nodes``) in one family."""
    ways = family.ways
    way = np.tile(np.arange(len(ways)), nodes.rows)
    shapes = nodes.take(np.repeat(np.arange(nodes.rows), len(ways)))
    n = shapes.rows
    gone, sent = _away(job.model, family, way, shapes)
    unit = max(1, next((n for n in source.demands.domains["recompute_num_layers"] if n), 1))
    # With one way there is nothing to mix: every layer is kept, or every layer is replayed.
    replay = Replay("uniform", unit) if family.name == "uniform" else Replay()
    found, possible = profiles(job, source, nodes, family.overlap, replay)
    spread = np.repeat(np.arange(nodes.rows), len(ways))
    top = found.top[spread]
    rows = Rows(
        np.stack(
            [
                _stages(job, found.stages[spread, i], gone, sent, found.shares[spread, i])
                for i in range(STAGES)
            ],
            1,
        ),
        # The bubble is the mean rank's.
        np.tile([0, 1, 0], (n, 1)),
        top if len(ways) == 1 else _mixed_moments(job.model, top, gone, sent, unit),
    )
    vpp = shapes.array("vpp") if "vpp" in nodes.codes else _deepest(source, shapes)
    return Relaxed(shapes, rows, vpp, possible)


def _stages(
    job: Job, counts: Floats, gone: dict[str, Bools], sent: dict[str, Bools], share: Floats
) -> Floats:
    """Stage counts of a stage, in fractions: ``counts`` of which some layers are replayed or sent."""
    out = counts.copy()
    column = STAGE_COLUMN
    if job.model.hybrid:
        for j, half in enumerate(groups_of(job.model)):
            out[:, column[f"replayed_{half}"]] = counts[:, column[half]] * gone[half] * share[:, j]
            out[:, column[f"offloaded_{half}"]] = counts[:, column[half]] * sent[half]
        return out
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
    return out


def _mixed_moments(
    model: Model, top: Ints, gone: dict[str, Bools], sent: dict[str, Bools], unit: int
) -> Ints:
    """The moments of each way of a mixture."""
    return (_hybrid_moments if model.hybrid else _moments)(model, top, gone, sent, unit)


def _hybrid_moments(
    model: Model, top: Ints, gone: dict[str, Bools], sent: dict[str, Bools], unit: int
) -> Ints:
    """Of a hybrid: what is held at the end of the fullest forward, without a transient, which any mode holds.

    A layer is one unit however many halves it has, so a mixer counts as one only where no layer has it before an
    FFN.
    """
    out = np.zeros((len(top), len(SUMMIT) + 2, len(COLUMN)), np.int64)
    out[:, :, : len(STAGE_COUNTS)] = top[:, :1, : len(STAGE_COUNTS)]
    kinds = (*model.layers(), model.mtp_layer())
    both = {kind.mixer for kind in kinds if kind.ffn != "none"}
    for half in groups_of(model):
        held = top[:, 0, COLUMN[f"live_{half}"]]
        out[:, :, COLUMN[f"live_{half}"]] = np.where(gone[half] | sent[half], 0, held)[:, None]
        if half not in both:
            out[:, :, COLUMN["live_unit"]] += np.where(gone[half], held // unit, 0)[:, None]
    return out


def _moments(model: Model, top: Ints, gone: dict[str, Bools], sent: dict[str, Bools], unit: int) -> Ints:
    """The moments of each way of a mixture; where all layers are kept those are the rows of ``top``.

    No mode holds less than the mixture of its ways at any of them. So the fullest forward and backward count a
    transient only where the last kind of layer is kept, and two more moments count only what a replayed or
    reloaded layer of that kind brings to them.
    """
    out = np.zeros((len(top), len(SUMMIT) + 2, len(COLUMN)), np.int64)
    out[:, : len(SUMMIT)] = top
    # After a layer's MLP is done with, one layer less is held, whatever the mixture: no row that mixes.
    out[:, SUMMIT.index("backward of attention")] = top[:, 0]
    out[:, len(SUMMIT) :, : len(STAGE_COUNTS)] = top[:, :1, : len(STAGE_COUNTS)]
    last = model.layers()[-1].ffn
    held = {ffn: top[:, 0, COLUMN[f"live_{ffn}"]] for ffn in FFNS}
    away = {ffn: gone[ffn] | sent[ffn] for ffn in FFNS}
    none = np.zeros(len(top), np.int64)
    kept = sum((np.where(away[ffn], 0, held[ffn]) for ffn in FFNS), none)
    units = sum((np.where(gone[ffn], held[ffn] // unit, 0) for ffn in FFNS), none)
    mixed = np.flatnonzero(away["dense"] | away["moe"])
    stay = np.flatnonzero(~away[last])
    for j, transient in enumerate(("at_forward", "at_forward", "at_backward", "at_forward")):
        rows = out[:, j]
        bring = rows[:, COLUMN[f"{transient}_{last}"]].copy()
        stale = rows[:, COLUMN["stale_moe"]].copy()
        rows[mixed, len(STAGE_COUNTS) :] = 0
        for ffn in FFNS:
            rows[mixed, COLUMN[f"live_{ffn}"]] = np.where(away[ffn], 0, held[ffn])[mixed]
        rows[mixed, COLUMN["live_attention"]] = kept[mixed]
        rows[mixed, COLUMN["live_unit"]] = units[mixed]
        some = np.intersect1d(mixed, stay)
        rows[some, COLUMN[f"{transient}_{last}"]] = bring[some]
        if last == "moe":
            rows[some, COLUMN["stale_moe"]] = stale[some]
    anew = away[last] & (held[last] > 0)
    for j, transient in ((len(SUMMIT), "at_forward"), (len(SUMMIT) + 1, "at_backward")):
        rows = out[:, j]
        rows[:, COLUMN["live_unit"]] = np.where(anew, np.maximum(units - 1, 0), units)
        rows[:, COLUMN["live_attention"]] = anew
        rows[:, COLUMN[f"live_{last}"]] = anew
        rows[:, COLUMN[f"{transient}_{last}"]] = anew
    return out
