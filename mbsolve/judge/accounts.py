"""Answers about memory: the account of a configuration of a job file, and what would free some."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from mbsolve.constraints.account import Account, account
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.relief import Relief, excess, relief
from mbsolve.judge.answers import Evaluated, evaluate_case
from mbsolve.judge.cases import Case
from mbsolve.judge.text import about_lines
from mbsolve.report.memory import memory_report

__all__ = ["Accounted", "account_case", "accounted_text"]


class Accounted(Evaluated):
    """The memory of a configuration, or why it cannot be said.

    Parameters
    ----------
    memory : None where there is no evaluation.
    relief : what would free as much as was asked for, or what the plan is over; None where neither.
    """

    memory: Account | None = None
    relief: Relief | None = None

    @property
    def holds(self) -> bool:
        """Whether the configuration is legal and, as far as it was evaluated, fits."""
        return self.legal and (self.memory is None or all(self.memory.fits.values()))

    def flat(self) -> dict[str, Any]:
        """The memory with what is said about it beside its fields, for JSON."""
        about = self.model_dump(mode="json", exclude={"evaluation", "memory", "relief"})
        memory = self.memory.model_dump(mode="json") if self.memory else {}
        return {**about, **memory, "relief": self.relief.model_dump(mode="json") if self.relief else None}


def account_case(case: Case, free: float | None = None) -> Accounted:
    """The memory of a configuration; what would free some where it is asked for, or where the plan does not fit.

    Parameters
    ----------
    free : bytes to free.
    """
    found = evaluate_case(case)
    if found.evaluation is None:
        return Accounted(**dict(found))
    job, plan, _ = normalise(case.job, case.plan)
    wanted = excess(job, found.evaluation) if free is None else free
    return Accounted(
        **dict(found),
        memory=account(job, plan, case.completed),
        relief=relief(job, plan, wanted) if wanted and found.legal else None,
    )


def accounted_text(case: Case, found: Accounted, width: int, *, verbose: bool, colour: bool) -> Text:
    """The memory of a configuration as text, what was completed and broken before it."""
    lines = Text("\n".join(about_lines(case, found, width)) + "\n")
    if found.memory is None:
        return lines
    report = memory_report(found.memory, found.relief, width, verbose=verbose, colour=colour)
    return lines.append("\n").append_text(report)
