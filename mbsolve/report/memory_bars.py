"""The memory of pipeline ranks as bars against what a GPU has: letters where there is no colour, blocks where there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rich.style import Style
from rich.text import Text

from mbsolve.constraints.account import Account, StageAccount
from mbsolve.report import words

__all__ = ["PARTS", "Part", "bars", "cells", "legend", "part_of", "spans", "stages_text"]


class Part(NamedTuple):
    """A piece of a bar: its letter, its name, its colour, and the groups of terms that it sums."""

    letter: str
    name: str
    colour: str
    groups: tuple[str, ...]


PARTS: Final = (
    Part("W", "weights", "blue", ("weights", "weight_copies")),
    Part("G", "gradients", "cyan", ("gradients", "gradient_copies", "dummy_gradients")),
    Part("M", "masters", "magenta", ("masters",)),
    Part("V", "moments", "bright_magenta", ("moments",)),
    Part("S", "saved activations", "green", ("saved",)),
    Part("B", "buffers", "bright_blue", ("buffer", "dispatcher", "workspace", "graph_static")),
    Part("P", "graph pools", "bright_green", ("graph_pool",)),
    Part("R", "reserve", "bright_black", ("reserve",)),
    Part("C", "context", "white", ("context",)),
    Part("T", "transient", "yellow", ()),
)
"""In the order of a bar; the last one has every other group."""
MARGIN: Final = "/"
LIMIT: Final = "|"
EMPTY: Final = "."
ROOM: Final = 42
"""Columns beside a bar: the names of the ranks, and the numbers behind it."""


def part_of(group: str) -> Part:
    """The part of a bar that a group of terms belongs to."""
    return next((part for part in PARTS if group in part.groups), PARTS[-1])


def spans(numbers: Sequence[int]) -> str:
    """Whole numbers as "0, 2-5, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def stages_text(ranks: Sequence[int]) -> str:
    """Pipeline ranks that are alike, in words."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}"


def sizes(stage: StageAccount) -> list[float]:
    """Bytes of each part of a bar at the peak; they add up to what the rank has of its device."""
    out = dict.fromkeys(PARTS, 0.0)
    for term in (*stage.terms, *stage.beyond):
        out[part_of(term.name.partition(".")[0])] += term.bytes or 0.0
    return list(out.values())


def cells(amounts: Sequence[float], scale: float, columns: int) -> list[int]:
    """Columns of each amount; rounded so that their sum is that of the whole."""
    ends = [0]
    total = 0.0
    for amount in amounts:
        total += amount
        ends.append(round(total / scale * columns))
    return [b - a for a, b in pairwise(ends)]


def bars(account: Account, width: int, *, colour: bool) -> list[Text]:
    """A bar for each kind of pipeline rank, the fullest first, then what the letters or colours mean.

    Parameters
    ----------
    colour : whether there is colour to tell the parts apart; letters do where there is none.
    """
    columns = max(20, width - ROOM)
    scale = max(account.hbm_bytes, account.worst_stage.peak_device_bytes)
    limit = min(columns - 1, int(account.limit_bytes / scale * columns))
    edge = round(account.hbm_bytes / scale * columns)
    lines, used = list[Text](), set[int]()
    for ranks in account.alike:
        stage = account.stages[ranks[0]]
        widths = cells(sizes(stage), scale, columns)
        used |= {index for index, number in enumerate(widths) if number}
        kinds = [index for index, number in enumerate(widths) for _ in range(number)]
        line = Text(f"{stages_text(ranks):<13.13} ")
        for column in range(columns):
            if column == limit:
                line.append(LIMIT, Style(color="red", bold=True))
            elif column < len(kinds):
                part = PARTS[kinds[column]]
                line.append("\N{FULL BLOCK}" if colour else part.letter, Style(color=part.colour))
            else:
                line.append(MARGIN if limit < column < edge else EMPTY, Style(dim=True))
        free = stage.free_bytes
        after = f"{words.gib(free)} left" if free >= 0 else f"{words.gib(-free)} over"
        line.append(f" {words.gib(stage.peak_device_bytes):>6} GiB, {after}")
        lines.append(line)
    return [*lines, *_legend(sorted(used), width, colour)]


def _legend(used: Sequence[int], width: int, colour: bool) -> list[Text]:
    entries = []
    for index in used:
        part = PARTS[index]
        entries.append((part.letter if not colour else "\N{FULL BLOCK}", part.name, Style(color=part.colour)))
    entries += [(LIMIT, "limit", Style(color="red", bold=True)), (MARGIN, "margin", Style(dim=True))]
    return legend(entries, width)


def legend(entries: Sequence[tuple[str, str, Style]], width: int) -> list[Text]:
    """What the marks of bars mean: each with its name and its style, in as many lines as it takes."""
    lines = [Text(" " * 13)]
    for mark, name, style in entries:
        if len(lines[-1]) + len(name) + 3 > width:
            lines.append(Text(" " * 13))
        lines[-1].append(" ").append(mark, style).append(f" {name}")
    return lines
