"""Bounds of layouts before their modes are crossed in: every term at its least over the features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import reserved_factor
from mbsolve.solver.columns import Columns
from mbsolve.solver.relaxed import Way
from mbsolve.solver.rows import STAGE_COLUMN, Rows, no_moments, stage_rows
from mbsolve.solver.step_model import (
    Counter,
    StepModel,
    collectives,
    constant,
    kinds_of,
    least_values,
    limits_of,
)
from mbsolve.solver.tables import Features, Floats, TermTable


class Coarse:
    """Coarse bounds of the layouts of a job in one family, in the unit of the objective.

    Parameters
    ----------
    job, features, objective : what is asked, and whether ``time`` or ``memory`` is minimised.
    limited : whether what is too large is out.
    grids, tables : all grids with their derived sizes, and their term tables at the least over the family.
    ways : the ways that the family mixes.
    """

    def __init__(
        self,
        job: Job,
        features: Features,
        objective: str,
        limited: bool,
        grids: Columns,
        tables: Sequence[TermTable],
        ways: Sequence[Way],
    ) -> None:
        self.job, self.objective, self.limited = job, objective, limited
        self.kinds = kinds_of([t.term for t in tables])
        full = np.full(grids.rows, all(w.full for w in ways))
        self.least = least_values(tables, self.kinds, grids.rows, False, features, full)
        self.fixed = collectives(job, grids, tables)
        self.limit = limits_of(job, tables, grids.rows).device
        self.context = constant(tables, "context_bytes", grids.rows)
        # With one way there is nothing to mix: every layer is kept, or every layer is replayed.
        self.method = "uniform" if len(ways) == 1 and ways[0].full else "none"

    def layouts(self, layouts: Columns) -> Floats:
        """A bound on the objective for each layout, with its real stages but every term at its least."""
        grid = layouts.codes["grid"]
        least = self.least[grid]
        stages, ranks = stage_rows(self.job, self._with_mode(layouts))
        counter = Counter(self.kinds, Rows(stages, ranks, no_moments(layouts.rows)))
        seconds = StepModel(layouts, ranks, self.fixed[grid]).step(counter.passes(least))[0]
        seconds = seconds + self._tail(least)
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
        bound = seconds if self.objective == "time" else fullest * reserved_factor() + self.context[grid]
        return np.where(fullest <= self.limit[grid], bound, math.inf) if self.limited else bound

    def _with_mode(self, layouts: Columns) -> Columns:
        """The layouts with whatever all shapes of the family do to whole layers."""
        zeros = np.zeros(layouts.rows, np.int64)
        mode = {
            "recompute_method": [self.method],
            "recompute_num_layers": [int(self.method == "uniform")],
            "activation_offload_layers": [0],
        }
        return Columns(
            {**layouts.values, **mode}, {**layouts.codes, **dict.fromkeys(mode, zeros)}, layouts.rows
        )

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
