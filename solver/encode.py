"""The master model: every decision of some shapes as CP-SAT variables, every rule and term as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import reserved_permille
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.quantise import PERMILLE, permille, quanta
from mbsolve.constraints.quantised import bubble_weight, ceil_div, memory_limits
from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS, exposure
from mbsolve.constraints.vocabulary import FEATURES, SHAPE
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Columns, Ints
from mbsolve.solver.tables import Features, TermTable, mixed_tables

Literal = Any
CLAUSES = 40


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

    def range(self, shape: int) -> tuple[int, int]:
        """Least and greatest value that the row can take, literals taken to be free."""
        constant, _, deltas = self.of(shape)
        return constant + sum(d for d in deltas if d < 0), constant + sum(d for d in deltas if d > 0)


class Master:
    """One CP-SAT model over some shapes.

    Parameters
    ----------
    job, features : the job and the domains and rules of its features.
    shapes, rows, tables : full shapes with their counts and term tables.
    """

    def __init__(
        self, job: Job, features: Features, shapes: Columns, rows: Rows, tables: Sequence[TermTable]
    ) -> None:
        self.job, self.features, self.shapes, self.rows, self.tables = job, features, shapes, rows, tables
        self.model = cp_model.CpModel()
        self.selectors: dict[tuple[str, ...], list[Literal]] = {}
        self.shape = [self.model.new_bool_var(f"shape{i}") for i in range(shapes.rows)]
        self.model.add_exactly_one(self.shape)
        self.literals: dict[str, list[Literal]] = {}
        self._decisions()
        self._pure_rules()
        self._mixed_rules()

    # ------------------------------------------------------------------ decisions and rules
    def _decisions(self) -> None:
        """A variable for every decision; those of the shape follow from its literal."""
        for name in SHAPE:
            codes = self.shapes.codes[name]
            present = sorted(set(codes.tolist()))
            var = self.model.new_int_var_from_domain(cp_model.Domain.from_values(present), name)
            if len(present) > 1:
                self.model.add(cp_model.LinearExpr.weighted_sum(self.shape, codes.tolist()) == var)
        for name in FEATURES:
            values = self.features.values[name]
            if len(values) == 1:
                self.literals[name] = [self.model.new_constant(1)]
            elif len(values) == 2:
                flag = self.model.new_bool_var(name)
                self.literals[name] = [~flag, flag]
            else:
                lits = [self.model.new_bool_var(f"{name}={v}") for v in values]
                self.model.add_exactly_one(lits)
                self.literals[name] = lits

    def _pure_rules(self) -> None:
        for scope, allowed in self.features.pure:
            self._post(scope, allowed, None)

    def _mixed_rules(self) -> None:
        for table in mixed_tables(self.features, self.shapes):
            groups: dict[bytes, list[int]] = {}
            for c, allowed in enumerate(table.of_class):
                groups.setdefault(allowed.tobytes(), []).append(c)
            for members in groups.values():
                allowed = table.of_class[members[0]]
                if allowed.all():
                    continue
                index = np.flatnonzero(np.isin(table.classes, members))
                if len(index) == self.shapes.rows:
                    self._post(table.features, allowed, None)
                    continue
                here = self.model.new_bool_var(table.rule.id)
                self.model.add(sum(self.shape[int(i)] for i in index) == here)
                self._post(table.features, allowed, here)

    def _post(self, scope: Sequence[str], allowed: Any, enforce: Literal | None) -> None:
        """A table over features: clauses when few tuples are forbidden, else one selector for each allowed tuple."""
        bad = np.argwhere(~allowed)
        good = np.argwhere(allowed)
        if len(bad) <= CLAUSES or len(bad) <= len(good):
            for combination in bad:
                clause = [~self.literals[n][int(v)] for n, v in zip(scope, combination, strict=True)]
                self.model.add_bool_or(clause + ([~enforce] if enforce is not None else []))
            return
        picks = [self.model.new_bool_var("") for _ in good]
        for pick, combination in zip(picks, good, strict=True):
            for n, v in zip(scope, combination, strict=True):
                self.model.add_implication(pick, self.literals[n][int(v)])
        self.model.add_bool_or(picks + ([~enforce] if enforce is not None else []))

    # ------------------------------------------------------------------ terms
    def _selectors(self, names: tuple[str, ...], tuples: Ints) -> list[Literal]:
        if names not in self.selectors:
            if len(names) == 1:
                self.selectors[names] = [self.literals[names[0]][int(v)] for v in tuples[:, 0]]
            else:
                picks = [self.model.new_bool_var("") for _ in tuples]
                self.model.add_exactly_one(picks)
                for i, name in enumerate(names):
                    for v in np.unique(tuples[:, i]):
                        mine = [picks[int(k)] for k in np.flatnonzero(tuples[:, i] == v)]
                        self.model.add(cp_model.LinearExpr.sum(mine) == self.literals[name][int(v)])
                    for v in set(range(len(self.features.values[name]))) - set(tuples[:, i].tolist()):
                        self.model.add(self.literals[name][v] == 0)
                self.selectors[names] = picks
        return self.selectors[names]

    def row(self, which: Sequence[str], counts: Any, unit: str) -> Row:
        """A row over some term rows, with the counts (shapes,) of each term given by ``counts(per)``."""
        out = Row(np.zeros(self.shapes.rows, np.int64))
        groups: dict[tuple[str, ...], tuple[Ints, Ints]] = {}
        for t in self.tables:
            if t.term.row not in which:
                continue
            n = counts(t.term.per)
            if not n.any():
                continue
            value = quanta(n[:, None] * t.values[t.classes], unit)
            if t.features in groups:
                value = groups[t.features][1] + value
            groups[t.features] = (t.tuples, value)
        for names, (tuples, value) in groups.items():
            self._add(out, names, tuples, value)
        return out

    def _add(self, out: Row, names: tuple[str, ...], tuples: Ints, value: Ints) -> None:
        """Add a table to a row: on the booleans themselves where it is affine in them, else on selectors."""
        flags = [len(self.features.values[n]) == 2 for n in names]
        index = {tuple(t): i for i, t in enumerate(tuples.tolist())}
        zero = tuple(0 for _ in names)
        units = [tuple(int(i == j) for j in range(len(names))) for i in range(len(names))]
        if all(flags) and zero in index and all(u in index for u in units):
            base = value[:, index[zero]]
            deltas = np.stack([value[:, index[u]] - base for u in units], 1) if names else np.zeros((len(base), 0), np.int64)
            if (base[:, None] + deltas @ tuples.T == value).all():
                out.constant += base
                for i, name in enumerate(names):
                    if deltas[:, i].any():
                        out.add(self.literals[name][1], deltas[:, i])
                return
        out.constant += value[:, 0]
        if len(tuples) > 1:
            picks = self._selectors(names, tuples)
            for k in range(1, len(tuples)):
                delta = value[:, k] - value[:, 0]
                if delta.any():
                    out.add(picks[k], delta)

    def memory_rows(self) -> list[Row]:
        """Device memory at every moment, in quanta."""
        return [
            self.row(["device_bytes"], lambda per, r=r: self.rows.moments[:, r, COLUMN[per]], "bytes")
            for r in range(self.rows.moments.shape[1])
        ]

    def host_rows(self) -> list[Row]:
        """Host memory of one rank at every moment, in quanta."""
        found = [
            self.row(["host_bytes"], lambda per, r=r: self.rows.moments[:, r, COLUMN[per]], "bytes")
            for r in range(self.rows.moments.shape[1])
        ]
        return [r for r in found if r.literals or r.constant.any()]

    def context(self) -> Ints:
        """Quanta of context and communicators, for each shape."""
        return self.row(["context_bytes"], self._once, "bytes").constant

    def _once(self, per: str) -> Ints:
        return np.full(self.shapes.rows, int(per == "one"), np.int64)

    def post_memory(self, peak_wanted: bool, unlimited: bool = False) -> Any:
        """Budgets of device and host; returns the variable of the device peak when it is wanted."""
        limit, host_limit = memory_limits(self.job)
        factor, context = reserved_permille(), self.context()
        if unlimited:
            limit = host_limit = 1 << 40
        peak = self.model.new_int_var(0, max(limit, 0), "peak") if peak_wanted else None
        for row in self.memory_rows():
            for j in range(self.shapes.rows):
                constant, lits, deltas = row.of(j)
                if not constant and not lits:
                    continue
                room = PERMILLE * (limit - int(context[j])) - factor * constant
                if peak is not None:
                    form = cp_model.LinearExpr.weighted_sum([*lits, peak], [*(factor * d for d in deltas), -PERMILLE])
                    self.model.add(form <= -factor * constant - PERMILLE * int(context[j])).only_enforce_if(self.shape[j])
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
        job, m = self.job, self.model
        pp, vpp = self.shapes.array("pp"), self.shapes.array("vpp")
        micro = self.shapes.array("microbatches")
        classes = self.rows.stages.shape[1]
        step = m.new_int_var(0, most, "step")
        # The slowest stage runs once for each micro-batch: a tight domain keeps products far from overflow.
        longest = most // max(1, int(micro.min()))
        slowest = m.new_int_var(0, longest, "slowest")
        totals, first = [], {}
        for s in range(classes):
            parts = {}
            for name in ("forward_device", "forward_host", "backward_device", "backward_host", "transfer"):
                row = self.row([name], lambda per, s=s: self.rows.stages[:, s, STAGE_COLUMN[per]], "seconds")
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
        tail = self.row(["tail"], self._once, "seconds")
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
            ("grad_reduce", "backward_device", self.job.settings.overlap_grad_reduce),
            ("param_gather", "forward_device", self.job.settings.overlap_param_gather),
        ):
            total = self.row([name], self._once, "seconds").constant
            wait = m.new_int_var(0, most, name)
            for j in range(self.shapes.rows):
                share, hides = exposure(self.job, int(pp[j]), int(vpp[j]), overlapped)
                always = ceil_div(permille(share) * int(total[j]), PERMILLE)
                if always:
                    m.add(wait >= always).only_enforce_if(self.shape[j])
                constant, lits, deltas = first[window].of(j)
                shortest = constant + sum(d for d in deltas if d < 0)
                room = PERMILLE * int(total[j]) - permille(hides) * constant
                if room + permille(hides) * (constant - shortest) > PERMILLE * always:
                    form = cp_model.LinearExpr.weighted_sum(
                        [*lits, wait], [*(permille(hides) * d for d in deltas), PERMILLE]
                    )
                    m.add(form >= room).only_enforce_if(self.shape[j])
            out.append(wait)
        return out

    # ------------------------------------------------------------------ answers
    def assignment(self, value: Any) -> dict[str, Any]:
        """Decision -> value of a solution; ``value(literal)`` reads it."""
        chosen = next(i for i, b in enumerate(self.shape) if value(b))
        out = {n: v for n, v in self.shapes.row(chosen).items() if n in SHAPE}
        for name in FEATURES:
            lits = self.literals[name]
            out[name] = self.features.values[name][next(i for i, z in enumerate(lits) if value(z))]
        return out
