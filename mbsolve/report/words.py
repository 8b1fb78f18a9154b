"""How quantities and decisions are spelled in reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from mbsolve.constraints.error_bars import tied
from mbsolve.constraints.evaluation import Evaluation, TermValue
from mbsolve.constraints.vocabulary import Plan

GIB: Final = 2**30

Group = tuple[str, float, list[tuple[str, float]]]
"""A group of terms: its name, its sum, and its members with their own, largest first."""

DECISION_WORDS: Final = {
    "tp": "TP",
    "cp": "CP",
    "pp": "PP",
    "vpp": "VPP",
    "ep": "EP",
    "etp": "ETP",
    "dp": "DP",
    "edp": "EDP",
    "mbs": "micro-batch",
    "sequence_parallel": "sequence parallelism",
    "pipeline_layout": "layout",
    "first_stage_layers": "first-stage layers",
    "last_stage_layers": "last-stage layers",
    "embedding_in_split": "embedding as a layer of the split",
    "loss_in_split": "loss as a layer of the split",
    "recompute_granularity": "recompute",
    "recompute_method": "recompute method",
    "recompute_num_layers": "recomputed layers",
    "recompute_modules": "recompute modules",
    "dispatcher": "dispatcher",
    "ep_overlap": "EP overlap",
    "delay_wgrad": "delayed wgrad",
    "precision_aware_optimizer": "precision-aware optimizer",
    "optimizer_offload_fraction": "optimizer offload",
    "activation_offload_layers": "offloaded layers",
    "fine_grained_offload_modules": "offload modules",
    "cuda_graph_impl": "CUDA graphs",
    "cuda_graph_scope": "graph scope",
}


def gib(size: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / GIB:.1f}"


def seconds(value: float) -> str:
    """A time with its unit: s from one second up, ms below."""
    if abs(value) < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.1f} s" if abs(value) >= 100 else f"{value:.2f} s"


def change(new: float, old: float) -> str:
    """A relative change in percent with its sign."""
    return f"{(new / old - 1) * 100:+.1f}%" if old else "n/a"


def compared(new: float, old: float) -> str:
    """A relative change of the step time of one job, and whether it is too small to tell."""
    return f"{change(new, old)}, a tie" if tied(new, old) else change(new, old)


def number(value: float) -> str:
    """A count in three digits, with an exponent where it is large."""
    if value < 1e6:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def grid(sizes: Iterable[int]) -> str:
    """Sizes of a rank grid, innermost first."""
    return "x".join(str(size) for size in sizes)


def word(value: Any) -> str:
    """A value of a decision as a person says it."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_of(plan: Plan, name: str) -> Any:
    """The value of a field of the plan, or of a decision behind it (``recompute_moe``, ``split``)."""
    return getattr(plan, name) if name in Plan.model_fields else plan.values().get(name)


def decision(name: str) -> str:
    """The name of a decision in words."""
    return DECISION_WORDS.get(name, name.replace("_", " "))


def terms_by_group(terms: Iterable[TermValue]) -> list[Group]:
    """Terms summed by the first part of their names, largest first, with the members of each group."""
    groups: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for term in terms:
        group, _, rest = term.name.partition(".")
        amount = term.seconds if term.seconds is not None else term.bytes
        groups[group][rest] += amount or 0.0
    found = [
        (group, sum(members.values()), sorted(members.items(), key=lambda m: (-m[1], m[0])))
        for group, members in groups.items()
    ]
    return sorted(found, key=lambda g: (-g[1], g[0]))


def recompute(plan: Plan) -> str:
    """The recomputation of a plan in words."""
    if plan.recompute_granularity == "selective":
        return f"selective: {word(plan.recompute_modules)}"
    if plan.recompute_granularity == "full":
        return f"full, {word(plan.recompute_method)}, {word(plan.recompute_num_layers)} layers a group"
    return "none"


def graphs(plan: Plan) -> str:
    """The CUDA graphs of a plan in words."""
    if plan.cuda_graph_impl == "none":
        return "none"
    return plan.cuda_graph_impl + (f": {word(plan.cuda_graph_scope)}" if plan.cuda_graph_scope else "")


def offload(plan: Plan, evaluation: Evaluation) -> str:
    """What a plan keeps in host memory, in words."""
    parts = []
    if plan.optimizer_offload_fraction:
        parts.append(f"{plan.optimizer_offload_fraction:.0%} of the optimizer state")
    if plan.activation_offload_layers:
        parts.append(f"activations of {plan.activation_offload_layers} layers")
    if plan.fine_grained_offload_modules:
        parts.append(f"activations of {word(plan.fine_grained_offload_modules)}")
    if not parts:
        return "none"
    return f"{', '.join(parts)} ({gib(evaluation.host_bytes_per_node)} GiB of host memory a node)"


def layout(plan: Plan) -> str:
    """How the layers lie on the pipeline, in words."""
    if plan.pipeline_layout:
        return plan.pipeline_layout
    ends = [
        f"{count} layers on the {end} stage"
        for end, count in (("first", plan.first_stage_layers), ("last", plan.last_stage_layers))
        if count
    ]
    counted = [
        name for name, on in (("embedding", plan.embedding_in_split), ("loss", plan.loss_in_split)) if on
    ]
    if counted:
        return f"even, {' and '.join(counted)} counted as {'layers' if len(counted) > 1 else 'a layer'}"
    return ", ".join([*ends, "the rest even"]) if ends else "even"
