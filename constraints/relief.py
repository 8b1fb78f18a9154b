"""What would free device memory: single changes of a plan, priced in step time. No solver in here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.budgets import BUDGETS
from mbsolve.constraints.changes import applied, now, said
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.lighter import FORMATS, measures
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rules.repair import single_changes
from mbsolve.constraints.rules.useful import useful_recompute_modules
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import DECISIONS, SPLIT_FIELDS, Plan

__all__ = ["Change", "Relief", "excess", "priced_change", "relief"]

# Of a decision with many values (layers, shares) so many are priced.
TRIED: Final = 20
MOST: Final = 3
"""Changes of the same fields that are offered."""
NOTHING: Final = 2.0**20
"""Bytes below which nothing was freed."""


class Change(BaseModel):
    """A change of a plan, and what it does.

    Parameters
    ----------
    set : fields of the plan or of the settings of its job, with their new values; None takes a field back.
    text : the change in words.
    freed_bytes : by how much the peak of the fullest pipeline rank falls; the rank may be another one then.
    added_seconds, added_share : what a step takes more, and that by what it takes now; below zero where it is faster.
    step_seconds, peak_device_bytes, host_bytes_per_node : the step and the memory after it.
    fits : whether the plan fits then.
    numerics : whether it changes the numbers that training computes, by a shorter format of the state.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: dict[str, Any]
    text: str
    freed_bytes: float
    added_seconds: float
    added_share: float
    step_seconds: float
    peak_device_bytes: float
    host_bytes_per_node: float
    fits: bool
    numerics: bool


class Relief(BaseModel):
    """What would free so many bytes of the fullest device.

    Parameters
    ----------
    wanted_bytes : how many.
    changes : legal single changes, each of which frees them, cheapest in step time first.
    less : where there is none, those that free most.
    priced : how many legal changes were priced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    wanted_bytes: float
    changes: tuple[Change, ...]
    less: tuple[Change, ...] = ()
    priced: int


def excess(job: Job, evaluation: Evaluation) -> float:
    """Bytes by which the fullest device is over what it may hold; 0 where it is not."""
    budget = next(budget for budget in BUDGETS if budget.id == "hbm-capacity")
    return max(0.0, budget.needs(evaluation) - budget.limit(job))


def relief(job: Job, plan: Plan, wanted: float) -> Relief:
    """The cheapest single changes of a legal plan that free device memory.

    Each changes one decision (with what belongs to it), one module of recompute or offload, or one format of the state. It
    breaks no law and lets no node pin more than it may; what it does is what `evaluate` says of the changed plan as the
    stack would run it.

    Parameters
    ----------
    wanted : bytes, at least 0.
    """
    before = evaluate(job, plan)
    found = [
        change
        for fields in _thinned(job, plan)
        if (change := priced_change(job, plan, before, fields)) is not None and change.freed_bytes > NOTHING
    ]
    enough = _chosen([change for change in found if change.freed_bytes >= wanted])
    less = () if enough else tuple(sorted(_chosen(found), key=lambda change: -change.freed_bytes))
    return Relief(wanted_bytes=wanted, changes=enough, less=less[:MOST], priced=len(found))


def _candidates(job: Job, plan: Plan) -> Iterator[dict[str, Any]]:
    """Single changes, legal or not: another value of a decision, or a measure against memory on the same GPUs."""
    yield from single_changes(DECISIONS, job, plan)
    yield from (fields for fields in measures(job, plan) if "gpus" not in fields)
    if plan.recompute_granularity is None:
        for module in useful_recompute_modules(job.model):
            yield {"recompute_granularity": "selective", "recompute_modules": (module,)}
    away = plan.fine_grained_offload_modules
    if "core_attn" not in away:
        # The stack sends the projection's input away with the attention that makes it only.
        yield {"fine_grained_offload_modules": (*away, "core_attn", "attn_proj")}
    if plan.cuda_graph_impl != "none":
        yield {"cuda_graph_impl": "none", "cuda_graph_scope": ()}
    for split in splits(job.model, 2 * plan.pp, plan.vpp):
        yield {"pp": 2 * plan.pp, **{field: getattr(split, part) for field, part in SPLIT_FIELDS.items()}}


def _thinned(job: Job, plan: Plan) -> Iterator[dict[str, Any]]:
    """Changes that are legal, each once; of those of one number so many, spread evenly."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for fields in _candidates(job, plan):
        changed = {name: value for name, value in fields.items() if now(job, plan, name) != value}
        key = tuple(sorted(changed))
        if changed and changed not in groups[key] and _legal(job, plan, changed):
            groups[key].append(changed)
    for key, group in groups.items():
        step = max(1, -(-len(group) // TRIED)) if len(key) == 1 else 1
        # From the far end, so that the whole of it is among them.
        yield from group[::-1][::step]


def _legal(job: Job, plan: Plan, fields: Mapping[str, Any]) -> bool:
    """Whether the plan breaks no law with some fields changed, as the stack would run it."""
    changed, altered, _ = normalise(*applied(job, plan, fields))
    return not broken_laws(changed, altered)


def priced_change(job: Job, plan: Plan, before: Evaluation, fields: dict[str, Any]) -> Change | None:
    """What a legal change does; None where it lets a node pin more than it may."""
    changed, altered, _ = normalise(*applied(job, plan, fields))
    try:
        after = evaluate(changed, altered)
    except PlacementError:
        return None
    holds = fits(changed, after)
    if not holds["host-ram-capacity"] and after.host_bytes_per_node > before.host_bytes_per_node:
        return None
    added = after.step_seconds - before.step_seconds
    return Change(
        set=fields,
        text=said(job, plan, fields),
        freed_bytes=before.worst_stage.peak_device_bytes - after.worst_stage.peak_device_bytes,
        added_seconds=added,
        added_share=added / before.step_seconds,
        step_seconds=after.step_seconds,
        peak_device_bytes=after.worst_stage.peak_device_bytes,
        host_bytes_per_node=after.host_bytes_per_node,
        fits=all(holds.values()),
        numerics=any(name in FORMATS for name in fields),
    )


def _chosen(found: list[Change]) -> tuple[Change, ...]:
    """The cheapest first, without those that another one of the same fields, or of fewer, makes needless."""
    chosen: list[Change] = []
    count: dict[tuple[str, ...], int] = defaultdict(int)
    for change in sorted(found, key=lambda c: (c.added_seconds, len(c.set), -c.freed_bytes, c.text)):
        same = tuple(sorted(change.set))
        most = MOST if any(isinstance(value, tuple) for value in change.set.values()) else 1
        needless = any(one.set.items() <= change.set.items() for one in chosen)
        if not needless and count[same] < most:
            chosen.append(change)
            count[same] += 1
    return tuple(chosen)
