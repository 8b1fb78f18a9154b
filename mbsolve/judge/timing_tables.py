"""The tables of judged step times, before they are laid out for a terminal or a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mbsolve.judge.errors import ErrorGroup, Errors
from mbsolve.judge.leaving_out import Anchoring
from mbsolve.judge.pairs import APART, PairResult, Pairs
from mbsolve.judge.ranking import APART as ORDERED
from mbsolve.judge.ranking import LEAST, Ranking
from mbsolve.judge.timing import Timing
from mbsolve.report.sections import wrap

__all__ = ["Table", "plain_table", "timing_tables"]

ERRORS = ("rows", "median", "mean", "p90", "largest", "bias")


@dataclass(frozen=True)
class Table:
    """Cells under heads, with what is to be read with them.

    Parameters
    ----------
    words : columns of words, on the left; the others are figures.
    notes : sentences below it.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    notes: tuple[str, ...] = ()


def timing_tables(found: Timing) -> Iterator[Table]:
    """The tables of which there is something."""
    if found.every:
        yield _errors("Step time, tuned runs whose knobs are recorded", (*found.every, *found.baselines))
        yield _errors("The same by hardware", found.by_hardware)
        yield _errors("The same by model family", found.by_family)
        yield _errors("The same by hardware, family and precision", found.by_kind)
        yield _errors("The same by cell (model, hardware)", found.by_cell)
    if found.ranking is not None:
        yield _ranking(found.ranking, found.ranking_of_tuned)
    if found.pairs is not None:
        yield _pairs(found.pairs)
    if found.anchoring is not None:
        yield _anchoring(found.anchoring)


def _cells(e: Errors) -> tuple[str, ...]:
    return (str(e.rows), *(f"{v:.1%}" for v in (e.median, e.mean, e.p90, e.largest)), f"{e.bias:+.1%}")


def _errors(title: str, groups: Iterable[ErrorGroup]) -> Table:
    return Table(title, ("", *ERRORS), tuple((g.name, *_cells(g.errors)) for g in groups))


def _ranking(found: Ranking, tuned: Ranking | None) -> Table:
    notes = [
        _order(f"{len(found.groups)} groups of at least {LEAST} configurations", found),
        "Runs of trusted tiers; several of one configuration count once, with the median.",
    ]
    if tuned is not None:
        notes.insert(1, _order(f"{len(tuned.groups)} groups of tuned runs alone", tuned))
    if any(g.per_token for g in found.groups):
        notes.append("Marked *: batches differ, and times of a token are compared.")
    rows = tuple(
        (
            g.name + (" *" if g.per_token else ""),
            str(g.configurations),
            f"{g.tau:.2f}",
            f"{g.right}/{g.pairs}",
            f"{g.regret:.1%}",
        )
        for g in found.groups
    )
    heads = ("model, hardware, precision, length", "runs", "tau", "pairs right", "regret")
    return Table("Order of runs of the same job", heads, rows, notes=tuple(notes))


def _order(what: str, found: Ranking) -> str:
    return (
        f"{what}: Kendall's tau mean {found.mean_tau:.2f}, median {found.median_tau:.2f}; of pairs more than "
        f"{ORDERED:.0%} apart {_share(found.right, found.pairs)} in the right order; the run predicted fastest is "
        f"{found.mean_regret:.1%} slower than the fastest in the mean, {found.worst_regret:.1%} at most."
    )


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.0%})" if whole else "0/0"


