"""Predict the measured rows that the project keeps, and write how far off the predictions are.

Run: ``python benchmarks/accuracy.py`` rewrites the tables of ``docs/accuracy.md``, the error bars of
``constraints/data/accuracy.yaml`` and the limits of ``tests/house/accuracy.json``, which it only tightens; with
``--loosen`` it sets the limits to what is found. With ``--check`` it only says whether the page and the bars are as they
would be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import reports
import timing_page
import yaml

from mbsolve.constraints.error_bars import Bar
from mbsolve.constraints.memory_classes import CLASSES
from mbsolve.emit.recorded import TUNED
from mbsolve.judge.accuracy import broken_rules
from mbsolve.judge.errors import TRUSTED, ErrorGroup, error_of, errors_of
from mbsolve.judge.memory_table import bars_of
from mbsolve.judge.memory_text import QUANTITY_WORDS
from mbsolve.judge.pairfile import BESIDE, read_pairs
from mbsolve.judge.pairs import predicted_pairs
from mbsolve.judge.statistics import Validation, validation
from mbsolve.judge.validation import RowResult, read_rows, validate_row

ROOT = Path(__file__).parents[1]
DATA = {"measured.jsonl": True, "probes.json": True, "probes_time.json": True, "probes_more.json": False}
"""File -> whether its times are compared."""
PAGE = ROOT / "docs" / "accuracy.md"
BARS = ROOT / "constraints" / "data" / "accuracy.yaml"
BEGIN, END = "<!-- begin tables: python benchmarks/accuracy.py -->", "<!-- end tables -->"
LIMITS = ROOT / "tests" / "house" / "accuracy.json"
WORST = 10
FITTED = ROOT / "benchmarks" / "data" / "fitted.yaml"
BY_CLASS = (
    "Rows of trusted tiers whose knobs are recorded, each in the first class that holds it "
    "(`constraints/memory_classes.py`). The error bar of a plan is the widest of the classes that it has something of: "
    "nine in ten rows are within it (p90)."
)


def predicted() -> Validation:
    """All rows that the project keeps, predicted."""
    folder = ROOT / "benchmarks" / "data"
    rows = {name: list(read_rows(folder / name)) for name in DATA}
    results = [validate_row(row, time=timed) for name, timed in DATA.items() for row in rows[name]]
    published = [row for some in rows.values() for row in some]
    return validation(results, predicted_pairs(published, results, read_pairs(folder / BESIDE)))


def tables(found: Validation) -> str:
    """The generated part of the page."""
    done = sum(r.evaluated for r in found.rows)
    kinds = "median, mean, 90th percentile and largest are of absolute errors, the bias is the median of the signed ones"
    parts = [
        f"{len(found.rows)} rows, {done} of them evaluated. Errors are predicted / measured - 1; {kinds}.",
        "### Summary",
        _table(["rows that"], [([g.name], g) for g in found.summary]),
    ]
    parts += timing_page.parts(found.time)
    parts += _constants()
    parts += [
        "### Memory by class",
        BY_CLASS,
        _by_class(found.memory.counted),
        f"Never validated: {', '.join(found.memory.never)}." if found.memory.never else "",
        "Rows that no error bar rests on:",
        _by_class(found.memory.others),
        "What sets each class apart:",
        "\n".join(
            [
                "| class | because | error bar of | while never validated, as |",
                "|---|---|---|---|",
                *(
                    f"| {one.name} | {one.because} | {QUANTITY_WORDS[one.decides]} | any class of {one.wider} |"
                    for one in CLASSES
                ),
            ]
        ),
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


def _by_class(groups: Sequence[ErrorGroup]) -> str:
    lines = ["| class | quantity | rows | mean | p90 | worst | bias |", "|---|---|---:|---:|---:|---:|---:|"]
    for group in groups:
        e = group.errors
        figures = " | ".join([*(f"{v:.2%}" for v in (e.mean, e.p90, e.largest)), f"{e.bias:+.2%}"])
        lines.append(f"| {group.name} | {QUANTITY_WORDS[group.quantity]} | {e.rows} | {figures} |")
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
    inside, unseen, ratios = (_fitted()["errors"][name] for name in ("fitted", "unseen", "ratios"))
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
    open_ = [r for r in found.rows if r.tier in TUNED and not r.knobs_recorded and r.time_error is not None]
    e = errors_of([r.time_error for r in open_ if r.time_error is not None])
    machines = {r.hardware for r in found.rows if r.tier in TUNED and r.time_error is not None}
    lines += [
        "  # Runs that do not record their dispatcher or their graphs.",
        f"  unrecorded: {{mean: {e.mean:.3f}, rows: {e.rows}}}",
        "# Machines on which whole steps of tuned runs were timed.",
        f"measured_machines: [{', '.join(sorted(machines))}]",
        "# The constants were fitted on such rows. Predicting each cell (model, hardware) from the others made their mean error",
        f"# {unseen['mean']:.1%} where it is {inside['mean']:.1%} inside the fit (benchmarks/fit.py).",
        f"unseen_factor: {unseen['mean'] / inside['mean']:.2f}",
        "# Two plans of one job whose predicted step times differ by less are a tie: the median error of a predicted ratio, over",
        f"# {ratios['rows']} published pairs of runs that differ in one knob. One pair in ten is off by {ratios['p90']:.0%} or more.",
        f"pair_error: {ratios['median']:.3f}",
        "# Memory by class, of trusted rows whose knobs are recorded: nine in ten peaks are within `error` of the prediction,",
        "# and nine in ten took at most `short` more. Where graphs keep what they reserve, of peaks reserved.",
        "memory:",
    ]
    for title, bars_ in zip(("classes", "wider"), bars_of(found.rows), strict=True):
        lines += [f"  {title}:", *(_bar_line(bar) for bar in bars_.values())]
    return "\n".join(lines) + "\n"


def _fitted() -> dict[str, Any]:
    """What the last fit found."""
    found: dict[str, Any] = yaml.safe_load(FITTED.read_text(encoding="utf-8"))
    return found


def _constants() -> list[str]:
    """The errors of the fit and its constants, for the page."""
    found = _fitted()
    names = {
        "fitted": "tuned rows, knobs recorded, inside the fit",
        "unseen": "the same, each cell (model, machine) predicted from four fifths of the others",
        "ratios": "ratios of one-knob pairs, inside the fit",
    }
    lines = ["| | rows | median | mean | p90 |", "|---|---:|---:|---:|---:|"]
    for name, words in names.items():
        e = found["errors"][name]
        lines.append(f"| {words} | {e['rows']} | {e['median']:.1%} | {e['mean']:.1%} | {e['p90']:.1%} |")
    table = [
        "| constant | cards | value | standard error | over the folds | bounds |",
        "|---|---|---:|---:|---|---|",
    ]
    for one in found["constants"]:
        bound = ", **at its bound**" if one["at_bound"] else ""
        low, high = one["folds"]
        table.append(
            f"| `{one['constant']}` | {', '.join(one['of'])} | {one['value']:.4g} | {one['standard_error']:.2g} "
            f"| {low:.4g} to {high:.4g} | {one['bounds'][0]:.4g} to {one['bounds'][1]:.4g}{bound} |"
        )
    return ["### The fit of the time model (`python benchmarks/fit.py`)", "\n".join(lines), "\n".join(table)]


def _bar_line(bar: Bar) -> str:
    figures = f"error: {bar.error:.4f}, short: {bar.short:.4f}, rows: {bar.rows}"
    return f'    "{bar.of}": {{{figures if bar.rows else "rows: 0"}}}'


def limits(found: Validation, kept: dict[str, Any], *, loosen: bool = False) -> dict[str, Any]:
    """What the test of this page keeps predictions within: the better of what is kept and found; ``loosen`` drops the kept."""
    sections: dict[str, dict[str, dict[str, float]]] = {"summary": {}, "memory": {}}
    for group in found.summary:
        e = group.errors
        sections["summary"][group.name] = {"rows": e.rows, "median": e.median, "mean": e.mean}
    for group in found.memory.counted:
        e = group.errors
        name = f"{group.name}, {QUANTITY_WORDS[group.quantity]}"
        sections["memory"][name] = {"rows": e.rows, "mean": e.mean, "largest": e.largest}
    sections["time"] = timing_page.limits(found.time)
    old = {} if loosen else kept
    done = sum(r.evaluated for r in found.rows)
    out: dict[str, Any] = {"evaluated": max(done, old.get("evaluated", 0))}
    for section, groups in sections.items():
        before = old.get(section, {})
        out[section] = {name: _tighter(before.get(name, {}), now) for name, now in groups.items()}
        # A group that is gone is for the test to find.
        out[section] |= {name: one for name, one in before.items() if name not in groups}
    return out


def _tighter(kept: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    rows = max(int(now["rows"]), int(kept.get("rows", 0)))
    figures = {name: min(round(now[name], 4), kept.get(name, 1e9)) for name in now if name != "rows"}
    return {"rows": rows, **figures}


def _kind(row: RowResult) -> str:
    if row.family == "hybrid":
        return "hybrid"
    return "moe" if row.moe else "dense"


def main(check: bool, loosen: bool) -> int:
    """Write, or say what would be written."""
    found = predicted()
    wanted = {BARS: bars(found), PAGE: page(found, PAGE.read_text(encoding="utf-8"))}
    if not check:
        kept = json.loads(LIMITS.read_text(encoding="utf-8"))
        wanted[LIMITS] = json.dumps(limits(found, kept, loosen=loosen), indent=1) + "\n"
    stale = [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if not check:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} {'is stale' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:], "--loosen" in sys.argv[1:]))
