"""The report of a step: golden texts of accounts made by hand, and sums of real ones read back from the text."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from mbsolve.constraints.evaluation import TermValue, TimeBar
from mbsolve.constraints.graph_help import Forbidden, GraphHelp
from mbsolve.constraints.relief import Change
from mbsolve.constraints.time_account import FlopCount, StageTime, StepPart, TimeAccount, time_account
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from mbsolve.report.sections import section
from mbsolve.report.time import graph_lines, host_lines, step_lines, time_report
from mbsolve.report.time_bars import KINDS, pieces, stage_bars, waterfall

GOLDEN = Path(__file__).parent / "golden"
GIB = 2**30


def stage(number: int, forward: tuple[float, float, float], pace: float) -> StageTime:
    """A rank whose backward pass is twice its forward pass (device, host, takes)."""
    device, host, takes = forward
    seconds = 3 * takes + 0.002
    terms = {"gemm.dense.mlp": 2 * device, "attention.core": device, "pipeline.transfer": 0.002}
    terms["host.dense"] = seconds - sum(terms.values())
    names = ("forward", "backward")
    return StageTime(
        stage=number,
        forward_device_seconds=device,
        forward_host_seconds=host,
        forward_seconds=takes,
        backward_device_seconds=2 * device,
        backward_host_seconds=1.5 * host,
        backward_seconds=2 * takes,
        transfer_seconds=0.002,
        seconds=seconds,
        host_cost_seconds=3 * (takes - device),
        idle_seconds=pace - seconds,
        host_bound=tuple(n for n, d, h in zip(names, (1, 2), (1, 1.5), strict=True) if h * host > d * device),  # type: ignore[misc]
        terms=tuple(TermValue(name=n, seconds=s, stage=number) for n, s in terms.items()),
    )


def made(*forwards: tuple[float, float, float], tail: float) -> TimeAccount:
    paces = [3 * takes + 0.002 for _, _, takes in forwards]
    stages = tuple(stage(i, forward, max(paces)) for i, forward in enumerate(forwards))
    slowest = paces.index(max(paces))
    micro = 64
    parts = [("pipeline", micro * max(paces), f"{micro} micro-batches, rank {slowest} the slowest")]
    parts += [("gradient reduce", 0.2, "not hidden behind the passes")]
    parts += [("optimizer", 0.05, "once a step"), ("optimizer offload", tail, "once a step")]
    groups: dict[float, list[int]] = {}
    for rank, pace in enumerate(paces):
        groups.setdefault(pace, []).append(rank)
    return TimeAccount(
        step_seconds=sum(seconds for _, seconds, _ in parts),
        microbatches=micro,
        slowest=slowest,
        parts=tuple(StepPart(name=n, seconds=s, because=why) for n, s, why in parts if s),
        stages=stages,
        alike=tuple(tuple(groups[pace]) for pace in sorted(groups, reverse=True)),
        host_cost_seconds=micro * stages[slowest].host_cost_seconds,
        host_bound=bool(stages[slowest].host_bound),
        error=TimeBar(
            name="moe", error_bar=0.1, mean=0.07, rows=80, words="step time +- 10%, says the class"
        ),
        flops=FlopCount(
            per_token=23e9, tflops_per_gpu=146.2, mfu=0.148, peak_tflops=989.0, convention="as the stack does"
        ),
    )


def change(added: float, freed: float, *, fits: bool = True) -> Change:
    scope = ("attn", "moe_router")
    return Change(
        set={"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": scope},
        text="graphs",
        freed_bytes=freed * GIB,
        added_seconds=added,
        added_share=added / 10,
        step_seconds=10 + added,
        peak_device_bytes=70 * GIB,
        host_bytes_per_node=0,
        fits=fits,
        numerics=False,
    )


FORBIDDEN = Forbidden(graphs="local", rule="cg-local-bridge", because="Megatron-Bridge takes no local graphs")
REPORTS = {
    "time_host_bound": (
        made((0.1, 0.2, 0.21), (0.1, 0.19, 0.2), (0.1, 0.19, 0.2), tail=1.5),
        GraphHelp(best=change(-2.5, -3.2), too_large=change(-4.0, -20.0, fits=False), over_bytes=9.9 * GIB),
    ),
    "time_device_bound": (made((0.15, 0.02, 0.15), tail=0.0), None),
    "time_forbidden": (made((0.1, 0.2, 0.21), tail=0.0), GraphHelp(forbidden=(FORBIDDEN,))),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_read_as_before(name: str) -> None:
    account, graphs = REPORTS[name]
    text = time_report(account, graphs, 80, colour=False).plain
    text += "\n" + section("Step", [*step_lines(account), *host_lines(account, graphs)], 80) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MBSOLVE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_asked_nor_unplain(width: int) -> None:
    real = time_account(make_job("dsv3", "h100", 256, 4096, gbs=512), Plan(pp=8, vpp=2, ep=32))
    for account, graphs in [*REPORTS.values(), (real, None)]:
        text = time_report(account, graphs, width, colour=False).plain
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width
        assert not any(line != line.rstrip() for line in text.splitlines())


def test_a_waterfall_goes_from_end_to_end() -> None:
    for account, _ in REPORTS.values():
        bars = [line.plain[36:] for line in waterfall(account, 100, colour=False)]
        assert bars[0].startswith("#")
        ends = [(len(bar) - len(bar.lstrip()), len(bar)) for bar in bars]
        assert all("#" in bar for bar in bars)
        for (_, end), (start, _) in pairwise(ends):
            assert abs(end - start) <= 1
        assert abs(ends[-1][1] - (100 - 36)) <= 1


def test_the_bar_of_a_rank_is_as_long_as_it_works() -> None:
    for colour in (False, True):
        for account, _ in REPORTS.values():
            lines = stage_bars(account, 120, colour=colour)[: len(account.alike)]
            columns, pace = 120 - 41, account.stages[account.slowest].seconds
            for line, ranks in zip(lines, account.alike, strict=True):
                one = account.stages[ranks[0]]
                bar = line.plain[14 : 14 + columns]
                assert sum(mark != "." for mark in bar) == round(one.seconds / pace * columns)
                if not colour:
                    for kind, seconds in zip(KINDS, pieces(one), strict=True):
                        assert abs(bar.count(kind.letter) - seconds / pace * columns) <= 1


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama3-70b", Plan(tp=8, pp=4, vpp=2, sequence_parallel=True)),
        ("qwen3-30b-a3b", Plan(ep=16, optimizer_offload_fraction=0.5)),
    ],
)
def test_the_lines_of_a_step_add_up(model: str, plan: Plan) -> None:
    account = time_account(make_job(model, "h200", 64, 4096, gbs=128), plan)
    found = 0.0
    for line in step_lines(account):
        matched = re.search(r"([\d.]+) (m?s) +\d+%", line)
        assert matched is not None
        found += float(matched[1]) / (1000 if matched[2] == "ms" else 1)
    assert found == pytest.approx(account.step_seconds, abs=0.03)


def test_what_graphs_save_is_said_with_what_they_hold() -> None:
    (line,) = graph_lines(GraphHelp(best=change(-2.5, -3.2)))
    assert (
        line
        == "CUDA graphs transformer_engine: attn, moe_router would save 2.50 s (-25.0%) and hold 3.2 GiB more"
    )
    (line,) = graph_lines(GraphHelp(best=change(-0.1, 0.5)))
    assert line.endswith("would save 100.0 ms (-1.0%, a tie) and hold no more memory")
    assert graph_lines(None) == []
