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
        yield _ranking(found.ranking)
    if found.pairs is not None:
        yield _pairs(found.pairs)
    if found.anchoring is not None:
        yield _anchoring(found.anchoring)


def _cells(e: Errors) -> tuple[str, ...]:
    return (str(e.rows), *(f"{v:.1%}" for v in (e.median, e.mean, e.p90, e.largest)), f"{e.bias:+.1%}")


def _errors(title: str, groups: Iterable[ErrorGroup]) -> Table:
    return Table(title, ("", *ERRORS), tuple((g.name, *_cells(g.errors)) for g in groups))


def _ranking(found: Ranking) -> Table:
    tokens = any(g.per_token for g in found.groups)
    notes = (
        f"{len(found.groups)} groups of at least {LEAST} configurations: Kendall's tau mean {found.mean_tau:.2f}, median "
        f"{found.median_tau:.2f}; of pairs more than {ORDERED:.0%} apart {_share(found.right, found.pairs)} in the right "
        f"order; the run predicted fastest is {found.mean_regret:.1%} slower than the fastest in the mean, "
        f"{found.worst_regret:.1%} at most.",
        "Runs of trusted tiers; several of one configuration count once, with the median.",
        *(("* batches differ: times of a token are compared.",) if tokens else ()),
    )
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
    return Table(
        "Order of runs of the same job",
        ("model, hardware, precision, length", "runs", "tau", "pairs right", "regret"),
        rows,
        notes=notes,
    )


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.0%})" if whole else "0/0"


def _pairs(found: Pairs) -> Table:
    all_ = (
        f"Of {found.apart} pairs whose time changes by more than {APART:.0%} {_share(found.right, found.apart)} with the "
        f"right sign, median error of the ratio {found.median_error:.1%}; of the {found.modelled_apart} that differ in "
        f"something that is modelled {_share(found.modelled_right, found.modelled_apart)}, "
        f"{found.modelled_median_error:.1%}."
    )
    notes = [all_, "Ratios are of the GPU time of a model FLOP; for runs of one job that is of their steps."]
    for text, named in _alike((p.group, _assumption(p)) for p in found.pairs if p.reason is None).items():
        notes.append(f"{'; '.join(named)}: {text}.")
    for text, named in _alike((p.group, p.reason) for p in found.pairs).items():
        notes.append(f"Not compared, {len(named)} of {'; '.join(dict.fromkeys(named))}: {text}.")
    rows = tuple(
        (p.group, p.factor, f"{p.measured:.3f}", f"{p.predicted:.3f}", f"{p.ratio_error:+.1%}", _sign(p))
        for p in found.pairs
        if p.measured is not None and p.predicted is not None and p.ratio_error is not None
    )
    heads = ("pairs", "change", "measured", "predicted", "error", "sign")
    return Table("One change at a time: ratio of times", heads, rows, words=2, notes=tuple(notes))


def _alike(pairs: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Texts with the groups that have them; in every text but reasons a group stands once."""
    out: dict[str, list[str]] = {}
    for group, text in pairs:
        if text:
            out.setdefault(text, []).append(group)
    return out


def _assumption(pair: PairResult) -> str | None:
    """What a pair rests on that its rows do not say."""
    said = [f"{name}={value}" for name, value in pair.assumed.items()]
    text = [f"assumed {', '.join(said)}"] if said else []
    text += [f"batch of {pair.batch}"] if pair.batch else []
    if pair.added_seconds is not None:
        measured, predicted = pair.added_seconds
        text.append(f"{pair.factor}: {measured:+.2f} s measured, {predicted:+.2f} s predicted")
    return "; ".join(text) or None


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
    notes = (
        "Each row with another one of its model and machine as the anchor (--anchor): of the same precision if any, then "
        "the nearest in GPUs, sequence length and batch.",
    )
    return Table("One measured run as an anchor", ("", *ERRORS), rows, notes=notes)


def plain_table(table: Table, width: int) -> str:
    """A table as lines of a terminal; the words of the last column of words are cut where they do not fit."""
    columns = list(zip(table.heads, *table.rows, strict=True))
    sizes = [max(map(len, column)) for column in columns]
    last = table.words - 1
    sizes[last] = max(8, min(sizes[last], width - 2 - sum(sizes) + sizes[last] - (len(sizes) - 1)))
    lines = [f"{table.title}:"]
    for row in (table.heads, *table.rows):
        cells = [
            cell[:size].ljust(size) if i < table.words else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        lines.append(f"  {' '.join(cells)}".rstrip())
    return "\n".join([*lines, *(wrap(note, width, "  ", "    ") for note in table.notes)])
