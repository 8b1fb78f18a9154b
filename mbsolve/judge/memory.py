"""The memory of a configuration in full, and what would free some of it."""

from __future__ import annotations

from typing import Any, Literal

from mbsolve.constraints.account import Account, account
from mbsolve.constraints.evaluation import MemoryBar
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.relief import Relief, excess, relief
from mbsolve.judge.answers import Evaluated, evaluate_case
from mbsolve.judge.cases import Case

__all__ = ["Remembered", "memory_of"]


class Remembered(Evaluated):
    """What a configuration takes of devices and hosts, or why that cannot be said.

    Parameters
    ----------
    account : every pipeline rank at every kind of moment, the host, and the formats of the state.
    memory_error : how far the peak may be off, and what that means for the margin.
    relief : single changes that free memory; None where none were asked for and the plan fits.
    """

    schema_version: Literal[1] = 1
    account: Account | None = None
    memory_error: MemoryBar | None = None
    relief: Relief | None = None

    def flat(self) -> dict[str, Any]:
        """All but the evaluation, for JSON; `evaluate` has that."""
        return self.model_dump(mode="json", exclude={"evaluation"})


def memory_of(case: Case, free_bytes: float | None = None) -> Remembered:
    """The memory of a configuration as the stack would run it.

    Parameters
    ----------
    free_bytes : what a change should free; None asks for as much as the plan is over the limit, if it is.
    """
    found = evaluate_case(case)
    about = {name: getattr(found, name) for name in Evaluated.model_fields}
    if found.evaluation is None:
        return Remembered(**about)
    job, plan, _ = normalise(case.job, case.plan, unknown=case.unknown)
    over = excess(job, found.evaluation)
    wanted = over if free_bytes is None else free_bytes
    asked = free_bytes is not None or over > 0
    return Remembered(
        **about,
        account=account(job, plan, case.completed),
        memory_error=found.evaluation.memory_error,
        relief=relief(job, plan, wanted) if asked and found.legal else None,
    )
