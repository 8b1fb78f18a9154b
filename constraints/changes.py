"""Changes of a plan and its job: applying one, how far it goes, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from math import log2
from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import PlacementError, virtual_stages
from mbsolve.constraints.vocabulary import DISPATCHERS, PRECISIONS, SPLIT_FIELDS, Plan, Settings
from mbsolve.models.partial import UnknownDimensionError

__all__ = ["applied", "distance", "now", "said", "stage_layers"]

JOB_FIELDS: Final = ("gpus", "gbs", "seq_len", "precision")
ENDS: Final = frozenset({"first_stage_layers", "last_stage_layers"})
RECOMPUTE_PARTS: Final = frozenset({"recompute_method", "recompute_num_layers", "recompute_modules"})
"""Fields that go with recompute_granularity."""
# More GPUs cost more than another layout on those that are there.
WEIGHT: Final = {"gpus": 1.5}
STEP: Final = 0.2
"""What any change costs, however small, in doublings of a parallel degree."""
MORE: Final = 0.3
"""What each field costs beyond the first."""
ADD: Final = 0.3
DROP: Final = 0.5
SWITCH: Final = 0.5
NAME: Final = 0.7
# Alternatives of a word, nearest first.
NEAR: Final[Mapping[str, tuple[str, ...]]] = {
    "deepep": ("hybridep", "alltoall", "allgather"),
    "hybridep": ("deepep", "alltoall", "allgather"),
    "alltoall": ("allgather", "hybridep", "deepep"),
    "allgather": ("alltoall", "hybridep", "deepep"),
    "nvfp4": ("mxfp8", "fp8_block", "fp8_cs", "fp8_delayed", "bf16"),
    "mxfp8": ("fp8_block", "fp8_cs", "fp8_delayed", "bf16", "nvfp4"),
    "fp8_block": ("mxfp8", "fp8_cs", "fp8_delayed", "bf16", "nvfp4"),
    "fp8_cs": ("fp8_delayed", "mxfp8", "fp8_block", "bf16", "nvfp4"),
    "fp8_delayed": ("fp8_cs", "mxfp8", "fp8_block", "bf16", "nvfp4"),
    "bf16": ("fp8_cs", "fp8_block", "mxfp8", "fp8_delayed", "nvfp4"),
    "local": ("transformer_engine", "full_iteration", "none"),
    "transformer_engine": ("full_iteration", "local", "none"),
    "full_iteration": ("transformer_engine", "local", "none"),
}


def applied(job: Job, plan: Plan, fields: Mapping[str, Any]) -> tuple[Job, Plan]:
    """The job and the plan with some fields changed: of the plan, of the job, or of its settings."""
    of_job = {name: value for name, value in fields.items() if name in JOB_FIELDS}
    settings = {name: value for name, value in fields.items() if name in Settings.model_fields}
    of_plan = {n: v for n, v in fields.items() if n not in of_job and n not in settings}
    if settings:
        of_job["settings"] = job.settings.model_copy(update=settings)
    return (
        job.model_copy(update=of_job) if of_job else job,
        plan.model_copy(update=of_plan) if of_plan else plan,
    )


def now(job: Job, plan: Plan, field: str) -> Any:
    """The present value of a field of the plan, of the job, or of its settings."""
    home = job if field in JOB_FIELDS else job.settings if field in Settings.model_fields else plan
    return getattr(home, field)


def distance(job: Job, plan: Plan, fields: Mapping[str, Any]) -> float:
    """How far a change goes: the sum over its fields, in doublings of a parallel degree, and how uneven stages get."""
    total: float = sum(_far(field, now(job, plan, field), value) for field, value in fields.items())
    total += MORE * (len(set(fields) - RECOMPUTE_PARTS) - 1)
    if {*SPLIT_FIELDS, "pp", "vpp"} & set(fields):
        layers = stage_layers(*applied(job, plan, fields))
        if layers:
            total += 2.0 * log2(max(layers) * len(layers) / sum(layers))
    return total


def _far(field: str, old: Any, new: Any) -> float:
    if isinstance(old, bool) or isinstance(new, bool):
        return STEP + SWITCH
    if field == "optimizer_offload_fraction":
        return STEP + float(abs(new - old))
    if field in SPLIT_FIELDS or old is None or new is None:
        return STEP + (DROP if new is None else ADD)
    if isinstance(old, int) and isinstance(new, int):
        if min(old, new) < 1:
            return STEP + (DROP if new < 1 else ADD)
        return STEP + float(WEIGHT.get(field, 1.0)) * abs(log2(new / old))
    if isinstance(old, tuple):
        return STEP + ADD * len(set(new) - set(old)) + DROP * len(set(old) - set(new))
    near = NEAR.get(str(old), (*DISPATCHERS, *PRECISIONS))
    return NAME + STEP * near.index(new) if new in near else NAME + SWITCH


def stage_layers(job: Job, plan: Plan) -> list[int]:
    """Decoder layers of every pipeline rank; empty where they cannot be placed."""
    try:
        stages = virtual_stages(job.model, plan.pp, plan.vpp, plan.values()["split"])
    except (PlacementError, UnknownDimensionError, ArithmeticError, LookupError):
        return []
    layers = [sum(item.what == "layer" for item in stage) for stage in stages]
    return [sum(layers[rank :: plan.pp]) for rank in range(plan.pp)]


def said(job: Job, plan: Plan, fields: Mapping[str, Any]) -> str:
    """A change in a few words: what is set, then what is taken back."""
    sets, without = list[str](), list[str]()
    off = fields.get("recompute_granularity", ...) is None
    for field, value in fields.items():
        old = now(job, plan, field)
        if off and field in RECOMPUTE_PARTS:
            continue
        if off and field == "recompute_granularity":
            sets.append("recompute off")
        elif field == "gpus":
            sets.append(f"{value} GPUs")
        elif value is None or (value in ((), 0) and not isinstance(value, bool) and old):
            without.append(field)
        elif isinstance(value, bool):
            sets.append(f"{field} {'on' if value else 'off'}")
        elif isinstance(value, tuple):
            sets.append(f"{field}=[{', '.join(str(one) for one in value)}]")
        else:
            sets.append(f"{field}={value:g}" if isinstance(value, float) else f"{field}={value}")
    words = " and ".join(sets) if len(sets) < 3 else f"{', '.join(sets[:-1])} and {sets[-1]}"
    if without:
        words = f"{words} without {' and '.join(without)}".strip()
    layers = stage_layers(*applied(job, plan, fields)) if ENDS & set(fields) else []
    if len(set(layers)) > 1:
        runs = [(size, len(list(run))) for size, run in groupby(layers)]
        words += f" ({', '.join(f'{n} x {size}' if n > 1 else str(size) for size, n in runs)} layers)"
    return words
