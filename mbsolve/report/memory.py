"""The memory of a plan as text: bars, a tree of terms for each kind of pipeline rank, formats, host, what would free some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.text import Text

from mbsolve.constraints.account import Account, Format, HostAccount, StageAccount
from mbsolve.constraints.holding import KINDS
from mbsolve.constraints.relief import Change, Relief
from mbsolve.report import words
from mbsolve.report.memory_bars import bars, spans, stages_text
from mbsolve.report.sections import wrap

__all__ = ["memory_report"]

Row = tuple[float, float, float]
"""Bytes between steps, in the passes and in the step of the optimizer."""

HEADS: Final = {"between": "between steps", "pass": "passes", "optimizer": "optimizer"}
NAME: Final = 30
COLUMN: Final = 13
SMALL: Final = 0.005
"""Share of the device below which a group, or a member of one, is not told apart."""
SHOWN_MEMBERS: Final = 5
SHOWN_CHANGES: Final = 8


def memory_report(
    account: Account, error: str, relief: Relief | None, width: int, *, verbose: bool, colour: bool
) -> Text:
    """The whole report.

    Parameters
    ----------
    error : how far the figures may be off, in words.
    width : columns, 80 or more.
    verbose : every term of every kind of pipeline rank, with its source.
    colour : whether the terminal shows colours.
    """
    limit = f"{words.gib(account.hbm_bytes)} GiB a GPU, {words.gib(account.limit_bytes)} after the margin"
    parts = [
        Text("\n").join(
            [
                Text(f"Peak of each pipeline rank ({limit}):"),
                *_indented(bars(account, width - 2, colour=colour)),
            ]
        ),
        Text(wrap(error, width, "  ", "    ")),
    ]
    # What is said of the bars stands right below them.
    parts = [Text("\n").join(parts)]
    for number, ranks in enumerate(account.alike):
        stage = account.stages[ranks[0]]
        parts.append(
            Text("\n".join(_tree(stage, ranks, width, members=verbose or not number, sources=verbose)))
        )
    parts.append(Text("\n".join(_formats(account.formats, width))))
    parts.append(Text("\n".join(_host(account.host, width, sources=verbose))))
    if relief is not None:
        parts.append(Text("\n".join(_relief(relief, width))))
    return Text("\n\n").join(parts).append("\n")


def _indented(lines: Iterable[Text]) -> Iterator[Text]:
    return (Text("  ").append_text(line) for line in lines)


def _tree(
    stage: StageAccount, ranks: Sequence[int], width: int, *, members: bool, sources: bool
) -> list[str]:
    """The terms of one kind of pipeline rank at its three moments, by groups, the largest first."""
    held = [m.allocated_bytes + m.pool_bytes for m in stage.moments]
    peak = held.index(max(held))
    alike = " alike" if len(ranks) > 1 else ""
    same = stage.pass_peak_moment == stage.peak_moment
    passing = "" if same else f"; passes are fullest at {stage.pass_peak_moment}"
    heads = [f"{HEADS[kind]}{'*' if i == peak else ''}" for i, kind in enumerate(KINDS)]
    lines = [
        f"Pipeline {stages_text(ranks)}{alike}, GiB:",
        wrap(f"* the peak, at {stage.peak_moment}{passing}", width, "  ", "    "),
        f"  {'':<{NAME}}{''.join(f'{head:>{COLUMN}}' for head in heads)}{'share':>7}".rstrip(),
    ]
    device, least = stage.peak_device_bytes, 0.0 if sources else SMALL * stage.peak_device_bytes
    rest: list[Row] = []
    for name, terms in _groups(stage):
        whole = _sum(terms.values())
        if max(whole) < least:
            rest.append(whole)
            continue
        lines.append(_row(name, whole, whole[peak] / device))
        if members:
            lines += _members(terms, peak, device, width, sources=sources, origin=_sources(stage, name))
    if rest:
        lines.append(_row("everything else", _sum(rest), _sum(rest)[peak] / device))
    lines.append(_row("allocated", _three([m.allocated_bytes for m in stage.moments]), None))
    pools = _three([m.pool_bytes for m in stage.moments])
    if any(pools):
        lines.append(_row("in pools, not allocated", pools, None))
    for group in ("reserve", "context"):
        beyond = sum(t.bytes or 0.0 for t in stage.beyond if t.name.startswith(f"{group}."))
        if beyond:
            name = "slack of the allocator" if group == "reserve" else "context, communicators"
            lines.append(_row(name, _only(beyond, peak), beyond / device))
    lines.append(_row("on the device", _only(device, peak), 1.0))
    return lines


def _groups(stage: StageAccount) -> list[tuple[str, dict[str, Row]]]:
    """Terms by the first part of their names, then by the rest of it: bytes at the three moments."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for index, moment in enumerate(stage.moments):
        for term in moment.terms:
            group, _, rest = term.name.partition(".")
            found[group][rest][index] += term.bytes or 0.0
    groups = [(name, {rest: _three(row) for rest, row in terms.items()}) for name, terms in found.items()]
    return sorted(groups, key=lambda group: (-max(_sum(group[1].values())), group[0]))


