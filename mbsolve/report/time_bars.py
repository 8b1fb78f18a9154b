"""A step as a waterfall, and the micro-batch of each pipeline rank as a bar: letters without colour, blocks with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from rich.style import Style
from rich.text import Text

from mbsolve.constraints.time_account import StageTime, TimeAccount
from mbsolve.report import words
from mbsolve.report.memory_bars import cells, legend, stages_text

__all__ = ["KINDS", "stage_bars", "waterfall"]


class Kind(NamedTuple):
    """A piece of a micro-batch: its letter, its name, its colour."""

    letter: str
    name: str
    colour: str


KINDS: Final = (
    Kind("F", "forward on the device", "green"),
    Kind("B", "backward on the device", "blue"),
    Kind("H", "what the host costs", "red"),
    Kind("T", "transfers", "yellow"),
)
"""In the order of a bar."""
IDLE: Final = "."
BLOCK: Final = "\N{FULL BLOCK}"
SPAN: Final = "#"
NAME, SECONDS, SHARE = 18, 10, 6
ROOM: Final = 41
"""Columns beside the bar of a rank: the names of the ranks, and the numbers behind it."""


def pieces(stage: StageTime) -> list[float]:
    """Seconds of each of `KINDS`; they add up to the micro-batch."""
    return [
        stage.forward_device_seconds,
        stage.backward_device_seconds,
        stage.host_cost_seconds,
        stage.transfer_seconds,
    ]


def waterfall(account: TimeAccount, width: int, *, colour: bool) -> list[Text]:
    """One line for each part of the step, each bar from where the last one ended; none is without a mark."""
    columns = max(20, width - NAME - SECONDS - SHARE - 2)
    ends = [0.0, *accumulate(part.seconds for part in account.parts)]
    lines = []
    for part, start in zip(account.parts, ends, strict=False):
        share = part.seconds / account.step_seconds
        first = min(round(start / account.step_seconds * columns), columns - 1)
        last = max(first + 1, round((start + part.seconds) / account.step_seconds * columns))
        line = Text(f"{part.name:<{NAME}}{words.seconds(part.seconds):>{SECONDS}}{share:>{SHARE}.0%}  ")
        line.append(" " * first).append((BLOCK if colour else SPAN) * (last - first), Style(color="cyan"))
        lines.append(line)
    return lines


def stage_bars(account: TimeAccount, width: int, *, colour: bool) -> list[Text]:
    """A bar for each kind of pipeline rank, the slowest first, then what the letters or colours mean."""
    columns = max(20, width - ROOM)
    pace = account.stages[account.slowest].seconds
    lines, used, idles = list[Text](), set[int](), False
    for ranks in account.alike:
        stage = account.stages[ranks[0]]
        widths = cells(pieces(stage), pace, columns)
        used |= {index for index, number in enumerate(widths) if number}
        line = Text(f"{stages_text(ranks):<13.13} ")
        for kind, number in zip(KINDS, widths, strict=True):
            line.append((BLOCK if colour else kind.letter) * number, Style(color=kind.colour))
        line.append(IDLE * (columns - sum(widths)), Style(dim=True))
        idles |= columns > sum(widths)
        waits = f", {words.seconds(stage.idle_seconds)} idle" if stage.idle_seconds else ""
        line.append(f" {words.seconds(stage.seconds)}{waits}")
        lines.append(line)
    return [*lines, *_legend(sorted(used), idles, width, colour)]


def _legend(used: Sequence[int], idles: bool, width: int, colour: bool) -> list[Text]:
    marks = [
        (BLOCK if colour else KINDS[i].letter, KINDS[i].name, Style(color=KINDS[i].colour)) for i in used
    ]
    return legend([*marks, (IDLE, "idle", Style(dim=True))] if idles else marks, width)
