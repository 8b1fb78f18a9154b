"""The smallest set of demands and budgets that cannot hold together, the rules being what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mbsolve.constraints.demands import narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job
from mbsolve.solver.search import Search

__all__ = ["BUDGETS", "Conflict", "conflict_of", "has_plan"]

BUDGETS: Final = ("host-ram-capacity", "hbm-capacity")
# More bytes than any plan needs, and fewer than the models can count.
ENDLESS: Final = 4 * 10**15


class Conflict(NamedTuple):
    """Demands and budgets without a plan; leaving out any one of them leaves some.

    Parameters
    ----------
    fixed : decision -> the value that it must have.
    forbid : values that no plan may have.
    budgets : those of `BUDGETS` that hold; none where the rules and demands alone leave nothing.
    """

    fixed: dict[str, Any]
    forbid: tuple[str, ...]
    budgets: tuple[str, ...]


def has_plan(
    job: Job,
    fixed: Mapping[str, Any],
    forbid: Sequence[str],
    budgets: Sequence[str],
    most_shapes: int | None = None,
) -> bool:
    """Whether some plan satisfies the rules, the demands and the budgets named.

    Raises
    ------
    OutOfTime
        when more than ``most_shapes`` shapes would have to be opened to know.
    """
    machine = job.machine
    if "hbm-capacity" not in budgets:
        machine = machine.model_copy(update={"hbm_bytes": ENDLESS})
    if "host-ram-capacity" not in budgets:
        machine = machine.model_copy(update={"host_ram_bytes_per_node": ENDLESS})
    roomy = job.model_copy(update={"machine": machine})
    demands = narrow(domains(roomy), fixed, forbid)
    search = Search(roomy, demands, "time", limited=bool(budgets), most_shapes=most_shapes)
    return not search.pool.empty and search.best([], any_plan=True) is not None


def conflict_of(job: Job, fixed: Mapping[str, Any], forbid: Sequence[str]) -> Conflict:
    """A minimal conflict of a job that has no plan.

    Members are left out one after the other, demands first, as long as what remains has no plan either.
    """
    kept = Conflict(dict(fixed), tuple(forbid), BUDGETS)
    for name in fixed:
        rest = kept._replace(fixed={k: v for k, v in kept.fixed.items() if k != name})
        kept = kept if has_plan(job, *rest) else rest
    for text in forbid:
        rest = kept._replace(forbid=tuple(f for f in kept.forbid if f != text))
        kept = kept if has_plan(job, *rest) else rest
    for budget in BUDGETS:
        rest = kept._replace(budgets=tuple(b for b in kept.budgets if b != budget))
        kept = kept if has_plan(job, *rest) else rest
    return kept
