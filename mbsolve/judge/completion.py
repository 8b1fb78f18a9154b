"""What a file leaves open and the target's defaults decide: every decision and setting that the verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rules.layout import virtual_stage_texts
from mbsolve.constraints.vocabulary import SPLIT_FIELDS, Plan, Settings
from mbsolve.emit.entry import Entry
from mbsolve.models.partial import UnknownDimensionError
from mbsolve.report.words import decision, word

__all__ = ["completed_text", "defaults_taken"]

OF_EXPERTS: Final = frozenset(
    (
        *("dispatcher", "ep_overlap", "delay_wgrad", "shared_expert_overlap", "permute_fusion", "op_fuser"),
        *("expert_rank_capacity", "routing", "router_padding"),
    )
)
OF_SHORT_FORMATS: Final = frozenset({"fp8_param", "fp8_output_proj"})
BEHIND: Final[Mapping[str, str]] = {
    "recompute_method": "recompute_granularity",
    "recompute_num_layers": "recompute_granularity",
    "recompute_modules": "recompute_granularity",
    "cuda_graph_scope": "cuda_graph_impl",
}
"""Fields that mean nothing while another one is off."""
OFF: Final = (
    "recompute_granularity",
    "cuda_graph_impl",
    "precision_aware_optimizer",
    "optimizer_offload_fraction",
)
"""Decisions whose default is off, and that a reader may well take for on."""
NAMED: Final = frozenset({"tp", "cp", "pp", "ep", "etp", "mbs", "vpp", "sequence_parallel", "dispatcher"})
"""Decisions that are told even where they are the default."""


def defaults_taken(entry: Entry, job: Job, plan: Plan) -> dict[str, Any]:
    """Return decisions and settings that an entry does not state, with their values; those that mean nothing left out."""
    without = set(SPLIT_FIELDS)
    if _is_dense(job):
        without |= OF_EXPERTS
    if not job.quantised:
        without |= OF_SHORT_FORMATS
    without |= {name for name, other in BEHIND.items() if getattr(plan, other) in (None, "none")}
    found = {name: getattr(plan, name) for name in Plan.model_fields if name not in {*entry.plan, *without}}
    if "vpp" in found and plan.pipeline_layout:
        found["vpp"] = _of_the_layout(plan)
    settings = job.settings.model_dump()
    found |= {name: settings[name] for name in settings if name not in {*entry.settings, *without}}
    return found | ({} if entry.margin is not None else {"margin": job.margin})


def _of_the_layout(plan: Plan) -> int:
    """The virtual stages of a rank that a layout describes; 1 where it is not spelt as one."""
    try:
        return max(1, len(virtual_stage_texts(plan.pipeline_layout or "")) // plan.pp)
    except PlacementError:
        return 1


def _is_dense(job: Job) -> bool:
    """Whether the model is known to have no experts."""
    try:
        return not job.model.is_moe
    except UnknownDimensionError:
        return False


def completed_text(completed: Mapping[str, Any], plan: Plan) -> str:
    """What was completed in one line: values that are no default or that matter much, then what is off, then how many."""
    usual = {**{n: f.default for n, f in Plan.model_fields.items()}, **Settings().model_dump()}
    told, off, others = list[str](), list[str](), 0
    for name, value in completed.items():
        plain = name == "margin" or (name in usual and usual[name] == value)
        if name in OFF and plain:
            off.append(decision(name))
        elif plain and (name not in NAMED or (name == "vpp" and plan.pp == 1)):
            others += 1
        else:
            told.append(f"{name}={word(value)}")
    parts = [", ".join(told), f"off: {', '.join(off)}" if off else ""]
    parts.append(f"{others} more at the target's defaults" if others else "")
    return "; ".join(part for part in parts if part)
