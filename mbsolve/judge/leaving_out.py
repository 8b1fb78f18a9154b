"""Every measured row predicted with another row of its cell as the anchor, and cruder predictions to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from mbsolve.judge.errors import Errors, errors_of
from mbsolve.judge.validation import RowResult

__all__ = ["Anchoring", "anchoring", "constant_rate", "nearest"]


class Anchoring(BaseModel):
    """Errors with another row of the same model and machine as the anchor.

    Parameters
    ----------
    alone : of the same rows without an anchor.
    nearest : with the nearest row as the anchor.
    other : with the nearest row that ran something else; None where no cell has one.
    pairs : of all ordered pairs of rows of a cell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alone: Errors
    nearest: Errors
    other: Errors | None = None
    pairs: Errors


def anchoring(rows: Iterable[RowResult]) -> Anchoring | None:
    """What an anchor does for the error; None where no cell (model, machine) has two rows."""
    cells: dict[tuple[str, str], list[RowResult]] = {}
    for row in rows:
        if row.time_error is not None and row.sizes is not None:
            cells.setdefault((row.sizes.model, row.hardware), []).append(row)
    alone, near, other, pairs = list[float](), list[float](), list[float](), list[float]()
    for some in cells.values():
        for row in some:
            rest = [one for one in some if one is not row]
            if not rest:
                continue
            alone.append(row.time_error or 0.0)
            near.append(_anchored(row, nearest(row, rest)))
            else_ = [one for one in rest if one.sizes != row.sizes or one.precision != row.precision]
            if else_:
                other.append(_anchored(row, nearest(row, else_)))
            pairs += [_anchored(row, one) for one in rest]
    if not alone:
        return None
    return Anchoring(
        alone=errors_of(alone),
        nearest=errors_of(near),
        other=errors_of(other) if other else None,
        pairs=errors_of(pairs),
    )


def nearest(row: RowResult, others: Sequence[RowResult]) -> RowResult:
    """The row to anchor on: of the same precision if any; then nearest in GPUs, sequence and batch.

    Of several the one whose plan and settings differ in the fewest fields, then the first by name.
    """

    def distance(other: RowResult) -> tuple[Any, ...]:
        here, there = row.sizes, other.sizes
        if here is None or there is None:
            raise ValueError(f"{row.id} and {other.id} must both have been evaluated")
        apart = [
            round(abs(log(a / b)), 9)
            for a, b in (
                (here.gpus, there.gpus),
                (here.seq_len, there.seq_len),
                (here.gbs, there.gbs),
            )
        ]
        names = {*here.plan, *there.plan}
        changed = sum(here.plan.get(name) != there.plan.get(name) for name in names)
        return (row.precision != other.precision, *apart, changed, other.id)

    return min(others, key=distance)


def _anchored(row: RowResult, anchor: RowResult) -> float:
    """The error that is left when the anchor's own error is taken out."""
    return (1 + (row.time_error or 0.0)) / (1 + (anchor.time_error or 0.0)) - 1


def constant_rate(
    rows: Iterable[RowResult], cell: Callable[[RowResult], tuple[str, ...]]
) -> list[tuple[str, float]]:
    """Errors of the simplest prediction: every run of a cell reaches the cell's median of model FLOPs a second and GPU.

    Returns
    -------
    list[tuple[str, float]]
        id of a row, and predicted over measured step time, less one.
    """
    rates: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for row in rows:
        if row.time_error is not None and row.sizes is not None and row.measured.step_seconds:
            rate = row.sizes.step_flops / row.sizes.gpus / row.measured.step_seconds
            rates.setdefault(cell(row), []).append((row.id, rate))
    usual = {name: median(rate for _, rate in some) for name, some in rates.items()}
    return [(id_, rate / usual[name] - 1) for name, some in rates.items() for id_, rate in some]
