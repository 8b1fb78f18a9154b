"""Predict the measured rows that the project keeps, and write how far off the predictions are.

Run: ``python benchmarks/accuracy.py`` rewrites the tables of ``docs/accuracy.md`` and the error bars of
``constraints/data/accuracy.yaml``; with ``--check`` it only says whether they are as they would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import reports

from mbsolve.emit.recorded import TUNED
from mbsolve.judge.accuracy import broken_rules
from mbsolve.judge.statistics import TRUSTED, ErrorGroup, Validation, error_of, errors_of, validation
from mbsolve.judge.validation import RowResult, read_rows, validate_row

ROOT = Path(__file__).parents[1]
DATA = tuple(ROOT / "benchmarks" / "data" / name for name in ("measured.jsonl", "probes.json"))
PAGE = ROOT / "docs" / "accuracy.md"
BARS = ROOT / "constraints" / "data" / "accuracy.yaml"
BEGIN, END = "<!-- begin tables: python benchmarks/accuracy.py -->", "<!-- end tables -->"
WORST = 10


def predicted() -> Validation:
    """All rows that the project keeps, predicted."""
    return validation([validate_row(row) for path in DATA for row in read_rows(path)])


def tables(found: Validation) -> str:
    """The generated part of the page."""
    done = sum(r.evaluated for r in found.rows)
    kinds = "median, mean, 90th percentile and largest are of absolute errors, the bias is the median of the signed ones"
    parts = [
        f"{len(found.rows)} rows, {done} of them evaluated. Errors are predicted / measured - 1; {kinds}.",
        "### Summary",
        _table(["rows that"], [([g.name], g) for g in found.summary]),
    ]
    for quantity, title in (
        ("time", "Step time"),
        ("between", "Memory between steps"),
        ("peak", "Peak memory"),
    ):
        groups = [g for g in found.groups if g.quantity == quantity]
        parts += [
            f"### {title}",
            _table(
                ["hardware", "family", "precision", "tier"],
                [([g.hardware or "", g.family or "", g.precision or "", g.tier or ""], g) for g in groups],
            ),
            "Furthest off:",
            _worst(found.rows, quantity),
        ]
    parts += [
        f"### Not evaluated: {len(found.rows) - done} rows",
        _counts("why", found.reasons.items()),
        "### Measured but not compared",
        _counts("what and why", found.not_compared.items()),
        "### Ran, and breaks a rule here",
        "As far as the row tells: many name no pipeline layout, and some releases had other rules.",
        _counts("rule", broken_rules(found.rows)),
        "### Reports of users",
        "From documents, recipes and issues (`benchmarks/data/reports.yaml`), judged as `mbsolve check` judges them.",
        reports.table(),
        "Public threads (`benchmarks/data/threads.yaml`), found since: the law that the catalogue gives for each.",
        reports.table(reports.THREADS),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], ErrorGroup]]) -> str:
    lines = [
        f"| {' | '.join(heads)} | rows | median | mean | p90 | largest | bias |",
        f"|{'---|' * len(heads)}---:|---:|---:|---:|---:|---:|",
    ]
    for names, group in rows:
        e = group.errors
        cells = [
            *names,
            str(e.rows),
            *(f"{v:.1%}" for v in (e.median, e.mean, e.p90, e.largest)),
            f"{e.bias:+.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _worst(rows: Iterable[RowResult], quantity: str) -> str:
    some = [(e, r) for r in rows if r.tier in TRUSTED and (e := error_of(r, quantity)) is not None]  # type: ignore[arg-type]
    some.sort(key=lambda pair: (-abs(pair[0]), pair[1].id))
    lines = ["| error | row | knobs recorded |", "|---:|---|---|"]
    lines += [f"| {e:+.1%} | {r.id} | {'yes' if r.knobs_recorded else 'no'} |" for e, r in some[:WORST]]
    return "\n".join(lines)


def _counts(what: str, counts: Iterable[tuple[str, int]]) -> str:
    lines = [f"| {what} | rows |", "|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {n} |" for name, n in counts)])


def page(found: Validation, text: str) -> str:
    """The page with its generated part replaced."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{rest.split(END)[1]}"


def bars(found: Validation) -> str:
    """The error bars that plans are shown with, as the text of a data card."""
    lines = [
        "# Written by `python benchmarks/accuracy.py`. Mean absolute error of the predicted step time over tuned published",
        "# runs whose knobs are recorded; see docs/accuracy.md.",
        "step_time:",
    ]
    for name in ("dense", "moe", "hybrid"):
        some = [
            r.time_error
            for r in found.rows
            if r.tier in TUNED and r.knobs_recorded and r.time_error is not None and name == _kind(r)
        ]
        e = errors_of(some)
        lines.append(f"  {name}: {{mean: {e.mean:.3f}, rows: {e.rows}}}")
    lines += [
        "# The constants were fitted on such rows. Predicting each cell (model, hardware) from the others made the mean error",
        "# of the same form of model 8.3% where it was 5.9% inside the fit.",
        "unseen_factor: 1.41",
    ]
    return "\n".join(lines) + "\n"


def _kind(row: RowResult) -> str:
    if row.family == "hybrid":
        return "hybrid"
    return "moe" if row.moe else "dense"


def main(check: bool) -> int:
    """Write, or say what would be written."""
    found = predicted()
    wanted = {BARS: bars(found), PAGE: page(found, PAGE.read_text(encoding="utf-8"))}
    stale = [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if not check:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} {'is stale' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
