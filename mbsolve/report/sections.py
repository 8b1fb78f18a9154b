"""Pieces of reports that more than one of them has: wrapped lines, sections, a job, time and memory of a plan."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from io import StringIO

from rich.console import Console, RenderableType

from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.report import words

SHOWN_GROUPS = 8


def wrap(text: str, width: int, indent: str = "", hang: str | None = None) -> str:
    """A paragraph of at most ``width`` columns; ``hang`` indents all lines but the first."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def section(title: str, lines: Sequence[str], width: int) -> str:
    """A title with wrapped lines below it; empty when there are none."""
    if not lines:
        return ""
    return "\n".join([f"{title}:", *(wrap(line, width, "  ", "    ") for line in lines)])


def subject(job: Job) -> str:
    """The job in one phrase."""
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''} of {job.gpus_per_node}"
    return (
        f"{job.model.name}, {job.seq_len} tokens, {job.gpus} x {job.machine.name} ({nodes}), "
        f"global batch {job.gbs}, {job.precision}"
    )


def plain(renderable: RenderableType, width: int) -> str:
    """What rich would print, as plain text."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def amounts(
    groups: Sequence[words.Group], whole: float, spell: Callable[[float], str], width: int
) -> list[str]:
    """One line for each large group: its amount, its share, and its largest members as far as they fit."""
    lines = []
    for name, amount, members in groups[:SHOWN_GROUPS]:
        head = f"{name:<16}{spell(amount):>10}{amount / whole:>6.0%}"
        named = [f"{member} {spell(value)}" for member, value in members if member and value >= amount / 50]
        while named and len(f"  {head}  ({', '.join(named)})") > width:
            named.pop()
        lines.append(f"{head}  ({', '.join(named)})" if named and len(members) > 1 else head)
    rest = sum(amount for _, amount, _ in groups[SHOWN_GROUPS:])
    return [*lines, f"{'everything else':<16}{spell(rest):>10}{rest / whole:>6.0%}"] if rest else lines


def time_lines(e: Evaluation, width: int) -> list[str]:
    """The step of a plan, and what it is made of."""
    lead = f"{words.seconds(e.step_seconds)} a step, {e.microbatches} micro-batches, {e.mfu:.1%} of the BF16 peak"
    anchor = [] if e.anchor is None else [e.anchor.words]
    return [lead, *anchor, *amounts(words.terms_by_group(e.terms), e.step_seconds, words.seconds, width)]


def memory_lines(job: Job, e: Evaluation, width: int) -> list[str]:
    """The fullest rank of a plan, and what fills it."""
    worst = e.worst_stage
    extra = [
        ("allocator", worst.peak_reserved_bytes - worst.peak_allocated_bytes - worst.pool_bytes),
        ("context", worst.peak_device_bytes - worst.peak_reserved_bytes),
    ]
    groups = [
        *words.terms_by_group(worst.terms),
        *((name, size, [("", size)]) for name, size in extra if size > 0),
    ]
    groups.sort(key=lambda group: -group[1])
    lead = (
        f"{words.gib(worst.peak_device_bytes)} of {words.gib(job.machine.hbm_bytes)} GiB on pipeline rank "
        f"{worst.stage}, at {worst.peak_moment}; {words.gib(worst.between_bytes)} GiB between steps"
    )
    return [
        lead,
        e.memory_error.words,
        *amounts(groups, worst.peak_device_bytes, lambda size: f"{words.gib(size)} GiB", width),
    ]
