"""The shapes in play: layouts in the order of their bound, expanded and bounded only as far as a search needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.rule import Rule, Term
from mbsolve.constraints.terms import TERMS
from mbsolve.constraints.vocabulary import FEATURES, SHAPE
from mbsolve.solver.bounds import Bounder
from mbsolve.solver.chunk import Chunk
from mbsolve.solver.coarse import Coarse
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.components import Component, components
from mbsolve.solver.relaxed import FAMILIES, family_of, family_ways, least_tables, relaxed_grids
from mbsolve.solver.rows import Rows, first_moments, moment_rows, no_moments, stage_rows
from mbsolve.solver.shapes import Shapes, shape_rules
from mbsolve.solver.step_model import kinds_of
from mbsolve.solver.tables import Floats, feature_space, term_tables
from mbsolve.solver.tie import KEY_SHAPE, key_value, shape_key

__all__ = ["Chunk", "Pool"]

# Grids whose layouts are crossed in at once.
GRIDS = 24
# Rounds of the dual for relaxed grids, and for shapes with one moment.
ROUNDS = 12
GLANCE = 6
NEAR = 1.02
# Grids that are relaxed while no target is known, and at once.
FIRST = 384
RELAXED = 256
# Seconds or bytes that stand for a target not known yet.
LARGE = 1e30
# Layouts that are expanded at once, and shapes that are tightened at once.
CHUNK = 256
DUAL = 512


class Pool:
    """Layouts and shapes of a job under some demands and rules.

    Parameters
    ----------
    job, demands, rules : what is asked, and the rules that hold.
    objective : ``time`` or ``memory``; bounds are in its unit, seconds or bytes.
    memory_limits : whether what does not fit is out.
    """

    def __init__(
        self, job: Job, demands: Demands, rules: Sequence[Rule], objective: str, memory_limits: bool = True
    ) -> None:
        self.job, self.objective, self.limited = job, objective, memory_limits
        self.rules = list(rules)
        inside, outside = shape_rules(rules)
        self.source = Shapes(job, demands, inside)
        self.features = feature_space(job, demands.domains, outside)
        self.kinds = kinds_of(TERMS)
        self.chunks: list[Chunk] = []
        self.banned: dict[tuple[Any, ...], set[Any]] = {}
        self.waiting: list[tuple[float, Columns]] = []
        self.asleep: list[tuple[float, Columns]] = []
        self.next = 0
        self.layouts = 0
        self.terms: list[Term] = list(TERMS)
        self.quantum = SECONDS_PER_QUANTUM if objective == "time" else BYTES_PER_QUANTUM
        grids = self.source.grids
        self.empty = not grids.rows or any(not v for v in self.features.values.values())
        self.bound = np.zeros(0)
        if not self.empty:
            grids = grids.with_derived(job)
            self.tables, self.terms = least_tables(self.features, self.source, grids, TERMS)
            vpps = demands.domains["vpp"]
            self.coarse = Coarse(job, objective, self.limited, self.kinds, grids, self.tables, vpps)
            self.bound = self.coarse.grids(grids)
        self.aimed = np.full(len(self.bound), -math.inf)
        self.family = np.zeros((len(self.bound), len(FAMILIES)))
        finite = np.flatnonzero(np.isfinite(self.bound))
        self.order = finite[np.argsort(self.bound[finite], kind="stable")]

    def _layout_bounds(self, layouts: Columns) -> Floats:
        return self.coarse.layouts(layouts)

    def grow(self, below: float) -> bool:
        """Open the next shapes that may be under ``below``; False when there are none."""
        if not self._refill(below):
            return False
        if (
            self.asleep
            and self.asleep[0][0] < below
            and (not self.waiting or self.asleep[0][0] <= self.waiting[0][0])
        ):
            shapes = self.asleep.pop(0)[1]
        else:
            shapes = self.source.expand(self.waiting.pop(0)[1])
        if shapes.rows:
            self._open(shapes, below)
        return True

    def _relax(self, below: float) -> None:
        """Tighten the bounds of grids that are under ``below`` and were not aimed at it, and sort what is left."""
        left = self.order[self.next :]
        loose = left[(self.bound[left] < below) & (self.aimed[left] < min(below, LARGE) * (1 - 1e-3))]
        if math.isinf(below):
            loose = loose[:FIRST]
        if not len(loose):
            return
        grids = self.source.grids.take(loose).with_derived(self.job)
        for start in range(0, len(loose), RELAXED):
            some = loose[start : start + RELAXED]
            part = grids.take(np.arange(start, min(start + RELAXED, len(loose))))
            shapes, rows, tables, deepest, ways = relaxed_grids(
                self.job, self.source, part, some, self.tables
            )
            bounder = Bounder(self.job, self.features, shapes, rows, tables, vpp=deepest)
            at = np.arange(shapes.rows).reshape(len(some), len(ways))
            single = part.array("pp") == 1
            for f, members in enumerate(family_ways(ways).values()):
                mine = single if FAMILIES[f] == "offload" else np.ones(len(some), bool)
                self.family[some[~mine], f] = math.inf
                if not mine.any() or not self._has_family(FAMILIES[f]):
                    self.family[some, f] = math.inf
                    continue
                view = bounder.subset(at[mine][:, members].ravel())
                if len(members) == 1:
                    bound = view.dual(below, rounds=ROUNDS, limited=self.limited).bound
                else:
                    bound = view.mixed(below, len(members), ROUNDS, limited=self.limited)
                self.family[some[mine], f] = np.maximum(self.family[some[mine], f], bound)
            self.bound[some] = np.maximum(self.bound[some], self.family[some].min(axis=1))
            self.aimed[some] = min(below, LARGE)
        left = left[np.argsort(self.bound[left], kind="stable")]
        self.order[self.next :] = left

    def _has_family(self, name: str) -> bool:
        """Whether the demands leave any shape of a family."""
        domains = self.source.demands.domains
        if name == "offload":
            return max(domains["activation_offload_layers"], default=0) > 0
        return name in domains["recompute_method"]

    def _refill(self, below: float) -> bool:
        """Cross the pipelines into the next grids until some layouts wait."""
        if self.objective == "time":
            self._relax(below)
        while min(self._least(self.waiting), self._least(self.asleep)) >= below:
            end = self.next
            while end < len(self.order) and end - self.next < GRIDS and self.bound[self.order[end]] < below:
                end += 1
            if end == self.next:
                return False
            index = np.sort(self.order[self.next : end])
            self.next = end
            layouts = self.source.layouts(index).with_derived(self.job)
            self.layouts += layouts.rows
            if not layouts.rows:
                continue
            bound = self._layout_bounds(layouts)
            # What is not under ``below`` waits too: a later search may ask for more.
            kept = np.flatnonzero(np.isfinite(bound))
            kept = kept[np.argsort(bound[kept], kind="stable")]
            for start in range(0, len(kept), CHUNK):
                some = kept[start : start + CHUNK]
                self.waiting.append((float(bound[some[0]]), layouts.take(np.sort(some))))
            self.waiting.sort(key=lambda pair: pair[0])
        return True

    @staticmethod
    def _least(queue: list[tuple[float, Columns]]) -> float:
        return queue[0][0] if queue else math.inf

    def frontier(self) -> float:
        """A bound on everything that is not open yet."""
        left = [self._least(self.waiting), self._least(self.asleep)]
        if self.next < len(self.order):
            left.append(float(self.bound[self.order[self.next]]))
        return min(left, default=math.inf)

    def _open(self, shapes: Columns, below: float) -> None:
        known = self.family[shapes.codes["grid"], family_of(shapes)]
        far = np.flatnonzero((known >= below * NEAR) & np.isfinite(known))
        if len(far):
            self._put_away(shapes.take(far), float(known[far].min()))
        open_ = known < below * NEAR
        shapes, known = shapes.take(open_), known[open_]
        if not shapes.rows:
            return
        stages, ranks = stage_rows(self.job, shapes)
        tables = term_tables(self.features, shapes, self.terms)
        bounder = Bounder(
            self.job, self.features, shapes, Rows(stages, ranks, no_moments(shapes.rows)), tables
        )
        bound = known
        if self.objective == "time":
            bound = np.maximum(known, bounder.cheap()[0])
        # What is a little over ``below`` is kept at hand for lower ranks, the rest is put away unpriced.
        near = bound < below * NEAR
        later = np.flatnonzero(~near & np.isfinite(bound))
        if len(later):
            self._put_away(shapes.take(later), float(bound[later].min()))
        kept = np.flatnonzero(near)
        n = len(kept)
        if n:
            self.chunks.append(
                Chunk(
                    shapes.take(kept),
                    stages[kept],
                    ranks[kept],
                    [replace(t, classes=t.classes[kept]) for t in tables],
                    bounder.least()[kept],
                    bound[kept],
                    np.full(n, -math.inf),
                    np.full(n, math.inf),
                    [None] * n,
                    [None] * n,
                )
            )

    def _put_away(self, shapes: Columns, bound: float) -> None:
        self.asleep.append((bound, shapes))
        self.asleep.sort(key=lambda pair: pair[0])

    def ban(self, keys: Sequence[tuple[Any, ...]]) -> None:
        """Let no plan have one of these keys (`tie.key_of`); bounds of the shapes concerned are taken up again."""
        for key in keys:
            shape, features = key[: len(KEY_SHAPE)], key[len(KEY_SHAPE) :]
            if features in self.banned.setdefault(shape, set()):
                continue
            self.banned[shape].add(features)
            for chunk in self.chunks:
                same = np.ones(chunk.shapes.rows, bool)
                for name, wanted in zip(KEY_SHAPE, shape, strict=True):
                    values = [key_value(name, v) == wanted for v in chunk.shapes.values[name]]
                    same &= np.array(values, bool)[chunk.shapes.codes[name]]
                chunk.aimed[same & ~np.isneginf(chunk.aimed)] = 0.0
                for i in np.flatnonzero(same):
                    chunk.guess[int(i)], chunk.estimate[int(i)] = None, math.inf

    def tighten(self, target: float) -> bool:
        """Tighten the least bounds that are under ``target`` and were not aimed at it; False when there are none."""
        rows: list[tuple[float, int, int]] = []
        for c, chunk in enumerate(self.chunks):
            loose = np.flatnonzero((chunk.bound < target) & (chunk.aimed < target * (1 - 1e-9)))
            if math.isinf(target):
                loose = np.flatnonzero((chunk.bound < target) & np.isneginf(chunk.aimed))
            rows += [(float(chunk.bound[i]), c, int(i)) for i in loose]
        rows.sort()
        if not rows:
            return False
        by_chunk: dict[int, list[int]] = {}
        for _, c, i in rows[:DUAL]:
            by_chunk.setdefault(c, []).append(i)
        for c, found in by_chunk.items():
            self._tighten(self.chunks[c], np.array(sorted(found), np.int64), target)
        return True

    def _tighten(self, chunk: Chunk, index: Ints, target: float) -> None:
        fresh = index[[chunk.moments[int(i)] is None for i in index]]
        chunk.aimed[index] = target if math.isfinite(target) else 0.0
        if len(fresh):
            if self.limited:
                fresh = self._glance(chunk, fresh, target)
            if len(fresh):
                self._first_look(chunk, fresh)
            index = index[chunk.bound[index] < target]
        if not len(index):
            return
        shapes, rows, tables = chunk.take(index)
        bounder = Bounder(self.job, self.features, shapes, rows, tables, least=chunk.least[index])
        if self.objective == "memory":
            chunk.bound[index] = np.maximum(chunk.bound[index], bounder.least_peak())
            return
        banned = None
        if self.banned:
            banned = [frozenset(self.banned.get(shape_key(shapes.row(k)), ())) for k in range(shapes.rows)]
        raised = bounder.dual(
            target,
            limited=self.limited,
            legal=self._legal(shapes, bounder) if self.limited else None,
            banned=banned,
        )
        chunk.bound[index] = np.maximum(chunk.bound[index], raised.bound)
        if math.isfinite(target):
            chunk.aimed[index] = raised.reached
        for k in np.flatnonzero(raised.estimate < chunk.estimate[index]):
            i = int(index[k])
            chunk.estimate[i] = raised.estimate[k]
            chunk.guess[i] = self._relaxed_plan(shapes, int(k), raised.parts, raised.chosen[k])

    def _legal(self, shapes: Columns, bounder: Bounder) -> Callable[[int, Ints], bool]:
        """Whether a choice of component tuples of a shape satisfies every rule."""
        parts, _ = components(self.features, shapes, bounder.tables, bounder.kinds)

        def check(row: int, chosen: Ints) -> bool:
            values = self._relaxed_plan(shapes, row, parts, chosen)
            at = {**values, **derive(self.job, values)}
            return all(r.holds(self.job.facts, at) for r in self.rules)

        return check

    def _glance(self, chunk: Chunk, index: Ints, target: float) -> Ints:
        """Shapes that are still under the target after a look at one moment of the first rank."""
        shapes = chunk.shapes.take(index)
        moments = first_moments(self.job, shapes, chunk.stages[index])
        rows = Rows(chunk.stages[index], chunk.ranks[index], moments)
        tables = [replace(t, classes=t.classes[index]) for t in chunk.tables]
        bounder = Bounder(self.job, self.features, shapes, rows, tables, least=chunk.least[index])
        _, over, over_host = bounder.cheap()
        chunk.bound[index[(over > 0) | (over_host > 0)]] = math.inf
        left = np.flatnonzero(np.isfinite(chunk.bound[index]))
        if self.objective == "time" and math.isfinite(target) and len(left):
            bound = bounder.subset(left).dual(target, rounds=GLANCE).bound
            chunk.bound[index[left]] = np.maximum(chunk.bound[index[left]], bound)
        return index[chunk.bound[index] < target]

    def _first_look(self, chunk: Chunk, index: Ints) -> None:
        """Memory of shapes for the first time: out with those that cannot fit, and keep the moments that decide."""
        shapes = chunk.shapes.take(index)
        rows = Rows(chunk.stages[index], chunk.ranks[index], moment_rows(self.job, shapes))
        tables = [replace(t, classes=t.classes[index]) for t in chunk.tables]
        bounder = Bounder(self.job, self.features, shapes, rows, tables, least=chunk.least[index])
        _, over, over_host = bounder.cheap()
        if self.limited:
            chunk.bound[index[(over > 0) | (over_host > 0)]] = math.inf
        binding = bounder.binding(everything=not self.limited or self.objective == "memory")
        for k, i in enumerate(index):
            chunk.moments[int(i)] = rows.moments[k][binding[k]]

    def _relaxed_plan(
        self, shapes: Columns, row: int, parts: Sequence[Component], chosen: Ints
    ) -> dict[str, Any]:
        """The decisions of a shape's relaxed minimiser; a feature in no term takes its first value."""
        out = {n: v for n, v in shapes.row(row).items() if n in SHAPE}
        found: dict[str, Any] = {n: v[0] for n, v in self.features.values.items()}
        for part, pick in zip(parts, chosen.tolist(), strict=True):
            for name, i in zip(part.names, part.tuples[pick].tolist(), strict=True):
                found[name] = self.features.values[name][i]
        return out | {n: found[n] for n in FEATURES}
