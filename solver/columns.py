"""Shapes as columns: values and codes, their distinct rows, and rules as filters over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.vocabulary import DERIVED

Ints = NDArray[np.int64]

NEEDS = {"dp": ("tp", "cp", "pp"), "edp": ("etp", "ep", "pp"), "microbatches": ("tp", "cp", "pp", "mbs")}
ONES = dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "mbs"), 1)
# Codes up to this are told apart by counting, larger ones by sorting.
DENSE = 1 << 16


def distinct(code: Ints, size: int) -> tuple[Ints, Ints]:
    """(first row of each distinct code, number of the code of each row), codes in ascending order."""
    if size > max(DENSE, 8 * len(code)):
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    first = np.full(size, -1, np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    present = first >= 0
    return first[present], (np.cumsum(present) - 1)[code]


@dataclass
class Columns:
    """A table of shapes: for each decision, the values it takes and a code for each row."""

    values: dict[str, list[Any]]
    codes: dict[str, Ints]
    rows: int

    def take(self, index: NDArray[Any]) -> Columns:
        """The rows at ``index`` (integers or a mask)."""
        codes = {name: code[index] for name, code in self.codes.items()}
        rows = int(np.count_nonzero(index)) if index.dtype == bool else len(index)
        return Columns(self.values, codes, rows)

    def row(self, i: int) -> dict[str, Any]:
        """One shape as decision -> value."""
        return {name: self.values[name][int(code[i])] for name, code in self.codes.items()}

    def array(self, name: str) -> NDArray[Any]:
        """The column of a decision as values; ``split`` stays a code."""
        if name == "split":
            return self.codes[name]
        if name not in self.arrays:
            self.arrays[name] = np.array(self.values[name])[self.codes[name]]
        return self.arrays[name]

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Cache of `array`."""
        return {}

    @cached_property
    def keys(self) -> dict[tuple[str, ...], tuple[Ints, Ints]]:
        """Cache of `classes`."""
        return {}

    def classes(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """Distinct combinations of some columns: (first row of each, class of every row)."""
        key = tuple(names)
        if key not in self.keys:
            code = np.zeros(self.rows, np.int64)
            size = 1
            for name in key:
                code = code * len(self.values[name]) + self.codes[name]
                size *= len(self.values[name])
                if size > DENSE:
                    first, code = distinct(code, size)
                    size = len(first)
            self.keys[key] = distinct(code, size)
        return self.keys[key]

    def with_derived(self, job: Job) -> Columns:
        """The same rows with the sizes that follow from them."""
        sizes = derive(job, {n: self.array(n) for n in ("tp", "cp", "pp", "ep", "etp", "mbs")})
        values, codes = dict(self.values), dict(self.codes)
        for name in DERIVED:
            found, code = np.unique(np.broadcast_to(sizes[name], (self.rows,)), return_inverse=True)
            values[name], codes[name] = [int(v) for v in found], code
        return Columns(values, codes, self.rows)


def stacked(job: Job, parts: Sequence[Columns]) -> Columns:
    """Tables of the same decisions and values one after the other, with the sizes that follow from them."""
    if len(parts) == 1:
        return parts[0]
    names = [n for n in parts[0].codes if n not in DERIVED]
    codes = {n: np.concatenate([p.codes[n] for p in parts]) for n in names}
    values = {n: parts[0].values[n] for n in names}
    return Columns(values, codes, sum(p.rows for p in parts)).with_derived(job)


def scope_rows(columns: Columns, scope: Iterable[str]) -> tuple[tuple[str, ...], Ints, Ints]:
    """Columns that a scope needs, with its distinct rows and the class of every row."""
    names = tuple(dict.fromkeys(n for name in scope for n in NEEDS.get(name, (name,))))
    first, inverse = columns.classes(names)
    return names, first, inverse


def values_at(job: Job, columns: Columns, names: Sequence[str], row: int) -> dict[str, Any]:
    """Values of some decisions in one row, with the derived sizes that they determine."""
    return with_sizes(job, {n: columns.values[n][int(columns.codes[n][row])] for n in names})


def with_sizes(job: Job, at: Mapping[str, Any]) -> dict[str, Any]:
    """Values of some decisions with the derived sizes that they determine; those of other decisions mean nothing."""
    return {**derive(job, {**ONES, **at}), **at}


def keep_legal(
    job: Job, columns: Columns, rules: Iterable[Rule], counts: dict[str, int] | None = None
) -> Columns:
    """The rows that satisfy every rule; ``counts`` receives how many rows each rule removed."""
    mask = np.ones(columns.rows, bool)
    for rule in rules:
        names, first, inverse = scope_rows(columns, rule.scope)
        ok = np.fromiter(
            (holds(rule, job, values_at(job, columns, names, int(r))) for r in first), bool, len(first)
        )
        if counts is not None and not ok.all():
            counts[rule.id] = counts.get(rule.id, 0) + int((mask & ~ok[inverse]).sum())
        mask &= ok[inverse]
    return columns if mask.all() else columns.take(mask)


def holds(rule: Rule, job: Job, values: Mapping[str, Any]) -> bool:
    """Whether a rule holds; a split that cannot be placed breaks it."""
    try:
        return rule.holds(job.facts, values)
    except PlacementError:
        return False


def cross(columns: Columns, name: str, values: Sequence[Any]) -> Columns:
    """Every row with every value of one more decision."""
    n = len(values)
    codes = {k: np.repeat(v, n) for k, v in columns.codes.items()}
    codes[name] = np.tile(np.arange(n), columns.rows)
    return Columns({**columns.values, name: list(values)}, codes, columns.rows * n)
