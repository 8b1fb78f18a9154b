"""Verdicts, evaluations and differences as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from mbsolve.constraints.check import Verdict
from mbsolve.constraints.evaluate import fits
from mbsolve.constraints.findings import Repair
from mbsolve.constraints.vocabulary import Plan
from mbsolve.judge.answers import Difference, Evaluated
from mbsolve.judge.cases import Case
from mbsolve.judge.completion import completed_text
from mbsolve.judge.memory import Remembered
from mbsolve.judge.timed import Timed
from mbsolve.report import words
from mbsolve.report.memory import memory_report
from mbsolve.report.sections import memory_lines, section, subject, time_lines, wrap
from mbsolve.report.time import flops_text, host_lines, step_lines, time_report

SHOWN_REPAIRS = 4
SHOWN_TERMS = 12


def verdict_text(case: Case, verdict: Verdict, width: int) -> str:
    """One verdict: the word, what is broken and how to mend it, what was changed and completed."""
    lines = [wrap(f"{case.name}: {_headline(case, verdict)}", width)]
    if verdict.evaluation is not None:
        lines.append(wrap(f"memory: {verdict.evaluation.memory_error.words}", width, "  ", "    "))
    for broken in verdict.violations:
        lines.append(wrap(f"{broken.because}  [{broken.rule}]", width, "  ", "    "))
        if broken.repairs:
            lines.append(wrap(f"would {repairs_text(verdict, broken.repairs)}", width, "    ", "      "))
    if verdict.repair:
        lines.append(wrap(f"all laws would {repairs_text(verdict, [verdict.repair])}", width, "  ", "    "))
    lines += [wrap(f"warning: {w.because}  [{w.rule}]", width, "  ", "    ") for w in verdict.warnings]
    if verdict.undecided:
        lines.append(wrap(f"not decided: {', '.join(verdict.undecided)}", width, "  ", "    "))
    return "\n".join(lines + _changes(case, verdict, width) + _notes(case, verdict, width))


def repairs_text(verdict: Verdict, repairs: Sequence[Repair]) -> str:
    """After "would": "hold with ep=4; or without last_stage_layers", nearest first."""
    texts = [repair.text for repair in _shown(repairs)]
    first = texts[0] if texts[0].startswith("without") else f"with {texts[0]}"
    return f"{'fit' if verdict.legal else 'hold'} {'; or '.join([first, *texts[1:]])}"


def _shown(repairs: Sequence[Repair]) -> list[Repair]:
    """A few repairs, nearest first: of those that change the same fields the nearest, then others as there is room."""
    first = {frozenset(repair.set): repair for repair in reversed(repairs)}
    near = [repair for repair in repairs if first[frozenset(repair.set)] is repair]
    chosen = (near + [repair for repair in repairs if repair not in near])[:SHOWN_REPAIRS]
    return [repair for repair in repairs if repair in chosen]


def _headline(case: Case, verdict: Verdict) -> str:
    """The verdict, its memory and its time; where it rests on values that nobody stated, these before all else."""
    rests, room = verdict.leaner, _room(case, verdict)
    if rests is None:
        return f"{verdict.verdict}{room}"
    host = f"{words.gib(rests.host_bytes)} GiB of host memory a node"
    device = f"{words.gib(rests.device_bytes)} GiB"
    needs = [text for text, id in ((device, "hbm-capacity"), (host, "host-ram-capacity")) if id in rests.over]
    defaults = f"with the target's defaults it does not fit ({', '.join(needs)})"
    return f"{verdict.verdict} only with {rests.text}{room}; {defaults}"


def _room(case: Case, verdict: Verdict) -> str:
    """What is left of the memory, in a few words."""
    e = verdict.evaluation
    if e is None:
        return ""
    used = f"{words.gib(e.worst_stage.peak_device_bytes)} of {words.gib(case.job.machine.hbm_bytes)} GiB"
    return f" ({used} on pipeline rank {e.worst_stage.stage}, {words.seconds(e.step_seconds)} a step)"


def _changes(case: Case, found: Verdict | Evaluated, width: int) -> list[str]:
    """What the stack would change by itself."""
    stack = "Megatron-LM" if case.job.target == "megatron-lm" else "Bridge"
    lines = []
    for change in found.normalised:
        verb = f"set {change.field} to {words.word(change.now)}" if change.now else f"clear {change.field}"
        text = f"{stack} would {verb} because {change.because}  [{change.rule}]"
        lines.append(wrap(text, width, "  ", "    "))
    return lines


def _notes(case: Case, found: Verdict | Evaluated, width: int) -> list[str]:
    """What was completed and what was read loosely."""
    lines = [wrap(text, width, "  ", "    ") for text in found.told]
    if found.completed:
        text = completed_text(found.completed, case.plan)
        lines.insert(0, wrap(f"completed: {text}", width, "  ", "    "))
    return lines


def verdicts_text(cases: Sequence[Case], verdicts: Sequence[Verdict], width: int) -> str:
    """All verdicts, with a count when there are many."""
    parts = [verdict_text(c, v, width) for c, v in zip(cases, verdicts, strict=True)]
    if len(parts) > 1:
        count = Counter(f"{v.verdict}{' only with leaner formats' if v.leaner else ''}" for v in verdicts)
        parts.append(f"{len(parts)} jobs: " + ", ".join(f"{n} {word}" for word, n in count.most_common()))
    return "\n".join(parts) + "\n"


def about_lines(case: Case, found: Evaluated, width: int) -> list[str]:
    """What an evaluation is of: the job, the laws it breaks, what was changed and completed, why there is no figure."""
    lines = [wrap(f"{case.name}: {subject(case.job)}", width)]
    lines += [
        wrap(f"not legal: {broken.because}  [{broken.rule}]", width, "  ", "    ")
        for broken in found.violations
    ]
    lines += _changes(case, found, width) + _notes(case, found, width)
    if found.evaluation is None:
        lines.append(wrap(f"not evaluated: {found.reason}", width, "  ", "    "))
    return lines


def remembered_text(
    case: Case, found: Remembered, width: int, *, verbose: bool = False, colour: bool = False
) -> Text:
    """The memory of one configuration, and what is to be said of it."""
    lines = Text("\n".join(about_lines(case, found, width)) + "\n")
    if found.account is None or found.memory_error is None:
        return lines
    error, relief = found.memory_error.words, found.relief
    report = memory_report(found.account, error, relief, width, verbose=verbose, colour=colour)
    return lines.append("\n").append_text(report)


def timed_text(case: Case, found: Timed, width: int, *, colour: bool = False) -> Text:
    """The step of one configuration, and what is to be said of it."""
    lines = Text("\n".join(about_lines(case, found, width)) + "\n")
    if found.time is None:
        return lines
    return lines.append("\n").append_text(time_report(found.time, found.graphs, width, colour=colour))


def evaluated_text(case: Case, found: Timed, width: int) -> str:
    """One evaluation: totals, terms of the step and of the fullest rank, and the ranks of the pipeline."""
    lines, e, time = about_lines(case, found, width), found.evaluation, found.time
    if e is None or time is None:
        return "\n".join(lines) + "\n"
    speed = f"{e.tokens_per_second_per_gpu:.0f} tokens/s/GPU, {e.tflops_per_gpu:.0f} TFLOP/s/GPU"
    grids = f"TPxCPxDPxPP {words.grid(e.grids.dense)}, ETPxEPxEDPxPP {words.grid(e.grids.expert)}"
    totals = [
        f"{words.seconds(e.step_seconds)} a step +- {e.error_bar:.0%}, {speed}",
        flops_text(time.flops),
        time.error.words,
        f"{grids}, {e.microbatches} micro-batches",
        f"{words.gib(e.headroom_bytes)} GiB of device memory left; {words.gib(e.host_bytes_per_node)} GiB of host a node",
    ]
    ranks = [
        f"rank {s.stage}: {words.gib(s.between_bytes)} between steps, {words.gib(s.peak_allocated_bytes)} peak "
        f"allocated, {words.gib(s.peak_device_bytes)} on the device, at {s.peak_moment}"
        for s in e.stages
    ]
    over = [name for name, ok in fits(case.job, e).items() if not ok]
    if over:
        totals.append(f"does not fit: {', '.join(over)} (a margin of {case.job.margin:.0%} is kept free)")
    parts = [
        "\n".join(lines),
        section("Totals", totals, width),
        section("Step", step_lines(time), width),
        section("Time", [*time_lines(e, width), *host_lines(time, found.graphs)], width),
        section("Memory", memory_lines(case.job, e, width), width),
        section("Pipeline ranks, GiB", ranks, width),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def difference_text(d: Difference, width: int) -> str:
    """Two configurations: the fields that differ, the totals, and the terms, largest change first."""
    fields = [f"{name}: {words.word(x)} -> {words.word(y)}" for name, (x, y) in d.fields.items()]
    step, peak = d.step_seconds, d.peak_device_bytes
    # Of other jobs predictions have errors that do not cancel.
    same = set(d.fields) <= set(Plan.model_fields)
    moved = words.compared(step[1], step[0]) if same else words.change(step[1], step[0])
    ranks = f"pipeline ranks {d.stages[0]} and {d.stages[1]}"
    totals = [
        f"step: {words.seconds(step[0])} -> {words.seconds(step[1])} ({moved})",
        f"peak on the device: {words.gib(peak[0])} -> {words.gib(peak[1])} GiB ({ranks})",
        f"between steps: {words.gib(d.between_bytes[0])} -> {words.gib(d.between_bytes[1])} GiB",
        f"host: {words.gib(d.host_bytes_per_node[0])} -> {words.gib(d.host_bytes_per_node[1])} GiB a node",
    ]
    time = [
        f"{t.name}: {words.seconds(t.a)} -> {words.seconds(t.b)} ({_signed(t.change)})"
        for t in d.time[:SHOWN_TERMS]
    ]
    memory = [
        f"{t.name}: {words.gib(t.a)} -> {words.gib(t.b)} GiB ({t.change / words.GIB:+.2f})"
        for t in d.memory[:SHOWN_TERMS]
    ]
    for lines, all_ in ((time, d.time), (memory, d.memory)):
        if len(all_) > SHOWN_TERMS:
            lines.append(f"and {len(all_) - SHOWN_TERMS} smaller ones")
    parts = [
        f"{d.a} -> {d.b}",
        section("Fields", fields or ["none differs"], width),
        section("Totals", totals, width),
        section("Time", time, width),
        section("Memory of the fullest rank at its peak", memory, width),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "-") + words.seconds(abs(seconds))
