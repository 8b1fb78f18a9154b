"""The grids of a job: bounded family by family before their pipelines are crossed in, and opened in that order."""

from __future__ import annotations

import math

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.terms import TERMS
from mbsolve.solver.bounds import Bounder
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.least import GridTables, too_large
from mbsolve.solver.relaxed import MOMENTS, Relaxed, coarse, families_of, in_family, relaxed
from mbsolve.solver.rows import STAGE_COLUMN, Rows, no_moments
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Bools, Features, Floats, TermTable

# Rounds of the dual in one refinement, and refinements of a pair that do not reach their target.
ROUNDS = 7
TURNS = 2
# How far above the target bounds are raised, so that a later and higher target finds them high enough.
AHEAD = 1.05
# Relaxed shapes that are refined at once.
REFINED = 1024


class Grids:
    """Bounds of the grids of a job, one for each family, in the unit of the objective.

    Parameters
    ----------
    job, source, features : the job, its shapes, and the domains and rules of its features.
    objective : ``time`` or ``memory``.
    limited : whether what does not fit is out.
    """

    def __init__(self, job: Job, source: Shapes, features: Features, objective: str, limited: bool) -> None:
        self.job, self.source, self.features = job, source, features
        self.objective, self.limited = objective, limited
        self.columns = source.grids.with_derived(job)
        self.families = families_of(job.model, source.modes(job.model.num_layers + 1, single=True))
        pairs = frozenset[tuple[bool, str]]().union(*(f.pairs for f in self.families))
        self.tables = GridTables(features, self.columns, TERMS, pairs)
        # Row of ``columns`` -> row of the grids of ``source``.
        self.rows = np.arange(self.columns.rows)
        if limited:
            self.rows = np.flatnonzero(~too_large(job, self.columns, self.tables.least(pairs)))
            self.columns = self.columns.take(self.rows)
            self.tables.take(self.rows)
        self._bounders: dict[int, Bounder] = {}
        self.bound = np.full((self.columns.rows, len(self.families)), math.inf)
        self.turns = np.zeros(self.bound.shape, np.int64)
        self.prices = np.zeros((*self.bound.shape, 2, MOMENTS))
        self.opened = np.zeros(self.bound.shape, bool)
        single = self.columns.array("pp") == 1
        for f, family in enumerate(self.families):
            mine = np.flatnonzero(single if family.name == "offload" else np.ones(len(single), bool))
            if family.pairs and len(mine):
                found = coarse(job, source, self.columns.take(mine), family)
                self.bound[mine, f] = self._cheap(self._moved(found, mine, f), found.possible, f)

    def _bounder(self, nodes: Columns, index: Ints, f: int) -> tuple[Bounder, Bools]:
        """A bounder of the relaxed shapes of some grids or layouts, and which of these have a pipeline.

        ``index`` are their grids.
        """
        found = relaxed(self.job, self.source, nodes, self.families[f])
        return self._moved(found, index, f), found.possible

    def _moved(self, found: Relaxed, index: Ints, f: int) -> Bounder:
        """A bounder of relaxed shapes of the grids at ``index``, with the terms and rules of their family."""
        family = self.families[f]
        if f not in self._bounders:
            shapes = in_family(self.columns, family)
            rows = Rows(
                np.zeros((shapes.rows, 1, len(STAGE_COLUMN)), np.int64),
                np.ones((shapes.rows, 1), np.int64),
                no_moments(shapes.rows),
            )
            ones = np.ones(shapes.rows, np.int64)
            tables = self.tables.least(family.pairs)
            self._bounders[f] = Bounder(self.job, self.features, shapes, rows, tables, vpp=ones)
        spread = np.repeat(index, len(family.ways))
        return self._bounders[f].moved(spread, found.shapes, found.rows, found.vpp)

    def _cheap(self, bounder: Bounder, possible: Bools, f: int) -> Floats:
        ways = len(self.families[f].ways)
        seconds, device, host = bounder.cheap(ways)
        bound = seconds if self.objective == "time" else bounder.peak(device, ways)
        over = (device > bounder.limits.device[::ways]) | (host > bounder.limits.host)
        return np.asarray(np.where(over & self.limited | ~possible, math.inf, bound))

    def _raised(self, bounder: Bounder, f: int, below: float, prices: Floats) -> Floats:
        """Bounds after some rounds towards ``below``; the prices are left where they got to."""
        ways, moments = len(self.families[f].ways), bounder.rows.moments.shape[1]
        if self.objective == "memory":
            return bounder.least_peak(ways)[0]
        raised = bounder.dual(below * AHEAD, ROUNDS, self.limited, ways, prices[:, :, :moments])
        prices[:, :, :moments] = raised.prices
        return raised.bound

    def take(self, below: float, most: int) -> list[tuple[int, Ints]]:
        """Open the next grids under ``below``: (family, rows of `columns`) of at most so many pairs of the two.

        A pair is opened when its bound is among the least after it was refined a number of times.
        """
        turns = TURNS if self.objective == "time" else 1
        while True:
            left = np.where(self.opened, math.inf, self.bound).ravel()
            order = np.argsort(left, kind="stable")
            order = order[(left[order] < below) & np.isfinite(left[order])]
            rough = self.turns.ravel()[order] < turns
            if not rough[:most].any():
                break
            self._refine(order[rough][:REFINED], below)
        grids, families = np.divmod(order[:most], len(self.families))
        self.opened[grids, families] = True
        return [(int(f), np.sort(grids[families == f])) for f in np.unique(families)]

    def _refine(self, pairs: Ints, below: float) -> None:
        """Raise the bounds of some pairs (positions in the flat `bound`) towards ``below``."""
        for f, family in enumerate(self.families):
            some = np.sort(pairs[pairs % len(self.families) == f] // len(self.families))
            ways = len(family.ways)
            for start in range(0, len(some), max(1, REFINED // ways)):
                mine = some[start : start + max(1, REFINED // ways)]
                prices = self.prices[mine, f]
                self.bound[mine, f] = self._tightened(self.columns.take(mine), mine, f, below, prices)
                self.prices[mine, f] = prices
                self.turns[mine, f] += self.bound[mine, f] < below

    def frontier(self) -> float:
        """A bound on everything that is not open yet."""
        return float(np.where(self.opened, math.inf, self.bound).min(initial=math.inf))

    def untouched(self) -> int:
        """Grids of which no family was opened."""
        return self.source.grids.rows - int(self.opened.any(axis=1).sum())

    def layouts(self, index: Ints) -> Columns:
        """The layouts of some grids, with their derived sizes."""
        return self.source.layouts(self.rows[index]).with_derived(self.job)

    def shape_tables(self, shapes: Columns) -> list[TermTable]:
        """Term tables of some full shapes."""
        return self.tables.of(shapes, np.searchsorted(self.rows, shapes.codes["grid"]))

    def layout_bounds(self, layouts: Columns, f: int, below: float) -> Floats:
        """Bounds of some layouts in one family, raised towards ``below`` and not below those of their grids."""
        grid = np.searchsorted(self.rows, layouts.codes["grid"])
        return self._tightened(layouts, grid, f, below, self.prices[grid, f])

    def _tightened(self, nodes: Columns, index: Ints, f: int, below: float, prices: Floats) -> Floats:
        """Bounds of grids or layouts of the grids at ``index``; ``prices`` are left where they got to."""
        bounder, possible = self._bounder(nodes, index, f)
        bound: Floats = np.maximum(self._cheap(bounder, possible, f), self.bound[index, f])
        loose = np.flatnonzero(bound < below)
        if len(loose):
            ways = len(self.families[f].ways)
            some = bounder.subset((loose[:, None] * ways + np.arange(ways)).ravel())
            mine = prices[loose]
            bound[loose] = np.maximum(bound[loose], self._raised(some, f, below, mine))
            prices[loose] = mine
        return bound

    def expand(self, layouts: Columns, f: int) -> Columns:
        """The full shapes of some layouts that belong to one family."""
        return self.source.expand(layouts, lambda mode: self.families[f].holds(mode))
