"""Why a job has no plan: the demands, rules and budgets that stand in the way, and changes that were tried and work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mbsolve.constraints.demands import narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.evaluation import StageMemory
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit, host_limit
from mbsolve.solver.chain import chain, pins
from mbsolve.solver.conflict import Conflict, conflict_of, has_plan, logic_of
from mbsolve.solver.found import Found, Objective, OutOfTime
from mbsolve.solver.hints import MOST_SHAPES, Say, hints
from mbsolve.solver.outcome import Cause, Explanation
from mbsolve.solver.search import Search

GIB = 2**30
# Shapes among which the leanest plan is looked for: a job far too large has tens of thousands that are nearly as lean.
LEAN_SHAPES = 1000
# Rules that are looked at for what they settle.
MOST_PINS = 4
# A bound that is this near to a plan is that plan's, less what rounding takes.
SAME = 1 - 1e-3


def explain(
    job: Job, objective: Objective, fixed: Mapping[str, Any], forbid: Sequence[str], say: Say = None
) -> Explanation:
    """Causes and hints for an infeasible job.

    The causes are a minimal conflict: leaving out any demand, rule or budget among them leaves a plan.
    """
    if say is not None:
        say("explaining: no plan")
    conflict = conflict_of(job, fixed, forbid)
    asked = [Cause(rule=f"demand {k}", text=f"{k} is fixed at {v}") for k, v in conflict.fixed.items()]
    asked += [Cause(rule="demand", text=f"{text} is forbidden") for text in conflict.forbid]
    if conflict.budgets:
        demands = narrow(domains(job), conflict.fixed, conflict.forbid)
        lean = Search(job, demands, "memory", limited=False, most_shapes=LEAN_SHAPES)
        causes = _pinning(job, conflict) if asked else []
        causes += _memory_causes(job, _leanest(lean), lean.bound() or 0.0, conflict)
    else:
        logic = logic_of(job, conflict.fixed, conflict.forbid, conflict.rules)
        causes = chain(logic, logic.members, conflict.fixed)
    works, tried, unsettled = hints(job, objective, fixed, forbid, conflict, say)
    if not conflict.settled:
        unsettled.insert(0, "whether all of these are needed")
    return Explanation(
        causes=(*asked, *causes), hints=tuple(works), tried=tuple(tried), unsettled=tuple(unsettled)
    )


def _pinning(job: Job, conflict: Conflict) -> list[Cause]:
    """Rules by which the demands settle other sizes, as far as there would be a plan without the rule."""
    found = pins(logic_of(job, conflict.fixed, conflict.forbid), conflict.fixed)
    out = []
    for cause in found[:MOST_PINS]:
        try:
            free = has_plan(
                job, conflict.fixed, conflict.forbid, conflict.budgets, MOST_SHAPES, less=(cause.rule,)
            )
        except OutOfTime:
            free = False
        out += [cause] if free else []
    return out


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
    needs = f"{stage.peak_device_bytes / GIB:.1f} GiB on pipeline rank {stage.stage}"
    room = f"{device_limit(job) / GIB:.1f} GiB after a margin of {job.margin:.0%}"
    pinned = f"{evaluation.host_bytes_per_node / GIB:.0f} GiB a node"
    free = f"{host_limit(job) / GIB:.0f} GiB to pin"
    # What is seen may be the least even where the look ended before the proof.
    proven = least.proven or bound >= stage.peak_device_bytes * SAME
    grid = "x".join(map(str, evaluation.grids.dense))
    which = f"the leanest legal plan{'' if proven else ' found'} (TPxCPxDPxPP {grid})"
    if stage.peak_device_bytes <= device_limit(job):
        told = f"{which} needs {needs} and pins {pinned}; a node has {free}"
        rest = f"what pins less needs more than a GPU has, {room}"
        out = [Cause(rule="host-ram-capacity", text=told), Cause(rule="hbm-capacity", text=rest)]
        return [cause for cause in out if cause.rule in conflict.budgets]
    unseen = "" if proven else f"; none needs less than {bound / GIB:.1f} GiB"
    out = [
        Cause(rule="hbm-capacity", text=f"{which} needs {needs} ({_parts(stage)} GiB){unseen}"),
        Cause(rule="hbm-capacity", text=f"a GPU has {room}"),
    ]
    if "host-ram-capacity" in conflict.budgets:
        out.append(Cause(rule="host-ram-capacity", text=f"it pins {pinned}; a node has {free}"))
    return out


def _parts(stage: StageMemory) -> str:
    """The largest groups of terms of a stage, in GiB."""
    groups: dict[str, float] = {}
    for t in stage.terms:
        name = t.name.split(".")[0]
        groups[name] = groups.get(name, 0.0) + (t.bytes or 0.0)
    return ", ".join(f"{name} {b / GIB:.1f}" for name, b in sorted(groups.items(), key=lambda kv: -kv[1])[:4])
