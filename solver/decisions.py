"""Decisions of some shapes as CP-SAT variables, and the rules that tie them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from mbsolve.constraints.vocabulary import FEATURES, SHAPE
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.tables import Bools, Features, mixed_tables

Literal = Any
# Forbidden tuples of a rule that are still posted one by one.
CLAUSES = 40


class Decisions:
    """One CP-SAT model with a literal for each shape and for each value of each feature; exactly one plan holds.

    Parameters
    ----------
    features : domains and rules of the features.
    shapes : full shapes to choose from.
    """

    def __init__(self, features: Features, shapes: Columns) -> None:
        self.features, self.shapes = features, shapes
        self.model = cp_model.CpModel()
        self.selectors: dict[tuple[str, ...], list[Literal]] = {}
        self.shape = [self.model.new_bool_var(f"shape{i}") for i in range(shapes.rows)]
        self.model.add_exactly_one(self.shape)
        self.literals: dict[str, list[Literal]] = {}
        self._decisions()
        self._pure_rules()
        self._mixed_rules()

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

    def _post(self, scope: Sequence[str], allowed: Bools, enforce: Literal | None) -> None:
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

    def select(self, names: tuple[str, ...], tuples: Ints) -> list[Literal]:
        """A literal for each tuple of some features, of which exactly one holds."""
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

    def assignment(self, value: Any) -> dict[str, Any]:
        """Decision -> value of a solution; ``value(literal)`` reads it."""
        chosen = next(i for i, b in enumerate(self.shape) if value(b))
        out = {n: v for n, v in self.shapes.row(chosen).items() if n in SHAPE}
        for name in FEATURES:
            lits = self.literals[name]
            out[name] = self.features.values[name][next(i for i, z in enumerate(lits) if value(z))]
        return out
