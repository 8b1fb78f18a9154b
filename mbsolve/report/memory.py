"""The memory of a plan as text: bars of the pipeline ranks, trees of their terms, formats, hosts, and what frees some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.bar import Bar
from rich.table import Table
from rich.tree import Tree

from mbsolve.constraints.account import Account, Format, HostAccount, MomentMemory, StageAccount
from mbsolve.constraints.evaluation import TermValue
from mbsolve.constraints.relief import Change, Relief
from mbsolve.report import words
from mbsolve.report.sections import plain, section, wrap

__all__ = ["memory_account_text"]

MEMBERS: Final = 4
"""Members of a group that are shown unless all are asked for."""
SMALL: Final = 0.005
"""Share of the peak below which a member is not shown unless all are asked for."""
LABEL: Final = 44


def memory_account_text(
    account: Account, error: str, relief: Relief | None, width: int, verbose: bool = False
) -> str:
    """The sections of a plan's memory.

    Parameters
    ----------
    error : how far the figures may be off, in words.
    verbose : show every rank and every kind of moment as a tree, and every term with its source.
    """
    parts = [
        section("Error", [error], width),
        section("Formats", [_format(one) for one in account.formats], width),
        "\n".join(["Pipeline ranks:", *_indented(_bars(account, width - 2))]),
        *(_stage(account, group, width, verbose, at == 0) for at, group in enumerate(account.alike)),
        section("Host", _host(account.host), width),
    ]
    if relief is not None:
        parts.append(_relief(relief, width))
    return "\n\n".join(part for part in parts if part) + "\n"


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]


def _format(one: Format) -> str:
    default = ", the target's default" if one.default else ""
    return f"{one.part} {one.format}: {one.bytes_each:.2f} bytes for each {one.of}{default}"


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, runs of them as a range."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _bars(account: Account, width: int) -> str:
    """One bar for each kind of rank, against what the driver gives a process."""
    table = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right", "left"):
        table.add_column(justify=justify)
    long = max(10, width - 44)
    whole = max(account.hbm_bytes, *(stage.peak_device_bytes for stage in account.stages))
    for group in account.alike:
        stage = account.stages[group[0]]
        left = f"{words.gib(abs(stage.free_bytes))} GiB {'free' if stage.free_bytes >= 0 else 'too much'}"
        bar = Bar(size=whole, begin=0, end=stage.peak_device_bytes, width=long)
        table.add_row(_ranks(group), bar, words.gib(stage.peak_device_bytes), left)
    limit = Bar(size=whole, begin=0, end=account.limit_bytes, width=long)
    table.add_row("limit", limit, words.gib(account.limit_bytes), f"of {words.gib(account.hbm_bytes)} GiB")
    return plain(table, width)


def _stage(account: Account, ranks: Sequence[int], width: int, verbose: bool, fullest: bool) -> str:
    """What one of several like ranks holds; that of the fullest at its peak as a tree."""
    stage = account.stages[ranks[0]]
    allocated = ", ".join(f"{words.gib(one.allocated_bytes)} {KINDS[one.kind]}" for one in stage.moments)
    peak = next(one for one in stage.moments if one.moment == stage.peak_moment)
    pool = (
        f"; {words.gib(peak.pool_bytes)} reserved beside, not counted as allocated" if peak.pool_bytes else ""
    )
    lines = [
        f"allocated, GiB: {allocated}{pool}",
        f"{words.gib(stage.peak_device_bytes)} GiB on the device, at {stage.peak_moment}",
    ]
    many = "ranks" if len(ranks) > 1 else "rank"
    out = [section(f"Pipeline {many} {_ranks(ranks)}{', each' if len(ranks) > 1 else ''}", lines, width)]
    if fullest or verbose:
        out += _indented(plain(_tree("at the peak", peak, stage, verbose, width), width - 2))
    if verbose:
        for other in (one for one in stage.moments if one is not peak):
            tree = _tree(f"{KINDS[other.kind]}, at {other.moment}", other, None, verbose, width)
            out += _indented(plain(tree, width - 2))
    return "\n".join(out)


KINDS: Final = {"between": "between steps", "pass": "in a pass", "optimizer": "in the optimizer's step"}


def _tree(title: str, moment: MomentMemory, stage: StageAccount | None, verbose: bool, width: int) -> Tree:
    """Terms grouped by the first part of their names, the largest first."""
    terms: Iterable[TermValue] = (*moment.terms, *(stage.beyond if stage else ()))
    groups = words.terms_by_group(terms)
    whole = sum(amount for _, amount, _ in groups)
    source = {term.name: term.source for term in terms}
    tree = Tree(title)
    small = 0.0
    for group, amount, members in groups:
        if amount < SMALL * whole and not verbose:
            small += amount
            continue
        branch = tree.add(_line(group, amount, whole))
        shown = members if verbose else [m for m in members if m[1] >= SMALL * whole][:MEMBERS]
        if len(members) == 1 and not verbose:
            continue
        for name, size in shown:
            leaf = branch.add(_line(name, size, whole, 4))
            if verbose:
                leaf.add(wrap(source.get(f"{group}.{name}", ""), width - 20))
        rest = amount - sum(size for _, size in shown)
        if shown and rest >= SMALL * whole:
            branch.add(_line(f"{len(members) - len(shown)} more", rest, whole, 4))
    if small:
        tree.add(_line("everything else", small, whole))
    return tree


def _line(name: str, amount: float, whole: float, deeper: int = 0) -> str:
    return f"{name:<{LABEL - deeper}}{words.gib(amount):>7} GiB{amount / whole:>5.0%}"


def _host(host: HostAccount) -> list[str]:
    """What a node pins, and for what."""
    if not host.fullest_node_bytes:
        return [f"nothing is pinned; a node may pin {words.gib(host.limit_bytes)} GiB"]
    ranks = ", ".join(f"{number} of pipeline rank {rank}" for rank, number in sorted(host.ranks.items()))
    groups = words.terms_by_group(host.terms)
    lead = (
        f"node {host.node} pins {words.gib(host.fullest_node_bytes)} of {words.gib(host.limit_bytes)} GiB "
        f"({ranks}); {words.gib(host.bytes_per_node)} GiB are budgeted, as if all its ranks were the fullest"
    )
    return [lead, *(f"{name}: {words.gib(amount)} GiB" for name, amount, _ in groups)]


def _relief(found: Relief, width: int) -> str:
    """Single changes that free memory, cheapest first."""
    wanted = f"What would free {words.gib(found.wanted_bytes)} GiB of the fullest rank"
    if found.changes:
        return section(wanted, [_change(one) for one in found.changes], width)
    none = f"no single change does, of {found.priced} legal ones that free any"
    return section(wanted, [none, *(_change(one) for one in found.less)], width)


def _change(one: Change) -> str:
    slower = "slower" if one.added_seconds >= 0 else "faster"
    step = f"{words.seconds(abs(one.added_seconds))} a step {slower} ({one.added_share:+.1%})"
    host = f", {words.gib(one.host_bytes_per_node)} GiB of host a node" if one.host_bytes_per_node else ""
    other = "; other numerics" if one.numerics else ""
    fits = "" if one.fits else "; still does not fit"
    return f"{one.text}: {words.gib(one.freed_bytes)} GiB, {step}{host}{other}{fits}"