def _pairs(found: Pairs) -> Table:
    all_ = (
        f"Of {found.apart} pairs whose time changes by more than {APART:.0%} {_share(found.right, found.apart)} with the "
        f"right sign{_off(found.median_error)}; of the {found.modelled_apart} that differ in something that is modelled "
        f"{_share(found.modelled_right, found.modelled_apart)}{_off(found.modelled_median_error)}."
    )
    notes = [all_, "Ratios are of the GPU time of a model FLOP; for runs of one job that is of their steps."]
    for text, named in _alike((p.group, _assumption(p)) for p in found.pairs if p.reason is None).items():
        notes.append(f"{'; '.join(dict.fromkeys(named))}: {text}.")
    for group, texts in _alike((_added(p), p.group) for p in found.pairs).items():
        notes.append(f"{group}, seconds added, measured and predicted: {'; '.join(texts)}.")
    for text, named in _alike((p.group, p.reason) for p in found.pairs).items():
        notes.append(f"Not compared, {len(named)} of {'; '.join(dict.fromkeys(named))}: {text}.")
    rows = tuple(
        (p.group, p.factor, f"{p.measured:.3f}", f"{p.predicted:.3f}", f"{p.ratio_error:+.1%}", _sign(p))
        for p in found.pairs
        if p.measured is not None and p.predicted is not None and p.ratio_error is not None
    )
    heads = ("pairs", "change", "measured", "predicted", "error", "sign")
    return Table("One change at a time: ratio of times", heads, rows, words=2, notes=tuple(notes))


def _off(median_error: float | None) -> str:
    return "" if median_error is None else f", median error of the ratio {median_error:.1%}"


def _alike(pairs: Iterable[tuple[str | None, str | None]]) -> dict[str, list[str]]:
    """Second texts with the first ones that have them; what is None is left out."""
    out: dict[str, list[str]] = {}
    for one, text in pairs:
        if one is not None and text is not None:
            out.setdefault(text, []).append(one)
    return out


def _assumption(pair: PairResult) -> str | None:
    """What a pair rests on that its rows do not say."""
    said = ", ".join(f"{name}={value}" for name, value in pair.assumed.items())
    text = [f"assumed {said}{f' ({pair.why})' if pair.why else ''}"] if said else []
    text += [f"batch of {pair.batch}"] if pair.batch else []
    return "; ".join(text) or None


def _added(pair: PairResult) -> str | None:
    if pair.added_seconds is None:
        return None
    measured, predicted = pair.added_seconds
    return f"{pair.factor} {measured:+.2f} and {predicted:+.2f}"


def _sign(pair: PairResult) -> str:
    if not pair.apart:
        return "small"
    return "right" if pair.right else "wrong" if pair.modelled else "not modelled"


def _anchoring(found: Anchoring) -> Table:
    some = (
        ("without an anchor", found.alone),
        ("anchored by the nearest row of the cell", found.nearest),
        ("by the nearest row that ran something else", found.other),
        ("by every other row of the cell", found.pairs),
    )
    rows = tuple((name, *_cells(errors)) for name, errors in some if errors is not None)
    rule = (
        "Each row with another one of its model and machine as the anchor (--anchor): of the same precision if any, then "
        "the nearest in GPUs, sequence length and batch, then the one with the fewest other choices."
    )
    return Table("One measured run as an anchor", ("", *ERRORS), rows, notes=(rule,))


def plain_table(table: Table, width: int) -> str:
    """A table as lines of a terminal: the first of two columns of words heads the lines that have it."""
    grouped, first = table.words > 1, table.words - 1
    columns = list(zip(table.heads, *table.rows, strict=True))[first:]
    sizes = [max(map(len, column)) for column in columns]
    sizes[0] = max(8, min(sizes[0], width - 2 - sum(sizes[1:]) - len(sizes[1:]) - 2 * grouped))
    lines, before = [f"{table.title}:"], ""
    for row in (("", *table.heads[1:]) if grouped else table.heads, *table.rows):
        if grouped and row[0] != before:
            before = row[0]
            lines.append(f"  {before}")
        cells = [
            cell[:size].rjust(size) if i else cell[:size].ljust(size)
            for i, (cell, size) in enumerate(zip(row[first:], sizes, strict=True))
        ]
        lines.append(f"  {'  ' * grouped}{' '.join(cells)}".rstrip())
    return "\n".join([*lines, *(wrap(note, width, "  ", "    ") for note in table.notes)])
