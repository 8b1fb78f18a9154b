"""The master model: every decision of some shapes as CP-SAT variables, every rule and term as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import reserved_permille
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.quantise import PERMILLE, permille_down, permille_up, quanta
from mbsolve.constraints.quantised import bubble_weight, ceil_div, memory_limits
from mbsolve.constraints.rule import RESERVED
from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS, exposure
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.decisions import CLAUSES, Decisions, Literal
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.step_model import PASS_ROWS
from mbsolve.solver.tables import Features, Floats, TermTable

__all__ = ["CLAUSES", "Literal", "Master", "Row"]

# Quanta that no step and no memory reaches (12 hours, 4 PiB); sums of them stay within 63 bits.
LONGEST = LARGEST = 1 << 42


@dataclass
class Row:
    """A linear form for each shape: constants, and coefficients on shared literals."""

    constant: Ints
    literals: dict[int, tuple[Literal, Ints]] = field(default_factory=dict)

    def add(self, literal: Literal, delta: Ints) -> None:
        """Add a literal's coefficient for each shape."""
        key = literal.index
        if key in self.literals:
            delta = self.literals[key][1] + delta
        self.literals[key] = (literal, delta)

    def of(self, shape: int) -> tuple[int, list[Literal], list[int]]:
        """(constant, literals, coefficients) of one shape."""
        pairs = [(z, int(d[shape])) for z, d in self.literals.values() if d[shape]]
        return int(self.constant[shape]), [z for z, _ in pairs], [d for _, d in pairs]


