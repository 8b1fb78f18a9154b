"""Errors of predicted rows, as data: statistics of some, and groups of rows that have something in common."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import mean, median
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.judge.validation import RowResult

__all__ = [
    "QUANTITIES",
    "TRUSTED",
    "ErrorGroup",
    "Errors",
    "MemoryTable",
    "Quantity",
    "error_of",
    "errors_of",
]

Quantity = Literal["time", "between", "peak", "reserved"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("time", "between", "peak")
# Tiers whose rows say how far a prediction is to be trusted; the others are shown, and not summed up.
TRUSTED: Final = ("A-published-table", "A-card-perf", "A-guide", "A-measured-mem", "A-measured-time", "probe")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Errors(_Data):
    """Statistics of relative errors.

    Parameters
    ----------
    rows : how many there are.
    median, mean, p90, largest : of the absolute errors.
    bias : median of the signed errors.
    """

    rows: int
    median: float
    mean: float
    p90: float
    largest: float
    bias: float


class ErrorGroup(_Data):
    """Errors of the rows that have something in common; ``hardware`` and the like are None where all are in."""

    name: str
    quantity: Quantity
    hardware: str | None = None
    family: str | None = None
    precision: str | None = None
    tier: str | None = None
    errors: Errors


class MemoryTable(_Data):
    """Errors of memory by class.

    Parameters
    ----------
    counted : of rows that error bars rest on: of trusted tiers, their knobs recorded.
    others : of the other rows.
    never : classes that no counted row is of.
    """

    counted: tuple[ErrorGroup, ...] = ()
    others: tuple[ErrorGroup, ...] = ()
    never: tuple[str, ...] = ()


def error_of(row: RowResult, quantity: Quantity) -> float | None:
    """The relative error of a row."""
    errors = {"time": row.time_error, "between": row.between_error, "peak": row.peak_error}
    return (errors | {"reserved": row.reserved_error})[quantity]


def errors_of(signed: Sequence[float]) -> Errors:
    """Statistics of at least one error."""
    sizes = sorted(abs(e) for e in signed)
    return Errors(
        rows=len(sizes),
        median=median(sizes),
        mean=mean(sizes),
        p90=sizes[ceil(0.9 * len(sizes)) - 1],
        largest=sizes[-1],
        bias=median(signed),
    )
