"""``validate --memory`` as text: errors by class, and the rows that are furthest off."""

from __future__ import annotations

from collections.abc import Sequence

from mbsolve.constraints.memory_classes import CLASSES
from mbsolve.judge.errors import ErrorGroup, Quantity, error_of
from mbsolve.judge.memory_table import MEMORY, counts
from mbsolve.judge.statistics import Validation
from mbsolve.judge.validation import RowResult
from mbsolve.report import words
from mbsolve.report.sections import wrap

__all__ = ["QUANTITY_WORDS", "memory_text"]

WORST = 8
QUANTITY_WORDS: dict[Quantity, str] = {
    "between": "between steps",
    "peak": "peak allocated",
    "reserved": "peak reserved",
}


def memory_text(found: Validation, width: int) -> str:
    """The whole report: errors by class of rows that bars rest on, of the others, the worst rows, the reasons."""
    compared = [row for row in found.rows if row.memory_class is not None]
    parts = [
        f"{len(found.rows)} rows, memory compared in {len(compared)}; errors are predicted / measured - 1"
    ]
    if found.memory.counted:
        parts.append(_table("By class, trusted rows whose knobs are recorded", found.memory.counted))
        if found.memory.never:
            names = f"No such row of: {', '.join(found.memory.never)}."
            parts.append(wrap(names, width, "", "  "))
    if found.memory.others:
        parts.append(_table("By class, other rows", found.memory.others))
    for quantity in MEMORY:
        worst = _worst(compared, quantity, width)
        if worst:
            parts.append("\n".join([f"Furthest off, {QUANTITY_WORDS[quantity]}:", *worst]))
    left = [
        wrap(f"{n:5d}  {why}", width, "  ", "         ")
        for why, n in (found.reasons | found.not_compared).items()
    ]
    if left:
        parts.append("\n".join(["Not compared:", *left]))
    return "\n\n".join(parts) + "\n"


def _table(title: str, groups: Sequence[ErrorGroup]) -> str:
    names = max(len(one.name) for one in CLASSES)
    lines = [f"  {'':{names}} {'':14} {'rows':>5} {'mean':>7} {'p90':>7} {'worst':>7} {'bias':>7}"]
    before = ""
    for group in groups:
        e, name = group.errors, group.name if group.name != before else ""
        before = group.name
        lines.append(
            f"  {name:{names}} {QUANTITY_WORDS[group.quantity]:14} {e.rows:>5} {e.mean:>7.2%} {e.p90:>7.2%} "
            f"{e.largest:>7.2%} {e.bias:>+7.2%}"
        )
    return "\n".join([f"{title}:", *lines])


def _worst(rows: Sequence[RowResult], quantity: Quantity, width: int) -> list[str]:
    """The rows with the largest errors, with the class and what was measured and predicted."""
    some = [(error, row) for row in rows if (error := error_of(row, quantity)) is not None]
    some.sort(key=lambda pair: (-abs(pair[0]), pair[1].id))
    lines = []
    for error, row in some[:WORST]:
        measured, predicted = _pair(row, quantity)
        other = "" if counts(row) else ", not counted"
        text = f"{error:+7.2%}  {row.id} ({row.memory_class}{other}): measured {measured}, predicted {predicted} GiB"
        lines.append(wrap(text, width, "  ", "           "))
    return lines


def _pair(row: RowResult, quantity: Quantity) -> tuple[str, str]:
    if quantity == "reserved":
        held = row.reserved
        pair = (held.measured_bytes, held.predicted_bytes) if held else (0.0, 0.0)
    elif quantity == "peak":
        pair = (row.measured.peak_bytes or 0.0, row.predicted.peak_bytes or 0.0)
    else:
        pair = (row.measured.between_bytes or 0.0, row.predicted.between_bytes or 0.0)
    return words.gib(pair[0]), words.gib(pair[1])