def _members(
    terms: dict[str, Row], peak: int, device: float, width: int, *, sources: bool, origin: dict[str, str]
) -> list[str]:
    """The members of a group: with sources each term, else what the second parts of the names come to."""
    if not sources:
        halves: dict[str, list[Row]] = defaultdict(list)
        for rest, row in terms.items():
            halves[rest.partition(".")[0]].append(row)
        terms = {half: _sum(rows) for half, rows in halves.items()}
        if len(terms) == 1:
            return []
    ordered = sorted(terms.items(), key=lambda item: (-max(item[1]), item[0]))
    lines, small = list[str](), list[Row]()
    for name, row in ordered:
        if not sources and (len(lines) == SHOWN_MEMBERS or max(row) < SMALL * device):
            small.append(row)
            continue
        lines.append(_row(f"  {name}", row, row[peak] / device))
        if sources:
            lines.append(wrap(origin[name], width, " " * 8))
    if small and max(_sum(small)) >= SMALL * device:
        lines.append(_row(f"  {len(small)} smaller", _sum(small), _sum(small)[peak] / device))
    return lines


def _sources(stage: StageAccount, group: str) -> dict[str, str]:
    """The source of each term of a group, by the rest of its name."""
    terms = [term for moment in stage.moments for term in moment.terms]
    return {t.name.partition(".")[2]: t.source for t in terms if t.name.partition(".")[0] == group}


def _row(name: str, row: Row, share: float | None) -> str:
    """One line of a tree; a name that is too long for its column stands above its numbers."""
    numbers = "".join(f"{f'{b / words.GIB:.2f}' if b else '':>{COLUMN}}" for b in row)
    last = f"{share:>7.0%}" if share else ""
    if len(name) <= NAME:
        return f"  {name:<{NAME}}{numbers}{last}".rstrip()
    return f"  {name}\n  {'':<{NAME}}{numbers}{last}".rstrip()


def _sum(rows: Iterable[Row]) -> Row:
    return _three([sum(column) for column in zip(*rows, strict=True)])


def _three(values: Sequence[float]) -> Row:
    return values[0], values[1], values[2]


def _only(value: float, index: int) -> Row:
    return _three([value if i == index else 0.0 for i in range(3)])


def _formats(formats: Sequence[Format], width: int) -> list[str]:
    """The formats in force, and which of them nobody stated."""
    out = ["Formats of the state:"]
    for one in formats:
        default = "the target's default" if one.default else "as stated"
        text = f"{one.part}: {one.format}, {one.bytes_each:.3g} bytes a {one.of} on the device ({default})"
        out.append(wrap(text, width, "  ", "    "))
    return out


def _host(host: HostAccount, width: int, *, sources: bool) -> list[str]:
    """What a node pins, and for which offload."""
    if not host.fullest_node_bytes:
        return ["Host memory: nothing is pinned."]
    where = " and ".join(f"{number} of pipeline rank {rank}" for rank, number in host.ranks.items())
    if len(host.ranks) > 2:
        where = f"{sum(host.ranks.values())} ranks of pipeline ranks {spans(list(host.ranks))}"
    lines = [wrap(f"Host memory of node {host.node}, the fullest ({where}), GiB:", width, "", "  ")]
    for group, amount, members in words.terms_by_group(host.terms):
        lines.append(f"  {group:<{NAME}}{words.gib(amount):>10}")
        origin = {t.name.partition(".")[2]: t.source for t in host.terms if t.name.startswith(f"{group}.")}
        for member, size in members:
            lines.append(f"    {member:<{NAME - 2}}{words.gib(size):>10}")
            if sources:
                lines.append(wrap(origin[member], width, " " * 8))
    total = f"{words.gib(host.fullest_node_bytes)} of {words.gib(host.limit_bytes)} GiB that may be pinned"
    bound = f"{words.gib(host.bytes_per_node)} GiB"
    if words.gib(host.bytes_per_node) != words.gib(host.fullest_node_bytes):
        total += f"; the budget takes every rank of a node to be on the fullest pipeline rank: {bound}"
    return [*lines, wrap(total, width, "  ", "    ")]


def _relief(relief: Relief, width: int) -> list[str]:
    """Single changes that free memory, the cheapest first."""
    wanted = words.gib(relief.wanted_bytes)
    if relief.changes:
        head = f"What would free {wanted} GiB of the fullest pipeline rank, cheapest first:"
        shown = relief.changes[:SHOWN_CHANGES]
    elif relief.less:
        head = f"No single change frees {wanted} GiB of the fullest pipeline rank; those that free most:"
        shown = relief.less
    else:
        return [wrap(f"No single change frees any memory ({relief.priced} were priced).", width)]
    lines = [wrap(head, width, "", "  "), f"  {'frees GiB':>9}{'adds a step':>13}{'':>10}  change"]
    lines += [line for change in shown for line in _change(change, width)]
    more = len(relief.changes) - len(shown)
    if more > 0:
        lines.append(f"  and {more} dearer ones")
    if any(change.numerics for change in shown):
        lines.append(wrap("* shorter formats: training computes other numbers", width, "  "))
    return lines


def _change(change: Change, width: int) -> list[str]:
    """One change: what it frees and costs, then what it is, wrapped beside them."""
    sign = "-" if change.added_seconds < 0 else "+"
    added = f"{sign}{words.seconds(abs(change.added_seconds))}"
    lead = f"  {words.gib(change.freed_bytes):>9}{added:>13}{f'({change.added_share:+.1%})':>10}  "
    mark = "*" if change.numerics else ""
    misfit = "" if change.fits else " (does not fit yet)"
    text = wrap(f"{change.text}{mark}{misfit}", width, lead, " " * len(lead))
    return text.splitlines()
