"""The step time of a configuration in full, and what CUDA graphs would save of it."""

from __future__ import annotations

from typing import Any, Literal

from mbsolve.constraints.graph_help import GraphHelp, graph_help
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.time_account import TimeAccount, time_account
from mbsolve.judge.answers import Evaluated, evaluate_case
from mbsolve.judge.cases import Case

__all__ = ["Timed", "timed"]


class Timed(Evaluated):
    """What a configuration costs, and where its step goes.

    Parameters
    ----------
    time : the parts of the step, and the micro-batch of every pipeline rank.
    graphs : what graphs would do; None where the plan does not wait for its host, or is not legal.
    """

    schema_version: Literal[1] = 1
    time: TimeAccount | None = None
    graphs: GraphHelp | None = None

    def step(self) -> dict[str, Any]:
        """All but the evaluation, for JSON."""
        return self.model_dump(mode="json", exclude={"evaluation"})


def timed(case: Case) -> Timed:
    """The step of a configuration as the stack would run it."""
    found = evaluate_case(case)
    about = {name: getattr(found, name) for name in Evaluated.model_fields}
    if found.evaluation is None:
        return Timed(**about)
    job, plan, _ = normalise(case.job, case.plan, unknown=case.unknown)
    time = time_account(job, plan)
    return Timed(**about, time=time, graphs=graph_help(job, plan, time) if found.legal else None)
