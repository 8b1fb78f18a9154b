"""The library call: a job and demands in, an outcome out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mbsolve.constraints.demands import narrow
from mbsolve.constraints.domains import domains, raw_size
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.constraints.quantise import SECONDS_PER_QUANTUM
from mbsolve.constraints.vocabulary import Plan
from mbsolve.solver.explain import explain
from mbsolve.solver.found import Found, InternalError, Objective, OutOfTime
from mbsolve.solver.outcome import Explanation, Interrupted, Outcome, Ranked, Statistics, Status
from mbsolve.solver.ranking import ranking
from mbsolve.solver.search import Search
from mbsolve.solver.tie import key_of

# A plan's float evaluation may differ from its quanta by the rounding of its terms, never by more.
_AGREEMENT = 2e-3


def solve(
    job: Job,
    objective: Objective = "time",
    top: int = 5,
    fixed: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    time_limit: float | None = None,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
    explained: bool = True,
) -> Outcome:
    """Find the best plans of a job and prove them best.

    Parameters
    ----------
    job : what to train and on what.
    objective : ``time`` minimises the step, ``memory`` the peak of the fullest device.
    top : plans to return, at least 1; they differ in a decision that matters (`tie.key_of`).
    fixed : decision -> value that every plan must have.
    forbid : values that no plan may have (``deepep``, ``cuda_graph_impl=full_iteration``).
    time_limit : seconds after which the best plans so far are returned with a bound; None for no limit.
    workers : threads of CP-SAT; the answer does not depend on it.
    progress : called with a line of text now and then.
    explained : whether an infeasible job is explained, with changes that were solved to work.

    Returns
    -------
    Outcome
        the best plan, those that tie with it, and the rest (`solver.ranking`), each re-checked by the plain rules and
        re-evaluated.

    Raises
    ------
    DemandError
        when ``fixed`` or ``forbid`` names no decision or an impossible value.
    InternalError
        when a plan fails its re-check.
    Interrupted
        on Ctrl-C, with the best plans so far.
    """
    dom = domains(job)
    demands = narrow(dom, fixed, forbid)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    search = Search(job, demands, objective, workers=workers, deadline=deadline, progress=progress)
    plans: list[Found] = []
    cut, stopped = False, False
    if not search.pool.empty:
        try:
            for _ in range(max(1, top)):
                floor = plans[-1].score(objective) if plans else 0
                found = search.best(_keys(plans), floor, ahead=max(1, top) - len(plans))
                if found is None:
                    break
                plans.append(found)
                if progress is not None:
                    progress(f"plan {len(plans)} proven")
        except OutOfTime:
            cut = True
        except KeyboardInterrupt:
            cut = stopped = True
    plans = _filled(search, plans, top) if cut else plans
    explanation: Explanation | None = None
    if not plans and not cut and explained:
        explanation = explain(job, objective, fixed or {}, forbid, progress)
    given = demands.splits(job.model.num_layers) or None
    outcome = _outcome(job, search, plans, cut, explanation, raw_size(job, demands.domains, given))
    if stopped:
        raise Interrupted(outcome)
    return outcome


def _keys(plans: Sequence[Found]) -> list[tuple[Any, ...]]:
    return [key_of(p.values) for p in plans]


def _filled(search: Search, plans: list[Found], top: int) -> list[Found]:
    """Proven plans first, then the best unproven ones known."""
    keys = set(_keys(plans))
    rest = [f for k, f in search.known.items() if k not in keys and f.quanta.fits]
    rest.sort(key=lambda f: (f.score(search.objective), f.quanta.peak, str(f.plan)))
    return [*plans, *rest][: max(1, top)]


def _outcome(
    job: Job, search: Search, plans: Sequence[Found], cut: bool, explanation: Explanation | None, raw: float
) -> Outcome:
    proven = sum(f.proven for f in plans)
    status: Status
    if plans:
        status = "OPTIMAL" if plans[0].proven else "FEASIBLE"
    elif cut:
        status = "UNKNOWN"
    else:
        status = "INFEASIBLE"
    order = ranking(job, plans, search.objective)
    ranked = tuple(_ranked(job, i, *entry, plans[0]) for i, entry in enumerate(order, 1))
    bound = _bound(search, plans)
    return Outcome(
        status=status,
        objective=search.objective,
        bound_seconds=_shown(job, bound) if search.objective == "time" else None,
        bound_bytes=bound if search.objective == "memory" else None,
        proven=proven,
        plans=ranked,
        assumed=assumptions(job),
        explanation=explanation,
        statistics=Statistics(
            raw_space=raw,
            layouts=search.pool.layouts,
            excluded=search.pool.grids.untouched() if search.pool.grids is not None else 0,
            **search.statistics,
        ),
    )


def _bound(search: Search, plans: Sequence[Found]) -> float | None:
    """Nothing can be better than this, in seconds or bytes."""
    if plans and plans[0].proven:
        return search.seconds(plans[0].score(search.objective))
    return search.bound()


def _shown(job: Job, seconds: float | None) -> float | None:
    """A time of the cost model as it is shown: the search goes without the anchor, which changes no order."""
    return None if seconds is None else seconds * job.time_factor


def _ranked(job: Job, rank: int, found: Found, evaluation: Evaluation, tie: bool, best: Found) -> Ranked:
    quantised = found.quanta.step * SECONDS_PER_QUANTUM * job.time_factor
    if abs(evaluation.step_seconds - quantised) > _AGREEMENT * quantised:
        raise InternalError(
            f"the plan's step is {evaluation.step_seconds} s in floating point, {quantised} s in quanta: {found.plan}"
        )
    return Ranked(
        rank=rank,
        plan=found.plan,
        evaluation=evaluation,
        tie_with_best=tie,
        differs_from_best=_differs(found.plan, best.plan),
    )


def _differs(plan: Plan, best: Plan) -> tuple[str, ...]:
    return tuple(n for n in type(plan).model_fields if getattr(plan, n) != getattr(best, n))


def assumptions(job: Job) -> dict[str, Any]:
    """What the answer rests on that the user may not have said."""
    return {
        "hardware": job.machine.name,
        "gpus_per_node": job.gpus_per_node,
        "nvlink_domain_gpus": job.topology.domain_gpus,
        "seq_len": job.seq_len,
        "gbs": job.gbs,
        "precision": job.precision,
        "target": job.target,
        "margin": job.margin,
        **({} if job.anchor is None else {"anchor": f"x{job.anchor.factor:.3g} by {job.anchor.by}"}),
        **job.settings.model_dump(),
    }
