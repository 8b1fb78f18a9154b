"""Reasons take one choice back at a time; the costs are replaced by fixed ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mbsolve.constraints.check import Violation
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.report import why
from mbsolve.solver.outcome import Outcome

Maker = Callable[[float, float], Evaluation]


def test_each_choice_is_judged_by_what_its_absence_does(
    job: Job, outcomes: dict[str, Outcome], evaluate_as: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(_: Job, plan: Plan) -> Evaluation:
        if not plan.optimizer_offload_fraction:
            return evaluate_as(200.0, 104.0)
        return evaluate_as(232.7, 75.2)

    def broken(_: Job, plan: Plan) -> tuple[Violation, ...]:
        because = "EP 16 is odd"
        return (Violation(rule="some-rule", because=because, source="here"),) if plan.ep == 16 else ()

    monkeypatch.setattr(why, "evaluate", cost)
    monkeypatch.setattr(why, "violations", broken)
    text = why.reasons(job, outcomes["optimal"])
    assert (
        "85% of the optimizer state on the host: without offload, 104.0 GiB do not fit into 76.7; "
        "it would be 200.0 s a step (-2.2%, a tie)."
    ) in text
    assert "dispatcher deepep: with alltoall, 232.7 s a step (+13.8%) and -1.0 GiB." in text
    assert "EP 32: with EP 16, a rule is broken: EP 16 is odd [some-rule]." in text


def test_no_plan_has_no_reasons(job: Job, outcomes: dict[str, Outcome]) -> None:
    assert why.reasons(job, outcomes["infeasible"]) == []


def test_reasons_of_real_costs_are_whole_sentences(job: Job, outcomes: dict[str, Outcome]) -> None:
    text = why.reasons(job, outcomes["optimal"])
    assert len(text) >= 5
    assert all(sentence.endswith((".", "].")) for sentence in text)
