"""The grids of a job: bounded family by family before their pipelines are crossed in, and opened in that order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.terms import TERMS
from mbsolve.solver.bounds import Bounder
from mbsolve.solver.coarse import Coarse
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.relaxed import MOMENTS, GridTables, families_of, relaxed_grids
from mbsolve.solver.shapes import Shapes
from mbsolve.solver.tables import Features, Floats

# Rounds of the dual in one refinement, and refinements of a pair that do not reach their target.
ROUNDS = 5
TURNS = 3
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
        tables = GridTables(features, self.columns, TERMS, pairs)
        self.terms = tables.terms
        self.tables = [tables.least(f.pairs) for f in self.families]
        self.bound = np.full((self.columns.rows, len(self.families)), math.inf)
        self.turns = np.zeros(self.bound.shape, np.int64)
        self.prices = np.zeros((*self.bound.shape, 2, MOMENTS))
        self.opened = np.zeros(self.bound.shape, bool)
        self._coarse: dict[int, Coarse] = {}
        single = self.columns.array("pp") == 1
        for f, family in enumerate(self.families):
            mine = np.flatnonzero(single if family.name == "offload" else np.ones(len(single), bool))
            if family.pairs and len(mine):
                self.bound[mine, f] = self._cheap(mine, f)

    def _bounder(self, index: Ints, f: int) -> Bounder:
        """A bounder of the relaxed shapes of some grids in one family."""
        mine = [replace(t, classes=t.classes[index]) for t in self.tables[f]]
        grids = self.columns.take(index)
        shapes, rows, tables, deepest = relaxed_grids(self.job, self.source, grids, mine, self.families[f])
        return Bounder(self.job, self.features, shapes, rows, tables, vpp=deepest)

    def _cheap(self, index: Ints, f: int) -> Floats:
        bounder, ways = self._bounder(index, f), len(self.families[f].ways)
        seconds, device, host = bounder.cheap(ways)
        bound = seconds if self.objective == "time" else bounder.peak(device, ways)
        over = (device > bounder.limits.device[::ways]) | (host > bounder.limits.host)
        return np.where(over & self.limited, math.inf, bound)

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
                bounder = self._bounder(mine, f)
                if self.objective == "memory":
                    bound = bounder.least_peak(ways)
                else:
                    raised = bounder.dual(below, ROUNDS, self.limited, ways, self.prices[mine, f])
                    bound, self.prices[mine, f] = raised.bound, raised.prices
                self.bound[mine, f] = np.maximum(self.bound[mine, f], bound)
                self.turns[mine, f] += self.bound[mine, f] < below

    def frontier(self) -> float:
        """A bound on everything that is not open yet."""
        return float(np.where(self.opened, math.inf, self.bound).min(initial=math.inf))

    def untouched(self) -> int:
        """Grids of which no family was opened."""
        return int((~self.opened.any(axis=1)).sum())

    def layouts(self, index: Ints) -> Columns:
        """The layouts of some grids, with their derived sizes."""
        return self.source.layouts(index).with_derived(self.job)

    def layout_bounds(self, layouts: Columns, f: int) -> Floats:
        """Bounds of some layouts in one family, not below those of their grids."""
        if f not in self._coarse:
            self._coarse[f] = Coarse(
                self.job,
                self.features,
                self.objective,
                self.limited,
                self.columns,
                self.tables[f],
                self.families[f].ways,
            )
        return np.maximum(self._coarse[f].layouts(layouts), self.bound[layouts.codes["grid"], f])

    def expand(self, layouts: Columns, f: int) -> Columns:
        """The full shapes of some layouts that belong to one family."""
        return self.source.expand(layouts, lambda mode: self.families[f].holds(mode))
