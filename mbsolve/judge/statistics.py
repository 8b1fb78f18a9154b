"""Errors of many predicted rows: groups, reasons, and the worst of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.memory_classes import widers
from mbsolve.emit.recorded import TUNED
from mbsolve.judge.errors import (
    QUANTITIES,
    TRUSTED,
    ErrorGroup,
    Errors,
    MemoryTable,
    Quantity,
    error_of,
    errors_of,
)
from mbsolve.judge.fitting import Fits, fits_of
from mbsolve.judge.memory_table import memory_table
from mbsolve.judge.pairs import PairResult
from mbsolve.judge.timing import Timing, timing
from mbsolve.judge.validation import RowResult

__all__ = [
    "QUANTITIES",
    "TRUSTED",
    "ErrorGroup",
    "Errors",
    "MemoryTable",
    "Quantity",
    "Validation",
    "error_of",
    "errors_of",
    "summary",
    "validation",
]

WITH_GRAPHS: Final = tuple(one.name for one in widers()["CUDA graphs"])


class Validation(BaseModel):
    """The answer to ``validate``.

    Parameters
    ----------
    rows : every row, in the order of the files.
    groups : errors by hardware, family, precision and tier.
    summary : errors of the rows that are to be trusted.
    memory : errors of memory by the classes that error bars are taken from.
    time : step times judged: errors by what rows have in common, order, one-knob changes, anchors.
    anchored : what an anchor did, with the rows that it was put on; None without one.
    reasons : why rows were not evaluated -> how many.
    not_compared : why a figure of an evaluated row was not compared -> how many.
    fits : runs judged against the memory of their GPUs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    rows: tuple[RowResult, ...]
    groups: tuple[ErrorGroup, ...]
    summary: tuple[ErrorGroup, ...]
    memory: MemoryTable
    time: Timing = Timing()
    anchored: str | None = None
    reasons: dict[str, int]
    not_compared: dict[str, int]
    fits: Fits = Fits()


def _groups(
    rows: Iterable[RowResult], quantity: Quantity, key: Callable[[RowResult], tuple[str, ...]]
) -> dict[tuple[str, ...], list[float]]:
    out: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        error = error_of(row, quantity)
        if error is not None:
            out.setdefault(key(row), []).append(error)
    return out


def summary(rows: Sequence[RowResult]) -> tuple[ErrorGroup, ...]:
    """The errors of the rows that say most: tuned runs whose knobs are recorded, and measured memory."""
    some: tuple[tuple[str, Quantity, Callable[[RowResult], bool]], ...] = (
        (
            "time, tuned and recorded",
            "time",
            lambda r: r.tier in TUNED and bool(r.knobs_recorded),
        ),
        (
            "time, tuned and recorded, dense",
            "time",
            lambda r: r.tier in TUNED and bool(r.knobs_recorded) and not r.moe and r.family != "hybrid",
        ),
        (
            "time, tuned and recorded, MoE",
            "time",
            lambda r: r.tier in TUNED and bool(r.knobs_recorded) and bool(r.moe) and r.family != "hybrid",
        ),
        (
            "time, tuned and recorded, hybrid",
            "time",
            lambda r: r.tier in TUNED and bool(r.knobs_recorded) and r.family == "hybrid",
        ),
        (
            "time, tuned, not recorded",
            "time",
            lambda r: r.tier in TUNED and not r.knobs_recorded,
        ),
        ("time of passes, probes", "time", lambda r: r.tier == "probe"),
        ("peak, probes", "peak", lambda r: r.tier == "probe" and r.memory_class not in WITH_GRAPHS),
        (
            "peak, probes of CUDA graphs",
            "peak",
            lambda r: r.tier == "probe" and r.memory_class in WITH_GRAPHS,
        ),
        (
            "between steps, probes",
            "between",
            lambda r: r.tier == "probe" and r.memory_class not in WITH_GRAPHS,
        ),
        (
            "between steps, probes of CUDA graphs",
            "between",
            lambda r: r.tier == "probe" and r.memory_class in WITH_GRAPHS,
        ),
        ("peak, measured runs", "peak", lambda r: r.tier == "A-measured-mem"),
        ("peak, guides", "peak", lambda r: r.tier == "A-guide"),
        ("between steps, guides", "between", lambda r: r.tier == "A-guide"),
    )
    out = []
    for name, quantity, chosen in some:
        errors = [e for r in rows if chosen(r) and (e := error_of(r, quantity)) is not None]
        if errors:
            out.append(ErrorGroup(name=name, quantity=quantity, errors=errors_of(errors)))
    return tuple(out)


def validation(
    rows: Sequence[RowResult], pairs: Sequence[PairResult] = (), anchored: str | None = None
) -> Validation:
    """All that is to be said of some predicted rows, and pairs of them."""
    groups = []
    for quantity in QUANTITIES:
        found = _groups(rows, quantity, lambda r: (r.hardware, r.family, r.precision, r.tier))
        for (hardware, family, precision, tier), errors in sorted(found.items()):
            groups.append(
                ErrorGroup(
                    name=f"{hardware} {family} {precision} {tier}",
                    quantity=quantity,
                    hardware=hardware,
                    family=family,
                    precision=precision,
                    tier=tier,
                    errors=errors_of(errors),
                )
            )
    reasons = Counter(r.reason or "no reason" for r in rows if not r.evaluated)
    skipped = Counter(f"{what}: {why}" for r in rows if r.evaluated for what, why in r.not_compared.items())
    return Validation(
        rows=tuple(rows),
        groups=tuple(groups),
        summary=summary(rows),
        memory=memory_table(rows),
        time=timing(rows, pairs),
        anchored=anchored,
        reasons=dict(sorted(reasons.items(), key=lambda kv: (-kv[1], kv[0]))),
        not_compared=dict(sorted(skipped.items(), key=lambda kv: (-kv[1], kv[0]))),
        fits=fits_of((row.id, row.fit) for row in rows),
    )
