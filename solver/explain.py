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
from mbsolve.solver.conflict import BUDGETS, Conflict, conflict_of, has_plan
from mbsolve.solver.found import Found, Objective, OutOfTime
from mbsolve.solver.outcome import Cause, Explanation, Hint
from mbsolve.solver.search import Search

GIB = 2**30

# Shapes among which the leanest plan is looked for: a job far too large has tens of thousands that are nearly as lean.
MOST_SHAPES = 1000
# A bound that is this near to a plan is that plan's, less what rounding takes.
SAME = 1 - 1e-3
# Tokens below which a shorter sequence is no proposal.
SHORTEST = 1024


def explain(
    job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str], search: Search
) -> Explanation:
    """Causes and hints for an infeasible job.

    The causes are a minimal conflict: leaving out any demand or budget among them leaves a plan.
    """
    conflict = conflict_of(job, fixed, forbid)
    if conflict.budgets:
        demands = narrow(domains(job), conflict.fixed, conflict.forbid)
        lean = Search(job, demands, "memory", limited=False, most_shapes=MOST_SHAPES)
        causes = _memory_causes(job, _leanest(lean), lean.bound() or 0.0, conflict)
    else:
        causes = _rule_causes(job, conflict.fixed, conflict.forbid, search)
    asked = [Cause(rule=f"demand {k}", text=f"{k} is fixed at {v}") for k, v in conflict.fixed.items()]
    asked += [Cause(rule="demand", text=f"{text} is forbidden") for text in conflict.forbid]
    hints = _hints(job, objective, fixed, forbid, conflict)
    return Explanation(causes=(*causes, *asked), hints=tuple(hints))


def _leanest(search: Search) -> Found | None:
    """The legal plan with the least peak memory, budgets ignored: proven, or the leanest of the shapes allowed."""
    if search.pool.empty:
        return None
    try:
        return search.best([])
    except OutOfTime:
        search.guess()
        return search.incumbent()


def _memory_causes(job: Job, least: Found | None, bound: float, conflict: Conflict) -> list[Cause]:
    if least is None:
        return [Cause(rule=name, text="no plan stays within it") for name in conflict.budgets]
    evaluation = evaluate(job, least.plan)
    stage = evaluation.worst_stage
    groups: dict[str, float] = {}
    for t in stage.terms:
        name = t.name.split(".")[0]
        groups[name] = groups.get(name, 0.0) + (t.bytes or 0.0)
    largest = sorted(groups.items(), key=lambda kv: -kv[1])[:4]
    parts = ", ".join(f"{name} {b / GIB:.1f}" for name, b in largest)
    # What is seen may be the least even where the look ended before the proof.
    proven = least.proven or bound >= stage.peak_device_bytes * SAME
    which = "the leanest legal plan" if proven else "the leanest legal plan found"
    unseen = "" if proven else f"; none needs less than {bound / GIB:.1f} GiB"
    grid = "x".join(map(str, evaluation.grids.dense))
    needs = f"{which} (TPxCPxDPxPP {grid}) needs {stage.peak_device_bytes / GIB:.1f} GiB on"
    host = (
        f"the leanest plan pins {evaluation.host_bytes_per_node / GIB:.0f} GiB a node; a node has "
        f"{host_limit(job) / GIB:.0f} GiB to pin"
    )
    over = stage.peak_device_bytes > device_limit(job)
    out = []
    if "hbm-capacity" in conflict.budgets:
        text = f"{needs} pipeline rank {stage.stage} ({parts} GiB){unseen}"
        room = f"a GPU has {device_limit(job) / GIB:.1f} GiB after a margin of {job.margin:.0%}"
        out += [Cause(rule="hbm-capacity", text=text), Cause(rule="hbm-capacity", text=room)]
    if "host-ram-capacity" in conflict.budgets or (
        not over and evaluation.host_bytes_per_node > host_limit(job)
    ):
        out.append(Cause(rule="host-ram-capacity", text=host))
    return out


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


def _hints(
    job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str], conflict: Conflict
) -> list[Hint]:
    """Single changes that give a plan, each solved; the nearest of each kind."""
    out = []
    for name in conflict.fixed:
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
    for text in conflict.forbid:
        found = _try(job, objective, fixed, [f for f in forbid if f != text])
        if found is not None:
            out.append(Hint(set={"allow": text}, text=f"if {text} were allowed: {_cost(job, found)}"))
    if not out or fixed or forbid:
        out += _more_gpus(job, objective, fixed, forbid)
    if conflict.budgets:
        out += _shorter(job, objective, fixed, forbid)
    return out


def _more_gpus(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> list[Hint]:
    """More GPUs that give a plan: doubled until they do, then whole nodes in between where these are seen to do."""
    below = job.gpus
    for factor in (2, 4, 8, 16, 32):
        gpus = job.gpus * factor
        found = _try(job.model_copy(update={"gpus": gpus}), objective, fixed, forbid)
        if found is None:
            below = gpus
            continue
        step = min(job.gpus_per_node, below)
        for part in (5, 6, 7):
            fewer = below * part // 4 // step * step
            if below < fewer < gpus and _some(job, {"gpus": fewer}, fixed, forbid):
                smaller = _try(job.model_copy(update={"gpus": fewer}), objective, fixed, forbid)
                gpus, found = (fewer, smaller) if smaller is not None else (gpus, found)
                break
        bigger = job.model_copy(update={"gpus": gpus})
        return [Hint(set={"gpus": gpus}, text=f"with {gpus} GPUs: {_cost(bigger, found)}")]
    return []


def _shorter(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> list[Hint]:
    """Half the sequence length, and half of that, with the tokens of a step kept; none where they do not help."""
    for factor in (2, 4):
        if job.seq_len % factor or job.seq_len // factor < SHORTEST:
            continue
        change = {"seq_len": job.seq_len // factor, "gbs": job.gbs * factor}
        if _some(job, change, fixed, forbid):
            shorter = job.model_copy(update=change)
            found = _try(shorter, objective, fixed, forbid)
            if found is not None:
                text = f"with sequences of {shorter.seq_len} tokens: {_cost(shorter, found)}"
                return [Hint(set={"seq_len": shorter.seq_len}, text=text)]
    return []


def _some(job: Job, change: Mapping[str, Any], fixed: Mapping[str, Any], forbid: Sequence[str]) -> bool:
    """Whether a change is seen to give a plan, without looking far."""
    try:
        return has_plan(job.model_copy(update=change), fixed, forbid, BUDGETS, MOST_SHAPES)
    except OutOfTime:
        return False


def _try(job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str]) -> Found | None:
    search = Search(job, narrow(domains(job), fixed, forbid), objective)
    return None if search.pool.empty else search.best([])


def _cost(job: Job, found: Found) -> str:
    e = evaluate(job, found.plan)
    return f"{e.step_seconds:.3g} s a step, {e.worst_stage.peak_device_bytes / GIB:.1f} GiB"
