"""Rules of overlapped expert communication."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, megatron
from mbsolve.models.card import Model


@rule(
    "ep-overlap-ep",
    because="EP overlap has nothing to overlap at EP = {ep}",
    source=megatron(f"{CONFIG}:3015"),
)
def overlap_needs_expert_ranks(ep_overlap: bool, ep: int, model: Model) -> bool:
    """EP overlap needs more than one expert rank and more than one expert."""
    return not ep_overlap or (ep > 1 and (model.num_experts or 0) > 1)


@rule(
    "ep-overlap-dispatcher",
    because="EP overlap needs an all-to-all, DeepEP or HybridEP dispatcher, not {dispatcher}",
    source=megatron(f"{CONFIG}:3019"),
)
def overlap_needs_alltoall(ep_overlap: bool, dispatcher: str) -> bool:
    """EP overlap needs another dispatcher than allgather."""
    return not ep_overlap or dispatcher != "allgather"


@rule(
    "ep-overlap-vpp",
    because="EP overlap at PP = {pp} needs virtual stages, but VPP = {vpp}",
    source=megatron(f"{CONFIG}:3009"),
)
def overlap_needs_interleaving(ep_overlap: bool, pp: int, vpp: int) -> bool:
    """EP overlap with pipeline parallelism needs virtual stages."""
    return not ep_overlap or pp == 1 or vpp > 1


@rule(
    "ep-overlap-no-full-recompute",
    because="EP overlap excludes full recompute and recompute of moe (granularity {recompute_granularity}, method "
    "{recompute_method}, layers {recompute_num_layers}, moe {recompute_moe})",
    source=megatron(f"{CONFIG}:3023"),
)
def overlap_excludes_full_recompute(
    ep_overlap: bool,
    recompute_granularity: str,
    recompute_method: str,
    recompute_num_layers: int,
    recompute_moe: bool,
) -> bool:
    """EP overlap excludes full recompute and recompute of the MoE."""
    if not ep_overlap:
        return True
    whole = recompute_granularity == "full" or recompute_method != "none" or recompute_num_layers != 0
    return not whole and not recompute_moe


@rule(
    "ep-overlap-no-shared-overlap",
    because="EP overlap excludes shared_expert_overlap, which is on",
    source=megatron(f"{CONFIG}:3041"),
)
def overlap_excludes_shared_overlap(ep_overlap: bool, job: Job) -> bool:
    """EP overlap excludes the overlap of shared experts."""
    return not ep_overlap or not job.settings.shared_expert_overlap


@rule(
    "ep-overlap-mtp",
    because="EP overlap allows one MTP layer, but {model.title} has {model.mtp_num_layers}",
    source=megatron(f"{CONFIG}:3046"),
)
def overlap_allows_one_mtp_layer(ep_overlap: bool, model: Model) -> bool:
    """EP overlap allows at most one MTP layer."""
    return not ep_overlap or model.mtp_num_layers <= 1


@rule(
    "delay-wgrad-needs-overlap",
    because="delayed weight gradients need EP overlap, which is off",
    source=megatron(f"{CONFIG}:3077"),
)
def delay_needs_overlap(delay_wgrad: bool, ep_overlap: bool) -> bool:
    """Delayed weight gradients need EP overlap."""
    return not delay_wgrad or ep_overlap
