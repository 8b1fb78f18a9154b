"""What a search finds, and the ways in which it can fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mbsolve.constraints.quantised import Quantised
from mbsolve.constraints.vocabulary import Plan
from mbsolve.solver.tie import key_of

Objective = Literal["time", "memory"]


class InternalError(RuntimeError):
    """A plan failed its re-check: always a bug of ours."""


class OutOfTime(Exception):
    """The time limit was reached; what is known so far stands."""


@dataclass
class Found:
    """One plan with the numbers that rank it."""

    values: dict[str, Any]
    plan: Plan
    quanta: Quantised
    proven: bool = False

    def score(self, objective: Objective) -> int:
        """What is minimised, in quanta."""
        return self.quanta.step if objective == "time" else self.quanta.peak


def key_str(found: Found) -> str:
    """A stable text of a plan's key."""
    return str(key_of(found.values))