class Master(Decisions):
    """One CP-SAT model over some shapes, with their budgets and objective.

    Parameters
    ----------
    job, features : the job and the domains and rules of its features.
    shapes, rows, tables : full shapes with their counts and term tables.
    """

    def __init__(
        self, job: Job, features: Features, shapes: Columns, rows: Rows, tables: Sequence[TermTable]
    ) -> None:
        super().__init__(features, shapes)
        self.job, self.rows, self.tables = job, rows, tables

    def rows_at(self, which: Sequence[str], counts: Callable[[str], Ints | Floats], unit: str) -> list[Row]:
        """Rows over some term rows, one for each of several places.

        ``counts(per)`` gives the counts (shapes, places) of the terms that are counted by ``per``.
        """
        groups: dict[tuple[str, ...], tuple[Ints, Ints]] = {}
        places = counts("one").shape[1]
        for t in self.tables:
            if t.term.row not in which:
                continue
            n = counts(t.term.per)
            if not n.any():
                continue
            value = quanta(n[:, :, None] * t.values[t.classes][:, None, :], unit)
            if t.features in groups:
                value = groups[t.features][1] + value
            groups[t.features] = (t.tuples, value)
        out = [Row(np.zeros(self.shapes.rows, np.int64)) for _ in range(places)]
        for names, (tuples, value) in groups.items():
            self._add(out, names, tuples, value)
        return out

    def _add(self, out: Sequence[Row], names: tuple[str, ...], tuples: Ints, value: Ints) -> None:
        """Add a table to rows: on the booleans themselves where it is affine in them, else on selectors."""
        flags = [len(self.features.values[n]) == 2 for n in names]
        index = {tuple(t): i for i, t in enumerate(tuples.tolist())}
        zero = tuple(0 for _ in names)
        units = [tuple(int(i == j) for j in range(len(names))) for i in range(len(names))]
        if all(flags) and zero in index and all(u in index for u in units):
            base = value[:, :, index[zero]]
            deltas = value[:, :, [index[u] for u in units]] - base[:, :, None]
            if (base[:, :, None] + deltas @ tuples.T == value).all():
                self._spread(out, base, [self.literals[name][1] for name in names], deltas)
                return
        picks = self.select(names, tuples) if len(tuples) > 1 else [None]
        self._spread(out, value[:, :, 0], picks[1:], value[:, :, 1:] - value[:, :, :1])

    @staticmethod
    def _spread(out: Sequence[Row], base: Ints, literals: Sequence[Literal], deltas: Ints) -> None:
        """Add constants (shapes, places) and coefficients (shapes, places, literals) to the rows of the places."""
        used = np.asarray(deltas.any(axis=0))
        for r, row in enumerate(out):
            row.constant += base[:, r]
            for k in np.flatnonzero(used[r]).tolist():
                row.add(literals[k], deltas[:, r, k])

    def memory_rows(self) -> list[Row]:
        """Device memory at every moment, in quanta."""
        return self.rows_at(RESERVED, self._held, "bytes")

    def host_rows(self) -> list[Row]:
        """Host memory of one rank at every moment, in quanta."""
        found = self.rows_at(["host_bytes"], self._held, "bytes")
        return [r for r in found if r.literals or r.constant.any()]

    def context(self) -> Ints:
        """Quanta of context and communicators, for each shape."""
        return self._total(["context_bytes"], "bytes").constant

    def _held(self, per: str) -> Ints:
        return self.rows.moments[:, :, COLUMN[per]]

    def _placed(self, per: str) -> Ints | Floats:
        return self.rows.stages[:, :, STAGE_COLUMN[per]]

    def _once(self, per: str) -> Ints:
        return np.full((self.shapes.rows, 1), int(per == "one"), np.int64)

    def _total(self, which: Sequence[str], unit: str) -> Row:
        """A row over terms that count once."""
        return self.rows_at(which, self._once, unit)[0]

    def post_memory(self, peak_wanted: bool, unlimited: bool = False) -> Any:
        """Budgets of device and host; returns the variable of the device peak when it is wanted."""
        limit, host_limit = memory_limits(self.job)
        factor, context = reserved_permille(self.job), self.context()
        if unlimited:
            limit = host_limit = LARGEST
        peak = self.model.new_int_var(0, max(limit, 0), "peak") if peak_wanted else None
        for row in self.memory_rows():
            for j in range(self.shapes.rows):
                constant, lits, deltas = row.of(j)
                if not constant and not lits:
                    continue
                room = PERMILLE * (limit - int(context[j])) - factor * constant
                if peak is not None:
                    form = cp_model.LinearExpr.weighted_sum(
                        [*lits, peak], [*(factor * d for d in deltas), -PERMILLE]
                    )
                    self.model.add(form <= -factor * constant - PERMILLE * int(context[j])).only_enforce_if(
                        self.shape[j]
                    )
                elif factor * sum(d for d in deltas if d > 0) > room:
                    form = cp_model.LinearExpr.weighted_sum(lits, [factor * d for d in deltas])
                    self.model.add(form <= room).only_enforce_if(self.shape[j])
        for row in self.host_rows():
            for j in range(self.shapes.rows):
                constant, lits, deltas = row.of(j)
                if sum(d for d in deltas if d > 0) + constant > host_limit:
                    form = cp_model.LinearExpr.weighted_sum(lits, deltas)
                    self.model.add(form <= host_limit - constant).only_enforce_if(self.shape[j])
        return peak

    def post_time(self, most: int) -> Any:
        """The step as a variable, at most ``most`` quanta."""
        m = self.model
        pp, vpp = self.shapes.array("pp"), self.shapes.array("vpp")
        micro = self.shapes.array("microbatches")
        classes = self.rows.stages.shape[1]
        step = m.new_int_var(0, most, "step")
        # The slowest stage runs once for each micro-batch: a tight domain keeps products far from overflow.
        longest = most // max(1, int(micro.min()))
        slowest = m.new_int_var(0, longest, "slowest")
        totals, first = [], {}
        rows = {name: self.rows_at([name], self._placed, "seconds") for name in PASS_ROWS}
        for s in range(classes):
            parts = {}
            for name in PASS_ROWS:
                row = rows[name][s]
                parts[name] = m.new_int_var(0, longest, f"{name}{s}")
                if s == 0:
                    first[name] = row
                for j in range(self.shapes.rows):
                    constant, lits, deltas = row.of(j)
                    if constant or lits:
                        form = cp_model.LinearExpr.weighted_sum([*lits, parts[name]], [*deltas, -1])
                        m.add(form <= -constant).only_enforce_if(self.shape[j])
            total = m.new_int_var(0, longest, f"stage{s}")
            both = []
            for way in ("forward", "backward"):
                taken = m.new_int_var(0, longest, f"{way}{s}")
                for a, b in TANGENTS:
                    m.add(a * parts[f"{way}_device"] + b * parts[f"{way}_host"] <= SOFT_SCALE * taken)
                both.append(taken)
            m.add(total >= both[0] + both[1] + parts["transfer"])
            m.add(slowest >= total)
            totals.append(total)
        waits = self._collectives(first, most)
        tail = self._total(["tail"], "seconds")
        for j in range(self.shapes.rows):
            constant, lits, deltas = tail.of(j)
            weights = [bubble_weight(int(pp[j]), int(vpp[j]), int(n)) for n in self.rows.ranks[j]]
            form = cp_model.LinearExpr.weighted_sum(
                [*lits, step, slowest, *waits, *totals],
                [
                    *(PERMILLE * d for d in deltas),
                    -PERMILLE,
                    PERMILLE * int(micro[j]),
                    *(PERMILLE for _ in waits),
                    *weights,
                ],
            )
            m.add(form <= -PERMILLE * constant).only_enforce_if(self.shape[j])
        return step

    def _collectives(self, first: Mapping[str, Row], most: int) -> list[Any]:
        """Exposed quanta of the gradient and parameter collectives, one variable each."""
        m, out = self.model, []
        pp, vpp = self.shapes.array("pp"), self.shapes.array("vpp")
        for name, window, overlapped in (
            ("grad_reduce", "backward", self.job.settings.overlap_grad_reduce),
            ("param_gather", "forward", self.job.settings.overlap_param_gather),
        ):
            total = self._total([name], "seconds").constant
            wait = m.new_int_var(0, most, name)
            for j in range(self.shapes.rows):
                share, hides = exposure(self.job, int(pp[j]), int(vpp[j]), overlapped)
                always = ceil_div(permille_up(share) * int(total[j]), PERMILLE)
                if always:
                    m.add(wait >= always).only_enforce_if(self.shape[j])
                needed = []
                for side in ("device", "host"):
                    constant, lits, deltas = first[f"{window}_{side}"].of(j)
                    shortest = constant + sum(d for d in deltas if d < 0)
                    room = PERMILLE * int(total[j]) - permille_down(hides) * constant
                    if room + permille_down(hides) * (constant - shortest) > PERMILLE * always:
                        form = cp_model.LinearExpr.weighted_sum(
                            [*lits, wait], [*(permille_down(hides) * d for d in deltas), PERMILLE]
                        )
                        needed.append(form >= room)
                if len(needed) == 2:
                    # Behind the longer of the two: the solver picks which one hides, and the better one serves it best.
                    by_host = m.new_bool_var(f"{name} behind the host {j}")
                    m.add(needed[0]).only_enforce_if(self.shape[j], ~by_host)
                    m.add(needed[1]).only_enforce_if(self.shape[j], by_host)
            out.append(wait)
        return out
