"""Reports are golden texts; ``MBSOLVE_GOLDEN=1 pytest tests/report`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.reading import make_job
from mbsolve.report.alternatives import other_precision, same_grid, same_plan
from mbsolve.report.text import render
from mbsolve.solver.outcome import Outcome

GOLDEN = Path(__file__).parent / "golden"
RUN = ("export A=1", "torchrun ... \\", "  model.a=1")
WHY = ("CP 32: with CP 16 and more DP, 129.5 GiB do not fit into 76.7; it would be 190.0 s a step (-7.1%).",)


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MBSOLVE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", ["optimal", "feasible", "infeasible", "unknown"])
def test_reports_read_as_before(status: str, job: Job, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[status]
    golden(status, render(job, outcome, width=80, reasons=WHY if outcome.best else (), run=RUN))


def test_wide_report_reads_as_before(job: Job, outcomes: dict[str, Outcome]) -> None:
    golden("optimal_120", render(job, outcomes["optimal"], width=120))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_asked_nor_unplain(width: int, job: Job, outcomes: dict[str, Outcome]) -> None:
    for outcome in outcomes.values():
        text = render(job, outcome, width=width, reasons=WHY)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width


def test_every_assumption_is_said(job: Job, outcomes: dict[str, Outcome]) -> None:
    text = " ".join(render(job, outcomes["optimal"]).split())
    for name in outcomes["optimal"].assumed:
        assert f"{name}=" in text


def test_markup_in_values_is_text(job: Job, outcomes: dict[str, Outcome]) -> None:
    odd = outcomes["optimal"].model_copy(update={"assumed": {"card": "[red]x[/red]"}})
    assert "[red]x[/red]" in render(job, odd)


def test_other_precision(job: Job, outcomes: dict[str, Outcome]) -> None:
    assert other_precision(job) == "fp8_cs"
    assert other_precision(job.model_copy(update={"precision": "fp8_block"})) == "bf16"
    assert same_grid("fp8_cs", outcomes["optimal"].plans[0], outcomes["feasible"]) == (
        "With --precision fp8_cs on the same grid: 204.5 s a step (+0.0%, a tie), 76.2 GiB."
    )
    assert same_grid("fp8_cs", outcomes["optimal"].plans[0], outcomes["infeasible"]) == (
        "With --precision fp8_cs on the same grid: no plan."
    )


def test_the_plan_in_another_precision(outcomes: dict[str, Outcome]) -> None:
    best = outcomes["optimal"].plans[0]
    roomy = make_job(hardware="h200", seq_len=131072, precision="fp8_cs")
    said = same_plan(roomy, best)
    given = evaluate(roomy, best.plan).step_seconds
    assert said is not None
    assert said.startswith(f"With --precision fp8_cs plan 1 as it is: {given:.1f} s a step (+")
    assert same_plan(make_job(seq_len=131072, precision="fp8_cs"), best) is None
    assert same_plan(make_job(hardware="h200", gpus=8, seq_len=131072, precision="fp8_cs"), best) is None
