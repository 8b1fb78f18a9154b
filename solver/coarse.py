"""Bounds of grids and layouts before the dual looks at them: every term at its least over the features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import Replay, stage_counts, virtual_stages
from mbsolve.constraints.vocabulary import Split
from mbsolve.solver.columns import Columns
from mbsolve.solver.rows import STAGE_COLUMN, Rows, no_moments, stage_rows
from mbsolve.solver.step_model import (
    PASS_ROWS,
    Counter,
    StepModel,
    collectives,
    least_values,
    limits_of,
)
from mbsolve.solver.tables import Floats, TermTable

# Counts of resident bytes that every layer brings, whatever rank it is on.
_SPREAD = ("dense", "moe")


class Coarse:
    """Coarse bounds of the grids of a job and of their layouts, in the unit of the objective.

    Parameters
    ----------
    job, objective : what is asked, and whether ``time`` or ``memory`` is minimised.
    limited : whether what is too large is out.
    kinds : as `step_model.kinds_of` numbers them.
    grids, tables : all grids with their derived sizes, and their `relaxed.least_tables`.
    vpps : numbers of virtual stages that may be tried.
    """

    def __init__(
        self,
        job: Job,
        objective: str,
        limited: bool,
        kinds: dict[tuple[str, str], int],
        grids: Columns,
        tables: Sequence[TermTable],
        vpps: Sequence[int],
    ) -> None:
        self.job, self.objective, self.limited, self.kinds, self.vpps = job, objective, limited, kinds, vpps
        self.least = least_values(tables, kinds, grids.rows)
        self.fixed = collectives(job, grids, tables)
        self.limit = limits_of(job, tables, grids.rows).device

    def grids(self, grids: Columns) -> Floats:
        """A bound on the objective for each grid, all layers spread evenly over the pipeline; infinite if too large."""
        stages = virtual_stages(self.job.model, 1, 1, Split())
        whole = stage_counts(stages, 1, Replay())
        pp = grids.array("pp").astype(float)
        rows = np.zeros((grids.rows, 1, len(PASS_ROWS)))
        static = np.zeros(grids.rows)
        for (row, per), kind in self.kinds.items():
            if row in PASS_ROWS and per in whole:
                rows[:, 0, PASS_ROWS.index(row)] += self.least[:, kind] * whole[per] / pp
            elif row == "device_bytes" and per in _SPREAD:
                static += self.least[:, kind] * whole[per] / pp
        deepest = np.minimum(max(self.vpps), np.ceil((self.job.model.num_layers + 2) / pp))
        step = StepModel(grids, np.ones((grids.rows, 1), np.int64), self.fixed, vpp=np.maximum(deepest, 1.0))
        seconds = step.step(rows)[0] + self._tail(self.least)
        memory = np.maximum(static, self._transient(self.least, "moe" if self.job.model.is_moe else "dense"))
        bound = seconds if self.objective == "time" else memory
        return np.where(memory <= self.limit, bound, math.inf) if self.limited else bound

    def layouts(self, layouts: Columns) -> Floats:
        """A bound on the objective for each layout, with its real stages but every term at its least."""
        grid = layouts.codes["grid"]
        least = self.least[grid]
        stages, ranks = stage_rows(self.job, layouts, layouts_only=True)
        counter = Counter(self.kinds, Rows(stages, ranks, no_moments(layouts.rows)))
        seconds = StepModel(layouts, ranks, self.fixed[grid]).step(counter.passes(least))[0] + self._tail(
            least
        )
        memory = np.zeros(stages.shape[:2])
        for (row, per), kind in self.kinds.items():
            if (
                row == "device_bytes"
                and per in STAGE_COLUMN
                and not per.startswith(("replayed", "offloaded"))
            ):
                memory += least[:, kind, None] * stages[:, :, STAGE_COLUMN[per]]
        extra = np.zeros_like(memory)
        for ffn in ("dense", "moe"):
            there = stages[:, :, STAGE_COLUMN[ffn]] > 0
            extra = np.maximum(extra, there * self._transient(least, ffn)[:, None])
        loss = self._value(least, "device_bytes", "at_loss")[:, None] * (
            stages[:, :, STAGE_COLUMN["head"]] > 0
        )
        fullest = (memory + np.maximum(extra, loss)).max(axis=1)
        bound = seconds if self.objective == "time" else fullest
        return np.where(fullest <= self.limit[grid], bound, math.inf) if self.limited else bound

    def _value(self, least: Floats, row: str, per: str) -> Floats:
        kind = self.kinds.get((row, per))
        return least[:, kind] if kind is not None else np.zeros(len(least))

    def _tail(self, least: Floats) -> Floats:
        return sum((least[:, k] for (row, _), k in self.kinds.items() if row == "tail"), np.zeros(len(least)))

    def _transient(self, least: Floats, ffn: str) -> Floats:
        """Bytes that any forward of a layer needs, checkpointed or not."""
        return np.minimum(
            self._value(least, "device_bytes", f"at_forward_{ffn}"),
            self._value(least, "device_bytes", f"at_nograd_{ffn}"),
        )
