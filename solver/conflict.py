"""The smallest set of demands, rules and budgets that cannot hold together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mbsolve.constraints.budgets import BUDGETS as DECLARED
from mbsolve.constraints.demands import DemandError, narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import SPLIT_FIELDS
from mbsolve.solver.found import InternalError, OutOfTime
from mbsolve.solver.logic import Logic, Member
from mbsolve.solver.search import Search, rules_of

__all__ = ["BUDGETS", "Conflict", "conflict_of", "has_plan", "logic_of"]

# The host's first: where both are in the way, the memory of the GPU is what is told.
BUDGETS: Final = tuple(budget.id for budget in reversed(DECLARED))
# More bytes than any plan needs, and fewer than the models can count.
ENDLESS: Final = 4 * 10**15
# Shapes searched exactly in one question; what needs more is left open. A whole solve of a large job takes about 50.
MOST_WORK: Final = 400


class Conflict(NamedTuple):
    """Demands, rules and budgets without a plan; leaving out any one of them leaves some.

    Parameters
    ----------
    fixed : decision -> the value that it must have.
    forbid : values that no plan may have.
    rules : ids of rules. Where there are budgets, all other rules hold as well; where there are none, no others.
    budgets : those of `BUDGETS` that hold; none where the rules and demands alone leave nothing.
    settled : whether each member is known to be needed; else some were too much work to try without.
    """

    fixed: dict[str, Any]
    forbid: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    settled: bool = True


def has_plan(
    job: Job,
    fixed: Mapping[str, Any],
    forbid: Sequence[str],
    budgets: Sequence[str],
    most_shapes: int | None = None,
    less: Sequence[str] = (),
) -> bool:
    """Whether some plan satisfies the rules but those of the ids ``less``, the demands and the budgets named.

    Raises
    ------
    OutOfTime
        when more than ``most_shapes`` shapes would have to be opened to know, or more than `MOST_WORK` searched.
    """
    machine = job.machine
    if "hbm-capacity" not in budgets:
        machine = machine.model_copy(update={"hbm_bytes": ENDLESS})
    if "host-ram-capacity" not in budgets:
        machine = machine.model_copy(update={"host_ram_bytes_per_node": ENDLESS})
    roomy = job.model_copy(update={"machine": machine})
    try:
        demands = narrow(domains(roomy), fixed, forbid)
    except DemandError:
        # Without some demand, what is forbidden may be all that there is.
        return False
    rules = [rule for rule in rules_of(roomy, demands) if rule.id not in less]
    search = Search(
        roomy,
        demands,
        "time",
        limited=bool(budgets),
        most_shapes=most_shapes,
        most_work=MOST_WORK,
        rules=rules,
    )
    return not search.pool.empty and search.best([], any_plan=True) is not None


def logic_of(job: Job, fixed: Mapping[str, Any], forbid: Sequence[str], rules: Sequence[str] = ()) -> Logic:
    """The rules and demands of a job by themselves; of the rules only those of some ids, where such are given."""
    chosen = rules_of(job, narrow(domains(job), fixed))
    return Logic(job, [rule for rule in chosen if not rules or rule.id in rules], fixed, forbid)


def conflict_of(job: Job, fixed: Mapping[str, Any], forbid: Sequence[str]) -> Conflict:
    """A conflict of a job that has no plan.

    Where the rules and demands alone leave nothing, none has fewer members. Where memory is needed to see it,
    members are left out one after the other, demands first, as long as what remains has no plan either.

    Raises
    ------
    InternalError
        when the rules leave no plan, and yet no conflict is found among them.
    """
    few = logic_of(job, fixed, forbid).fewest()
    if few is not None:
        return _plain(job, fixed, forbid, few)
    kept = Conflict(dict(fixed), tuple(forbid), budgets=BUDGETS)
    for name in fixed:
        kept = _less(job, kept, kept._replace(fixed={k: v for k, v in kept.fixed.items() if k != name}))
    for text in forbid:
        kept = _less(job, kept, kept._replace(forbid=tuple(f for f in kept.forbid if f != text)))
    for budget in BUDGETS:
        kept = _less(job, kept, kept._replace(budgets=tuple(b for b in kept.budgets if b != budget)))
    if not kept.budgets:
        raise InternalError(f"the rules leave no plan, but no conflict among them was found: {kept}")
    return kept


def _less(job: Job, kept: Conflict, rest: Conflict) -> Conflict:
    """The rest of a conflict, if it is one by itself; else the conflict, which says so when that was left open."""
    try:
        return kept if has_plan(job, rest.fixed, rest.forbid, rest.budgets) else rest
    except OutOfTime:
        return kept._replace(settled=False)


def _plain(job: Job, fixed: Mapping[str, Any], forbid: Sequence[str], few: Sequence[Member]) -> Conflict:
    """A conflict of rules and demands as such; fields of the split are members of their own there."""
    names = {name for kind, name in few if kind == "demand"}
    kept = Conflict(
        {k: v for k, v in fixed.items() if k in names or ("split" in names and k in SPLIT_FIELDS)},
        tuple(text for text in forbid if ("forbid", text) in few),
        tuple(dict.fromkeys(name for kind, name in few if kind == "rule")),
    )
    parts = [name for name in kept.fixed if name in SPLIT_FIELDS]
    for name in parts if len(parts) > 1 else []:
        rest = {k: v for k, v in kept.fixed.items() if k != name}
        logic = logic_of(job, rest, kept.forbid, kept.rules)
        if not logic.together(logic.members):
            kept = kept._replace(fixed=rest)
    return kept
