"""What a solve returns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.vocabulary import Plan

Status = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ranked(_Data):
    """One plan of an outcome; `solver.ranking` says in which order.

    Parameters
    ----------
    rank : its place, from 1.
    tie_with_best : whether its predicted step time is too near to that of rank 1 to say which is less
        (`error_bars.tied`); rank 1 ties with itself.
    differs_from_best : its decisions that differ from rank 1.
    """

    rank: int
    plan: Plan
    evaluation: Evaluation
    tie_with_best: bool
    differs_from_best: tuple[str, ...] = ()


class Cause(_Data):
    """One clause of an explanation: the rule or budget and its sentence."""

    rule: str
    text: str


class Hint(_Data):
    """A change that was tried and works, with what it costs; ``set`` is in the words of ``--fix``/``--set``."""

    set: dict[str, Any]
    text: str


class Explanation(_Data):
    """Why there is no plan, the nearest changes that give one, and changes that were tried and do not.

    ``unsettled`` names what would have been too much work to find out.
    """

    causes: tuple[Cause, ...]
    hints: tuple[Hint, ...] = ()
    tried: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()


class Statistics(_Data):
    """Size of the search and where its time went."""

    raw_space: float = 0.0
    layouts: int = 0
    excluded: int = 0
    candidates: int = 0
    solves: int = 0
    build_seconds: float = 0.0
    solve_seconds: float = 0.0


class Outcome(_Data):
    """The answer to a solve.

    ``status`` is OPTIMAL when the first plan is proven best for the cost model, FEASIBLE when the search
    stopped early (then ``bound_seconds`` says how much better a plan could be), INFEASIBLE when no plan exists
    (with an ``explanation``), UNKNOWN when time ran out before any plan. ``proven`` counts the leading plans
    that are proven: no plan that is not among them is better. The first is the best of all; those that tie with it come
    next (`solver.ranking`).
    """

    schema_version: Literal[1] = 1
    status: Status
    objective: Literal["time", "memory"] = "time"
    bound_seconds: float | None = None
    bound_bytes: float | None = None
    proven: int = 0
    plans: tuple[Ranked, ...] = ()
    assumed: dict[str, Any] = {}
    explanation: Explanation | None = None
    statistics: Statistics = Statistics()

    @property
    def best(self) -> Ranked | None:
        """The first plan, if any."""
        return self.plans[0] if self.plans else None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``outcome`` holds the best plans so far."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("interrupted")
        self.outcome = outcome
