"""The shapes in play: layouts in the order of their bound, expanded and bounded only as far as a search needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.job import Job
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.terms import TERMS
from mbsolve.constraints.vocabulary import FEATURES
from mbsolve.solver.bounds import (
    Bounder,
    Component,
    Counter,
    StepModel,
    collectives,
    kinds_of,
    least_values,
    limits_of,
)
from mbsolve.solver.rows import STAGE_COLUMN, Rows, moment_rows, stage_rows
from mbsolve.solver.shapes import Columns, Ints, Shapes, shape_rules
from mbsolve.solver.tables import Floats, TermTable, feature_space, term_tables

GRID = ("tp", "cp", "pp", "ep", "etp", "mbs", "sequence_parallel")
FIRST = 24
CHUNK = 160
DUAL = 192


@dataclass
class Chunk:
    """Some full shapes with everything known of them; bounds in the unit of the objective (seconds or bytes)."""

    shapes: Columns
    rows: Rows
    tables: list[TermTable]
    bound: Floats
    estimate: Floats
    chosen: Ints
    parts: list[list[Component]]
    part_of: Ints
    aimed: Floats

    def take(self, index: Ints) -> tuple[Columns, Rows, list[TermTable]]:
        """Inputs of a master model over some of the shapes."""
        tables = [replace(t, classes=t.classes[index]) for t in self.tables]
        return self.shapes.take(index), self.rows.take(index), tables


class Pool:
    """Layouts and shapes of a job under some demands and rules."""

    def __init__(
        self, job: Job, demands: Demands, rules: Sequence[Rule], objective: str, memory_limits: bool = True
    ) -> None:
        self.job, self.objective, self.limited = job, objective, memory_limits
        inside, outside = shape_rules(rules)
        self.source = Shapes(job, demands, inside)
        self.features = feature_space(job, demands.domains, outside)
        self.layouts = self.source.layouts
        self.chunks: list[Chunk] = []
        self.next = 0
        self.shapes_seen = 0
        self.over_memory = 0
        self.quantum = SECONDS_PER_QUANTUM if objective == "time" else BYTES_PER_QUANTUM
        self.layout_bound, self.layout_static = self._layout_bounds()
        finite = np.flatnonzero(np.isfinite(self.layout_bound))
        self.order = finite[np.argsort(self.layout_bound[finite], kind="stable")]

    @property
    def empty(self) -> bool:
        """Whether no feature or layout is left at all."""
        return not self.layouts.rows or any(not v for v in self.features.values.values())

    def _layout_bounds(self) -> tuple[Floats, Floats]:
        """For each layout: a bound on the objective, and the least resident bytes of its fullest rank."""
        layouts = self.layouts
        if self.empty:
            return np.zeros(0), np.zeros(0)
        first, grid_of = layouts.classes(GRID)
        grids = layouts.take(first).with_derived(self.job)
        kinds: dict[tuple[str, str], int] = kinds_of(TERMS)
        best, tables = self._least_over_modes(grids, kinds)
        stages, ranks = stage_rows(self.job, layouts, layouts_only=True)
        counts = Rows(stages, ranks, np.zeros((layouts.rows, 1, len(COLUMN)), np.int64))
        best = best[grid_of]
        counter = Counter(kinds, counts)
        fixed = collectives(self.job, grids, tables)[grid_of]
        layouts = layouts.with_derived(self.job)
        seconds = StepModel(layouts, ranks, fixed).step(counter.passes(best))[0]
        seconds = seconds + best[:, counter.tail].sum(axis=1)
        static = np.zeros(stages.shape[:2])
        for (row, per), kind in kinds.items():
            if row == "device_bytes" and per in STAGE_COLUMN and not per.startswith(("replayed", "offloaded")):
                static += best[:, kind, None] * stages[:, :, STAGE_COLUMN[per]]
        least = static.max(axis=1)
        if self.limited:
            limit = limits_of(self.job, tables, grids.rows).device[grid_of]
            seconds = np.where(least <= limit, seconds, math.inf)
            self.over_memory = int((~np.isfinite(seconds)).sum())
        return (seconds if self.objective == "time" else np.where(np.isfinite(seconds), least, math.inf)), least

    def _least_over_modes(
        self, grids: Columns, kinds: dict[tuple[str, str], int]
    ) -> tuple[Floats, list[TermTable]]:
        """Each kind at its least over the features and the modes that a term may name.

        A term that names the pipeline split is counted as nothing: a grid has many.
        """
        terms = [t for t in TERMS if not {"vpp", "split"} & set(t.scope)]
        demands = self.source.demands.domains
        best: Floats | None = None
        tables: list[TermTable] = []
        for overlap in demands["ep_overlap"]:
            for impl in demands["cuda_graph_impl"]:
                one = Columns(
                    {**grids.values, "ep_overlap": [overlap], "cuda_graph_impl": [impl]},
                    {**grids.codes, **{n: np.zeros(grids.rows, np.int64) for n in ("ep_overlap", "cuda_graph_impl")}},
                    grids.rows,
                )
                tables = term_tables(self.features, one, terms)
                values = least_values(tables, kinds, grids.rows)
                best = values if best is None else np.minimum(best, values)
        assert best is not None
        return best, tables

    def grow(self, below: float, target: float) -> bool:
        """Expand the next layouts whose bound is under ``below``; False when there are none."""
        end, most = self.next, CHUNK if self.chunks else FIRST
        while end < len(self.order) and end - self.next < most and self.layout_bound[self.order[end]] < below:
            end += 1
        if end == self.next:
            return False
        index = self.order[self.next : end]
        self.next = end
        shapes = self.source.expand(np.sort(index))
        self.shapes_seen += shapes.rows
        if not shapes.rows:
            return True
        stages, ranks = stage_rows(self.job, shapes)
        bounder = Bounder(self.job, self.features, shapes, Rows(stages, ranks, _no_moments(shapes.rows)), TERMS)
        kept = np.arange(shapes.rows)
        if self.objective == "time":
            kept = np.flatnonzero(bounder.cheap()[0] < below)
        if not len(kept):
            return True
        bounder = bounder.take(kept, moment_rows(self.job, shapes.take(kept)))
        seconds, over, over_host = bounder.cheap()
        bound = seconds if self.objective == "time" else over + bounder.limits.device
        keep = bound < below
        if self.limited:
            keep &= (over <= 0) & (over_host <= 0)
        kept = np.flatnonzero(keep)
        if not len(kept):
            return True
        n = len(kept)
        tables = [replace(t, classes=t.classes[kept]) for t in bounder.tables]
        self.chunks.append(
            Chunk(
                bounder.shapes.take(kept),
                bounder.rows.take(kept),
                tables,
                bound[kept],
                np.full(n, math.inf),
                np.zeros((n, 0), np.int64),
                [],
                np.full(n, -1, np.int64),
                np.full(n, -math.inf),
            )
        )
        self.raise_bounds(self.chunks[-1], target)
        return True

    def raise_bounds(self, chunk: Chunk, target: float) -> None:
        """Tighten the bounds that are still under ``target`` (the objective's unit)."""
        want = np.flatnonzero((chunk.bound < target) & ((chunk.aimed < target * 0.999) | (chunk.aimed == -math.inf)))
        for start in range(0, len(want), DUAL):
            index = want[start : start + DUAL]
            shapes, rows, tables = chunk.take(index)
            bounder = Bounder(self.job, self.features, shapes, rows, (), tables)
            if self.objective == "time":
                bound, estimate, chosen, parts = bounder.dual(target, limited=self.limited)
                better = estimate < chunk.estimate[index]
                if better.any():
                    if chunk.chosen.shape[1] < chosen.shape[1]:
                        chunk.chosen = np.zeros((chunk.shapes.rows, chosen.shape[1]), np.int64)
                    chunk.chosen[index[better]] = chosen[better]
                    chunk.part_of[index[better]] = len(chunk.parts)
                    chunk.estimate[index[better]] = estimate[better]
                    chunk.parts.append(parts)
            else:
                bound = bounder.least_peak()
            chunk.bound[index] = np.maximum(chunk.bound[index], bound)
            chunk.aimed[index] = target

    def relaxed_plan(self, chunk: Chunk, row: int) -> dict[str, Any] | None:
        """The decisions of a shape's best relaxed minimiser; a feature in no term takes its first value."""
        if chunk.part_of[row] < 0:
            return None
        out = chunk.shapes.row(row)
        out.pop("layout")
        found: dict[str, Any] = {n: v[0] for n, v in self.features.values.items()}
        for c, part in enumerate(chunk.parts[chunk.part_of[row]]):
            picked = part.tuples[chunk.chosen[row, c]]
            for name, i in zip(part.names, picked.tolist(), strict=True):
                found[name] = self.features.values[name][i]
        return out | {n: found[n] for n in FEATURES}


def _no_moments(rows: int) -> Ints:
    return np.zeros((rows, 1, len(COLUMN)), np.int64)
