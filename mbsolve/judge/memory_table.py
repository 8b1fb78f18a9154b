"""Errors of memory by class: the table that is shown, and the error bars that are taken from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mbsolve.constraints.error_bars import Bar
from mbsolve.constraints.memory_classes import CLASSES, widers
from mbsolve.judge.errors import TRUSTED, ErrorGroup, MemoryTable, Quantity, error_of, errors_of
from mbsolve.judge.validation import RowResult

__all__ = ["MEMORY", "bars_of", "counts", "memory_table"]

MEMORY: Final[tuple[Quantity, ...]] = ("between", "peak", "reserved")
DECIDES: Final = {one.name: one.decides for one in CLASSES}


def counts(row: RowResult) -> bool:
    """Whether an error bar of memory may rest on a row: its source is trusted, and its knobs are recorded."""
    return bool(row.knobs_recorded) and row.tier in (*TRUSTED, "B-card-functional")


def memory_table(rows: Iterable[RowResult]) -> MemoryTable:
    """Return the errors of rows by class and quantity."""
    rows = [row for row in rows if row.memory_class is not None]
    counted = _groups(rows, counts)
    seen = {group.name for group in counted if group.quantity != "between"}
    return MemoryTable(
        counted=counted,
        others=_groups(rows, lambda row: not counts(row)),
        never=tuple(one.name for one in CLASSES if one.name not in seen),
    )


def _groups(rows: Sequence[RowResult], chosen: Callable[[RowResult], bool]) -> tuple[ErrorGroup, ...]:
    out = []
    for one in CLASSES:
        mine = [row for row in rows if row.memory_class == one.name and chosen(row)]
        for quantity in MEMORY:
            errors = [e for row in mine if (e := error_of(row, quantity)) is not None]
            if errors:
                out.append(ErrorGroup(name=one.name, quantity=quantity, errors=errors_of(errors)))
    return tuple(out)


def bars_of(rows: Iterable[RowResult]) -> tuple[dict[str, Bar], dict[str, Bar]]:
    """Return the error bar of each class, and of each wider class, ``all`` among them; without rows where there are none."""
    errors: dict[str, list[float]] = {one.name: [] for one in CLASSES}
    for row in rows:
        error = deciding_error(row) if counts(row) else None
        if error is not None and row.memory_class is not None:
            errors[row.memory_class].append(error)
    wide = {name: [e for one in members for e in errors[one.name]] for name, members in widers().items()}
    wide["all"] = [e for some in errors.values() for e in some]
    narrow = {name: _bar(name, some) for name, some in errors.items()}
    return narrow, {name: _bar(name, some) for name, some in wide.items()}


def deciding_error(row: RowResult) -> float | None:
    """The error of the figure that runs out first in plans of the row's class, or of the peak where that was not measured."""
    reserved = DECIDES.get(row.memory_class or "") == "reserved" and row.reserved_error is not None
    return row.reserved_error if reserved else row.peak_error


def _bar(name: str, errors: Sequence[float]) -> Bar:
    if not errors:
        return Bar(name, 0.0, 0.0, 0)
    more = [max(0.0, 1 / (1 + error) - 1) for error in errors]
    return Bar(name, round(errors_of(errors).p90, 4), round(errors_of(more).p90, 4), len(errors))
