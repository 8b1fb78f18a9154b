"""Why a job has no plan: the demand, rule or budget that stands in the way, and changes that were tried and work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mbsolve.constraints.demands import narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit, host_limit
from mbsolve.constraints.rule import Rule
from mbsolve.solver.found import Found, Objective, OutOfTime
from mbsolve.solver.outcome import Cause, Explanation, Hint
from mbsolve.solver.search import Search

GIB = 2**30

# Shapes among which the leanest plan is looked for: a job far too large has tens of thousands that are nearly as lean.
MOST_SHAPES = 1000


def explain(
    job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str], search: Search
) -> Explanation:
    """Causes and hints for an infeasible job.

    The causes are found by relaxing: without the memory budgets (is it memory?), then without each demand.
    """
    lean = Search(job, narrow(domains(job), fixed, forbid), "memory", limited=False, most_shapes=MOST_SHAPES)
    least = _leanest(lean)
    if least is not None:
        causes = _memory_causes(job, least, lean.bound() or 0.0)
    else:
        causes = _rule_causes(job, fixed, forbid, search)
    demands = [Cause(rule=f"demand {k}", text=f"{k} is fixed at {v}") for k, v in fixed.items()]
    demands += [Cause(rule="demand", text=f"{text} is forbidden") for text in forbid]
    return Explanation(causes=(*causes, *demands), hints=tuple(_hints(job, objective, fixed, forbid)))


def _leanest(search: Search) -> Found | None:
    """The legal plan with the least peak memory, budgets ignored: proven, or the leanest of the shapes allowed."""
    if search.pool.empty:
        return None
    try:
        return search.best([])
    except OutOfTime:
        search.guess()
        return search.incumbent()


def _memory_causes(job: Job, least: Found, bound: float) -> list[Cause]:
    evaluation = evaluate(job, least.plan)
    stage = evaluation.worst_stage
    groups: dict[str, float] = {}
    for t in stage.terms:
        name = t.name.split(".")[0]
        groups[name] = groups.get(name, 0.0) + (t.bytes or 0.0)
    largest = sorted(groups.items(), key=lambda kv: -kv[1])[:4]
    parts = ", ".join(f"{name} {b / GIB:.1f}" for name, b in largest)
    limit = device_limit(job)
    which = "the leanest legal plan" if least.proven else "the leanest legal plan found"
    unseen = "" if least.proven else f"; none needs less than {bound / GIB:.1f} GiB"
    grid = "x".join(map(str, evaluation.grids.dense))
    return [
        Cause(
            rule="hbm-capacity",
            text=(
                f"{which} (TPxCPxDPxPP {grid}) needs {stage.peak_device_bytes / GIB:.1f} GiB on "
                f"pipeline rank {stage.stage} ({parts} GiB){unseen}"
            ),
        ),
        Cause(
            rule="hbm-capacity",
            text=f"a GPU has {limit / GIB:.1f} GiB after a margin of {job.margin:.0%}",
        ),
        *(
            [
                Cause(
                    rule="host-ram-capacity",
                    text=(
                        f"the leanest plan pins {evaluation.host_bytes_per_node / GIB:.0f} GiB a node; a node has "
                        f"{host_limit(job) / GIB:.0f} GiB to pin"
                    ),
                )
            ]
            if evaluation.host_bytes_per_node > host_limit(job)
            else []
        ),
    ]


def _rule_causes(job: Job, fixed: Mapping[str, Any], forbid: Sequence[str], search: Search) -> list[Cause]:
    """Rules whose removal alone would leave a layout; or, failing that, those that removed the most."""
    removed = search.pool.source.removed
    by_id = {r.id: r for r in search.rules}
    ranked = sorted(removed, key=lambda i: -removed[i])
    single = []
    for name in ranked:
        rest = [r for r in search.rules if r.id != name]
        trial = Search(job, narrow(domains(job), fixed, forbid), "time", limited=False, rules=rest)
        if not trial.pool.empty and trial.pool.grow(float("inf")) and trial.pool.chunks:
            single.append(name)
    chosen = single[:3] or ranked[:3]
    return [Cause(rule=n, text=_words(by_id[n], fixed)) for n in chosen if n in by_id]


def _words(rule: Rule, fixed: Mapping[str, Any]) -> str:
    named = ", ".join(f"{n}={fixed[n]}" for n in rule.scope if n in fixed)
    return f"{rule.text.rstrip('.')}" + (
        f" (here {named})" if named else f" (decides {', '.join(rule.scope)})"
    )


def _hints(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> list[Hint]:
    """Single changes that give a plan, each solved; the nearest of each kind."""
    out = []
    for name in fixed:
        rest = {k: v for k, v in fixed.items() if k != name}
        found = _try(job, objective, rest, forbid)
        if found is not None:
            value = found.values.get(name, getattr(found.plan, name, None))
            out.append(
                Hint(
                    set={name: value},
                    text=f"without fixing {name} (it would be {value}): {_cost(job, found)}",
                )
            )
    for text in forbid:
        found = _try(job, objective, fixed, [f for f in forbid if f != text])
        if found is not None:
            out.append(Hint(set={"allow": text}, text=f"if {text} were allowed: {_cost(job, found)}"))
    if not out or fixed or forbid:
        out += _more_gpus(job, objective, fixed, forbid)
    return out


def _more_gpus(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> list[Hint]:
    for factor in (2, 4, 8, 16, 32):
        gpus = job.gpus * factor
        bigger = job.model_copy(update={"gpus": gpus})
        found = _try(bigger, objective, fixed, forbid)
        if found is not None:
            return [Hint(set={"gpus": gpus}, text=f"with {gpus} GPUs: {_cost(bigger, found)}")]
    return []


def _try(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> Found | None:
    search = Search(job, narrow(domains(job), fixed, forbid), objective)
    return None if search.pool.empty else search.best([])


def _cost(job: Job, found: Found) -> str:
    e = evaluate(job, found.plan)
    return f"{e.step_seconds:.3g} s a step, {e.worst_stage.peak_device_bytes / GIB:.1f} GiB"
