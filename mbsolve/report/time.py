"""The step of a configuration as text: where it goes, what each pipeline rank does, and what the host costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from mbsolve.constraints.error_bars import pair_error
from mbsolve.constraints.graph_help import GraphHelp
from mbsolve.constraints.relief import Change
from mbsolve.constraints.time_account import FlopCount, StageTime, TimeAccount
from mbsolve.constraints.vocabulary import Plan
from mbsolve.report import words
from mbsolve.report.memory_bars import stages_text
from mbsolve.report.sections import amounts, wrap
from mbsolve.report.time_bars import stage_bars, waterfall

__all__ = ["flops_text", "graph_lines", "host_lines", "step_lines", "time_report"]

NAME: Final = 18
PASS, COLUMN = 12, 12


def time_report(account: TimeAccount, graphs: GraphHelp | None, width: int, *, colour: bool) -> Text:
    """The whole report.

    Parameters
    ----------
    graphs : what graphs would do, where the plan waits for its host.
    width : columns, 80 or more.
    colour : whether the terminal shows colours.
    """
    slowest = account.stages[account.slowest]
    many = f" on pipeline rank {account.slowest}, the slowest" if len(account.stages) > 1 else ""
    pace = f"{account.microbatches} micro-batches of {words.seconds(slowest.seconds)}{many}"
    head = f"Step of {words.seconds(account.step_seconds)}: {pace}, and what is not hidden behind them:"
    parts = [
        Text("\n").join(
            [Text(wrap(head, width, "", "  ")), *_indented(waterfall(account, width - 2, colour=colour))]
        ),
        Text("\n").join(
            [
                Text("One micro-batch of each pipeline rank:"),
                *_indented(stage_bars(account, width - 2, colour=colour)),
            ]
        ),
    ]
    parts += [
        Text("\n".join(_stage(account.stages[ranks[0]], ranks, width, terms=not number)))
        for number, ranks in enumerate(account.alike)
    ]
    host = host_lines(account, graphs)
    if host:
        parts.append(Text("\n".join(["Host:", *(wrap(line, width, "  ", "    ") for line in host)])))
    last = [
        *([f"{account.anchor.words}."] if account.anchor is not None else []),
        f"{flops_text(account.flops)}.",
        f"{account.error.words}; two plans of one job within {pair_error():.1%} are a tie.",
    ]
    parts.append(Text("\n".join(["How to read it:", *(wrap(line, width, "  ", "    ") for line in last)])))
    return Text("\n\n").join(parts).append("\n")


def _indented(lines: Sequence[Text]) -> list[Text]:
    return [Text("  ").append_text(line) for line in lines]


def step_lines(account: TimeAccount) -> list[str]:
    """One line for each part of a step: its seconds, its share, how it comes about."""
    return [
        f"{part.name:<{NAME}}{words.seconds(part.seconds):>10}{part.seconds / account.step_seconds:>6.0%}  {part.because}"
        for part in account.parts
    ]


def _stage(stage: StageTime, ranks: Sequence[int], width: int, *, terms: bool) -> list[str]:
    """The passes of one kind of pipeline rank, and what they are made of."""
    alike = " alike" if len(ranks) > 1 else ""
    lines = [
        f"Pipeline {stages_text(ranks)}{alike}, one micro-batch:",
        f"  {'':<{PASS}}{''.join(f'{head:>{COLUMN}}' for head in ('device', 'host', 'takes', 'host costs'))}",
    ]
    rows = (
        ("forward", stage.forward_device_seconds, stage.forward_host_seconds, stage.forward_seconds),
        ("backward", stage.backward_device_seconds, stage.backward_host_seconds, stage.backward_seconds),
    )
    for name, device, host, takes in rows:
        figures = (device, host, takes, *((takes - device,) if takes > device else ()))
        bound = "  host-bound" if name in stage.host_bound else ""
        lines.append(_figures(name, figures) + bound)
    if stage.transfer_seconds:
        lines.append(_figures("transfers", (None, None, stage.transfer_seconds)))
    lines.append(_figures("all", (None, None, stage.seconds)))
    if terms:
        groups = words.terms_by_group(stage.terms)
        lines += [f"  {line}" for line in amounts(groups, stage.seconds, words.seconds, width - 2)]
    return lines


def _figures(name: str, values: Sequence[float | None]) -> str:
    cells = "".join(f"{'' if value is None else words.seconds(value):>{COLUMN}}" for value in values)
    return f"  {name:<{PASS}}{cells}"


def host_lines(account: TimeAccount, graphs: GraphHelp | None) -> list[str]:
    """What the host costs the step, and what graphs would do about it; nothing where it costs nothing."""
    stage, cost = account.stages[account.slowest], account.host_cost_seconds
    if not cost:
        return []
    share = cost / account.step_seconds
    at = f"on pipeline rank {account.slowest} " if len(account.stages) > 1 else ""
    costs = f"the host costs {words.seconds(cost)} of the step ({share:.1%})"
    if not stage.host_bound:
        return [costs, *graph_lines(graphs)]
    passes = [
        f"{name}: host {words.seconds(host)}, device {words.seconds(device)}"
        for name, device, host in (
            ("forward", stage.forward_device_seconds, stage.forward_host_seconds),
            ("backward", stage.backward_device_seconds, stage.backward_host_seconds),
        )
        if name in stage.host_bound
    ]
    return [f"{at}host-bound ({'; '.join(passes)}): {costs}", *graph_lines(graphs)]


def graph_lines(graphs: GraphHelp | None) -> list[str]:
    """What graphs would do for a plan that waits for its host, or what stands in their way."""
    if graphs is None:
        return []
    out = []
    if graphs.best is not None:
        saved, held = _saved(graphs.best), -graphs.best.freed_bytes / words.GIB
        more = f"{held:.1f} GiB more" if held >= 0.05 else "no more memory"
        out.append(f"CUDA graphs {captured(graphs.best.set)} would save {saved} and hold {more}")
    if graphs.too_large is not None:
        over = f"{words.gib(graphs.over_bytes)} GiB more than fit"
        out.append(
            f"CUDA graphs {captured(graphs.too_large.set)} would save {_saved(graphs.too_large)}, but take {over}"
        )
    if graphs.best is None and graphs.too_large is None:
        reasons = [f"{one.graphs}: {one.because.rstrip('.')} [{one.rule}]" for one in graphs.forbidden]
        told = f": {'; '.join(reasons)}" if reasons else ""
        out.append(f"no legal CUDA graphs are faster{told}")
    return out


def _saved(change: Change) -> str:
    before = change.step_seconds - change.added_seconds
    return f"{words.seconds(-change.added_seconds)} ({words.compared(change.step_seconds, before)})"


def captured(fields: dict[str, Any]) -> str:
    """Graphs in words."""
    return words.graphs(
        Plan(cuda_graph_impl=fields["cuda_graph_impl"], cuda_graph_scope=fields["cuda_graph_scope"])
    )


def flops_text(flops: FlopCount) -> str:
    """FLOPs and what is counted."""
    return (
        f"{flops.per_token / 1e9:.4g} GFLOP a token, {flops.tflops_per_gpu:.0f} TFLOP/s a GPU, MFU {flops.mfu:.1%} of the "
        f"{flops.peak_tflops:.0f} TFLOP/s of dense BF16; counted as the stack counts: {flops.convention}"
    )
