"""What makes a plan take less memory: formats that a file left open, and changes that let a plan fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from typing import Any, Final

from mbsolve.constraints.changes import applied, distance, now, said
from mbsolve.constraints.findings import Repair
from mbsolve.constraints.job import Job
from mbsolve.constraints.rules.useful import useful_recompute_modules
from mbsolve.constraints.vocabulary import Plan

__all__ = ["FORMATS", "MEASURES", "OPEN_FIELDS", "RECOMPUTE", "leaner", "lighter", "measures"]

FORMATS: Final = ("grad_dtype", "moment_dtype", "main_param_dtype", "fp8_param")
"""Formats of gradients, of optimizer state and of weights; fields of the settings."""
RECOMPUTE: Final = "recompute_granularity"
OPEN_FIELDS: Final = (*FORMATS, RECOMPUTE)
GRADIENTS: Final[dict[str, Any]] = {"grad_dtype": "bf16"}
MOMENTS: Final[dict[str, Any]] = {"moment_dtype": "bf16", "precision_aware_optimizer": True}
MASTERS: Final[dict[str, Any]] = {"main_param_dtype": "fp16", "precision_aware_optimizer": True}
WEIGHTS: Final[dict[str, Any]] = {"fp8_param": True}
FULL: Final[dict[str, Any]] = {
    RECOMPUTE: "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "recompute_modules": (),
}
OFFLOAD: Final[dict[str, Any]] = {"optimizer_offload_fraction": 1.0}
DEGREES: Final = ("tp", "ep", "pp", "cp")
MEASURES: Final = (
    *dict.fromkeys(name for fields in (GRADIENTS, MOMENTS, OFFLOAD, FULL, WEIGHTS) for name in fields),
    *("mbs", *DEGREES, "sequence_parallel", "gpus"),
)
"""Fields of the plan, the job and its settings that are changed to make a plan fit."""
MOST: Final = 4
TRIED: Final = 30


def leaner(job: Job, plan: Plan, open_fields: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield values of open fields that take ever less memory, as recipes of the stack set them.

    Gradients, moments, masters, and FP8 weights in short formats; the same without the first of them, since an optimizer
    that reads long gradients copies short ones; then all of it with full recompute.

    Parameters
    ----------
    open_fields : those of `OPEN_FIELDS` that nothing states.
    """
    open_formats = [
        lean
        for field, lean in zip(FORMATS, (GRADIENTS, MOMENTS, MASTERS, WEIGHTS), strict=True)
        if field in open_fields and (field != "fp8_param" or job.quantised)
    ]
    steps: list[dict[str, Any]] = [{}]
    for first in range(len(open_formats)):
        taken: dict[str, Any] = {}
        for lean in open_formats[first:]:
            taken = {**taken, **lean}
            steps.append(taken)
    replayed = [{**step, **FULL} for step in steps] if RECOMPUTE in open_fields else []
    for fields in (*steps, *replayed):
        changed = {name: value for name, value in fields.items() if now(job, plan, name) != value}
        if changed:
            yield changed


def measures(job: Job, plan: Plan) -> list[dict[str, Any]]:
    """Return single measures against memory, those in effect left out: formats, recompute, offload, degrees, GPUs."""
    selective = {RECOMPUTE: "selective", "recompute_modules": useful_recompute_modules(job.model)}
    taken_back = {"recompute_method": None, "recompute_num_layers": None}
    out: list[dict[str, Any]] = [GRADIENTS, MOMENTS, OFFLOAD, FULL, {**selective, **taken_back}]
    if job.quantised:
        out.append(WEIGHTS)
    if plan.mbs > 1:
        out.append({"mbs": plan.mbs // 2})
    for name in DEGREES:
        if name == "ep" and not job.model.is_moe:
            continue
        wider = {name: 2 * getattr(plan, name)}
        out.append({**wider, "sequence_parallel": True} if name == "tp" else wider)
        out.append({**wider, "gpus": 2 * job.gpus})
    out.append({"gpus": 2 * job.gpus})
    return [{n: v for n, v in fields.items() if now(job, plan, n) != v} for fields in out]


def lighter(job: Job, plan: Plan, fits: Callable[[Job, Plan], bool]) -> tuple[Repair, ...]:
    """Return the nearest changes, of one measure or of two, after which a plan is legal and fits.

    Parameters
    ----------
    fits : says so of a job and a plan.
    """
    single = [fields for fields in measures(job, plan) if fields]
    pairs = [{**a, **b} for a, b in combinations(single, 2) if not set(a) & set(b)]
    found: list[dict[str, Any]] = []
    for some in (single, pairs):
        near = sorted(some, key=lambda fields: distance(job, plan, fields))
        for fields in near[:TRIED]:
            if len(found) == MOST:
                break
            if fields not in found and fits(*applied(job, plan, fields)):
                found.append(fields)
        if found:
            break
    return tuple(Repair(set=fields, text=said(job, plan, fields)) for fields in found)
