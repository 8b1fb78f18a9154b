"""The shapes in play: layouts in the order of their bound, expanded and bounded only as far as a search needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.vocabulary import FEATURES, SHAPE
from mbsolve.solver.bounds import Bounder, Raised
from mbsolve.solver.chunk import Chunk
from mbsolve.solver.columns import Columns, Ints, stacked
from mbsolve.solver.components import Component
from mbsolve.solver.found import OutOfTime
from mbsolve.solver.goal import Goal, Key
from mbsolve.solver.grids import AHEAD, Grids
from mbsolve.solver.joining import Joiner
from mbsolve.solver.rows import Rows, first_moments, moment_rows, no_moments, stage_rows
from mbsolve.solver.shapes import Shapes, shape_rules
from mbsolve.solver.tables import TermTable, completable, feature_space
from mbsolve.solver.tie import shape_key

__all__ = ["Chunk", "Pool"]

# Pairs of a grid and a family whose layouts are crossed in at once, layouts that are expanded at once, and shapes
# that are tightened at once: a search starts with a fraction of these, to have a plan early.
GRIDS = 64
CHUNK = 256
DUAL = 512
START = 16
# Rounds of the dual for shapes with the moments of one pass.
GLANCE = 6


class Pool:
    """Layouts and shapes of a job under some demands and rules.

    Parameters
    ----------
    job, demands, rules : what is asked, and the rules that hold.
    objective : ``time`` or ``memory``; bounds are in its unit, seconds or bytes.
    memory_limits : whether what does not fit is out.
    goal : the scores of the plans known.
    offer : called with the decisions of a plan that may be one of the best; takes it into the goal if it is.
    """

    def __init__(
        self,
        job: Job,
        demands: Demands,
        rules: Sequence[Rule],
        objective: str,
        memory_limits: bool = True,
        goal: Goal | None = None,
        offer: Callable[[dict[str, Any]], None] = lambda values: None,
    ) -> None:
        self.job, self.objective, self.limited = job, objective, memory_limits
        self.rules, self.goal, self.offer = list(rules), goal or Goal(math.inf), offer
        inside, outside = shape_rules(rules)
        self.features = feature_space(job, demands.domains, outside)
        self.source = Shapes(job, demands, inside, partial(completable, self.features))
        self.chunks: list[Chunk] = []
        self.waiting: list[tuple[float, int, Columns]] = []
        self.layouts = 0
        # Shapes searched exactly so far, and at most: a measure of work that is the same on every machine.
        self.work = 0
        self.most_work: float = math.inf
        self.share = START
        some = self.source.grids.rows and all(self.features.values.values())
        self.grids: Grids | None = None
        if some and self.source.modes(job.model.num_layers + 1, single=True):
            self.grids = Grids(job, self.source, self.features, objective, self.limited)

    @property
    def shapes(self) -> int:
        """Shapes that are open."""
        return sum(chunk.shapes.rows for chunk in self.chunks)

    @property
    def empty(self) -> bool:
        """Whether the rules leave no shape at all."""
        return self.grids is None

    def grow(self, below: float) -> bool:
        """Open the next shapes that may be under ``below``; False when there are none."""
        if self.grids is None or not self._refill(self.grids, below):
            return False
        least, f, layouts = self.waiting.pop(0)
        # What else waits of the family comes along, so that little is not done many times.
        some = [layouts]
        left = []
        for entry in self.waiting:
            room = CHUNK // self.share - sum(part.rows for part in some)
            if entry[1] == f and entry[0] < below and entry[2].rows <= room:
                some.append(entry[2])
            else:
                left.append(entry)
        self.waiting = left
        shapes = self.grids.expand(stacked(self.job, some), f)
        if shapes.rows:
            self._open(shapes, self.grids.shape_tables(shapes), least)
        self.share = max(1, self.share // 2)
        return True

    def _refill(self, grids: Grids, below: float) -> bool:
        """Cross the pipelines into the next grids until some layouts wait."""
        while not self.waiting or min(grids.frontier(), below) < self.waiting[0][0]:
            found = grids.take(below, max(1, GRIDS // self.share))
            if not found:
                break
            for f, index in found:
                layouts = grids.layouts(index)
                self.layouts += layouts.rows
                if not layouts.rows:
                    continue
                bound = grids.layout_bounds(layouts, f, below)
                # What is not under ``below`` waits too: a later search may ask for more.
                kept = np.flatnonzero(np.isfinite(bound))
                kept = kept[np.argsort(bound[kept], kind="stable")]
                size = max(1, CHUNK // self.share)
                for start in range(0, len(kept), size):
                    some = kept[start : start + size]
                    self.waiting.append((float(bound[some[0]]), f, layouts.take(np.sort(some))))
            self.waiting.sort(key=lambda entry: entry[:2])
        return bool(self.waiting) and self.waiting[0][0] < below

    def frontier(self) -> float:
        """A bound on everything that is not open yet."""
        grids = self.grids.frontier() if self.grids is not None else math.inf
        return min(self.waiting[0][0] if self.waiting else math.inf, grids)

    def _open(self, shapes: Columns, tables: list[TermTable], least: float) -> None:
        stages, ranks = stage_rows(self.job, shapes)
        rows = Rows(stages, ranks, no_moments(shapes.rows))
        base = Bounder(self.job, self.features, shapes, rows, tables)
        n = shapes.rows
        bound = np.full(n, least)
        if self.objective == "time":
            bound = np.maximum(bound, base.cheap()[0])
        self.chunks.append(Chunk(base, bound, np.full(n, -math.inf), [None] * n))

    def tighten(self, target: float) -> bool:
        """Tighten bounds of a chunk that are under ``target`` and were not aimed at it; False when there are none."""
        best: tuple[float, Chunk, Ints] | None = None
        for chunk in self.chunks:
            loose = np.flatnonzero((chunk.bound < target) & (chunk.aimed < target * (1 - 1e-9)))
            if len(loose):
                least = float(chunk.bound[loose].min())
                if best is None or least < best[0]:
                    best = least, chunk, loose
        if best is None:
            return False
        _, chunk, loose = best
        order = np.argsort(chunk.bound[loose], kind="stable")[: max(1, DUAL // self.share)]
        self._tighten(chunk, np.sort(loose[order]), target)
        return True

    def _tighten(self, chunk: Chunk, index: Ints, target: float) -> None:
        fresh = index[[chunk.moments[int(i)] is None for i in index]]
        chunk.aimed[index] = target
        if len(fresh):
            if self.limited:
                fresh = self._glance(chunk, fresh, target)
            if len(fresh):
                self._first_look(chunk, fresh)
            index = index[chunk.bound[index] < target]
        if not len(index):
            return
        bounder = chunk.bounder(index)
        if self.objective == "memory":
            bound, chosen = bounder.least_peak()
            chunk.bound[index] = np.maximum(chunk.bound[index], bound)
            k = int(chunk.bound[index].argmin())
            if chunk.bound[index[k]] < self.goal.target:
                self.offer(self._assignment(bounder.shapes, k, bounder.components()[0], chosen[k]))
            return
        raised = bounder.dual(target, limited=self.limited)
        chunk.bound[index] = np.maximum(chunk.bound[index], raised.bound)
        if not self.limited:
            for k in np.argsort(raised.estimate, kind="stable"):
                if not raised.estimate[k] < self.goal.target:
                    break
                self.offer(self._assignment(bounder.shapes, int(k), raised.parts, raised.chosen[k]))
            return
        self._search(chunk, index, bounder, raised)

    def _search(self, chunk: Chunk, index: Ints, bounder: Bounder, raised: Raised) -> None:
        """Search exactly what the dual left under the goal: the least bound first."""
        shapes = bounder.shapes
        joiner = Joiner(
            self.features,
            bounder.kinds,
            bounder.rows,
            bounder.model,
            bounder.limits,
            raised.parts,
            raised.hub,
        )
        place = {int(k): j for j, k in enumerate(raised.left)}
        for k in sorted(place, key=lambda k: (chunk.bound[index[k]], k)):
            if not chunk.bound[index[k]] < self.goal.target:
                break
            self.work += 1
            if self.work > self.most_work:
                raise OutOfTime
            shape = shape_key(shapes.row(k))
            found = joiner.choices(k, partial(self._room, shape), raised.slopes[place[k]])
            if found is None:
                continue
            i = int(index[k])
            known = chunk.keys.setdefault(i, (shape, {}))[1]
            for key, listed in found.items():
                value, best = listed.first(partial(self._legal, shapes, k, raised.parts))
                known[key] = max(value, known.get(key, 0.0))
                if best is not None:
                    self.offer(self._assignment(shapes, k, raised.parts, best))
            chunk.bound[i] = max(chunk.bound[i], min(known.values(), default=math.inf))

    def _room(self, shape: Key, key: Key) -> float:
        return self.goal.room((*shape, *key))

    def _legal(self, shapes: Columns, row: int, parts: Sequence[Component], chosen: Ints) -> bool:
        """Whether a choice of component tuples of a shape satisfies every rule."""
        values = self._assignment(shapes, row, parts, chosen)
        at = {**values, **derive(self.job, values)}
        return all(r.holds(self.job.facts, at) for r in self.rules)

    def _glance(self, chunk: Chunk, index: Ints, target: float) -> Ints:
        """Shapes that are still under the target after a look at the moments of one pass."""
        bounder = chunk.bounder(index, first_moments(self.job, chunk.shapes.take(index)))
        chunk.bound[index[_over(bounder)]] = math.inf
        left = np.flatnonzero(np.isfinite(chunk.bound[index]))
        if self.objective == "time" and len(left):
            bound = bounder.subset(left).dual(target * AHEAD, rounds=GLANCE).bound
            chunk.bound[index[left]] = np.maximum(chunk.bound[index[left]], bound)
        return index[chunk.bound[index] < target]

    def _first_look(self, chunk: Chunk, index: Ints) -> None:
        """Memory of shapes for the first time: out with those that cannot fit, and keep the moments that decide."""
        bounder = chunk.bounder(index, moment_rows(self.job, chunk.shapes.take(index)))
        if self.limited:
            chunk.bound[index[_over(bounder)]] = math.inf
        binding = bounder.binding(everything=not self.limited or self.objective == "memory")
        for k, i in enumerate(index):
            if math.isfinite(chunk.bound[i]):
                chunk.moments[int(i)] = bounder.leading(k, binding[k])

    def _assignment(
        self, shapes: Columns, row: int, parts: Sequence[Component], chosen: Ints
    ) -> dict[str, Any]:
        """The decisions of a shape with a tuple of each component; what is in none has one value."""
        out = {n: v for n, v in shapes.row(row).items() if n in SHAPE}
        found: dict[str, Any] = {n: v[0] for n, v in self.features.values.items()}
        for part, pick in zip(parts, chosen.tolist(), strict=True):
            for name, i in zip(part.names, part.tuples[pick].tolist(), strict=True):
                found[name] = self.features.values[name][i]
        return out | {n: found[n] for n in FEATURES}


def _over(bounder: Bounder) -> Ints:
    """Shapes that are too large whatever their features are."""
    _, device, host = bounder.cheap()
    return np.flatnonzero((device > bounder.limits.device) | (host > bounder.limits.host))
