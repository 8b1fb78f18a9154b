"""A validation as text: tables, worst rows, and what could not be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mbsolve.judge.fitting import fits_text
from mbsolve.judge.statistics import TRUSTED, ErrorGroup, Quantity, Validation, error_of
from mbsolve.judge.timing_tables import plain_table, timing_tables
from mbsolve.judge.validation import RowResult
from mbsolve.report import words
from mbsolve.report.sections import wrap

__all__ = ["accuracy_text", "broken_rules"]

WORST = 8
TITLES: dict[Quantity, str] = {
    "time": "Step time",
    "between": "Memory between steps",
    "peak": "Peak memory",
}


def accuracy_text(found: Validation, width: int, *, every_tier: bool = True) -> str:
    """The whole report: what was compared, the summary, a table for each quantity, the worst rows, the reasons."""
    done = sum(r.evaluated for r in found.rows)
    parts = [f"{len(found.rows)} rows, {done} evaluated; errors are predicted / measured - 1"]
    if found.anchored is not None:
        parts.append(wrap(found.anchored, width))
    if found.summary:
        parts.append(_table("Summary", found.summary, width))
    parts += [plain_table(table, width) for table in timing_tables(found.time)]
    for quantity, title in TITLES.items():
        groups = [g for g in found.groups if g.quantity == quantity and (every_tier or g.tier in TRUSTED)]
        if groups:
            parts.append(_table(f"{title}, by hardware, family, precision and tier", groups, width))
        worst = _worst(found.rows, quantity, width)
        if worst:
            parts.append("\n".join([f"{title}, the rows that are furthest off:", *worst]))
    if found.reasons:
        lines = [wrap(f"{n:5d}  {why}", width, "  ", "         ") for why, n in found.reasons.items()]
        parts.append("\n".join([f"Not evaluated, {len(found.rows) - done} rows:", *lines]))
    if found.not_compared:
        lines = [wrap(f"{n:5d}  {why}", width, "  ", "         ") for why, n in found.not_compared.items()]
        parts.append("\n".join(["Measured but not compared:", *lines]))
    judged = fits_text(found.fits)
    if judged:
        parts.append("\n".join(["Judged against the memory of their GPUs:", *judged]))
    illegal = broken_rules(found.rows)
    if illegal:
        lines = [wrap(f"{n:5d}  {rule}", width, "  ", "         ") for rule, n in illegal]
        parts.append("\n".join(["Ran, and breaks a rule here (as far as its row tells):", *lines]))
    return "\n\n".join(parts) + "\n"


def _table(title: str, groups: Sequence[ErrorGroup], width: int) -> str:
    name_width = min(max((len(g.name) for g in groups), default=10), width - 49)
    head = f"  {'':{name_width}} {'rows':>5} {'median':>7} {'mean':>7} {'p90':>7} {'largest':>8} {'bias':>7}"
    lines = [
        f"  {g.name[:name_width]:{name_width}} {g.errors.rows:>5} {g.errors.median:>7.1%} {g.errors.mean:>7.1%} "
        f"{g.errors.p90:>7.1%} {g.errors.largest:>8.1%} {g.errors.bias:>+7.1%}"
        for g in groups
    ]
    return "\n".join([f"{title}:", head, *lines])


def _worst(rows: Sequence[RowResult], quantity: Quantity, width: int) -> list[str]:
    """The rows with the largest errors among those to be trusted, with the terms that make them up."""
    some = [(e, r) for r in rows if r.tier in TRUSTED and (e := error_of(r, quantity)) is not None]
    some.sort(key=lambda pair: (-abs(pair[0]), pair[1].id))
    lines = []
    for error, row in some[:WORST]:
        lines.append(wrap(f"{error:+7.1%}  {row.id}{_said(row, quantity)}", width, "  ", "           "))
        terms = [t for t in row.terms if (t.seconds is not None) == (quantity == "time")][:5]
        if terms:
            spelled = ", ".join(
                f"{t.name} {words.seconds(t.seconds) if t.seconds is not None else words.gib(t.bytes or 0) + ' GiB'}"
                for t in terms
            )
            lines.append(wrap(spelled, width, "           ", "           "))
    return lines


def _said(row: RowResult, quantity: Quantity) -> str:
    """What was measured and predicted."""
    if quantity == "time":
        pair = [words.seconds(v or 0.0) for v in (row.measured.step_seconds, row.predicted.step_seconds)]
    elif quantity == "peak":
        pair = [f"{words.gib(v or 0.0)} GiB" for v in (row.measured.peak_bytes, row.predicted.peak_bytes)]
    else:
        pair = [
            f"{words.gib(v or 0.0)} GiB" for v in (row.measured.between_bytes, row.predicted.between_bytes)
        ]
    return f" ({row.tier}): measured {pair[0]}, predicted {pair[1]}"


def broken_rules(rows: Iterable[RowResult]) -> list[tuple[str, int]]:
    """Laws that rows which ran break, with how many do, the most frequent first."""
    count: dict[str, int] = {}
    for row in rows:
        for rule in row.illegal:
            count[rule] = count.get(rule, 0) + 1
    return sorted(count.items(), key=lambda kv: (-kv[1], kv[0]))
