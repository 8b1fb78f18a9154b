"""Rules of the token dispatchers."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Source, rule
from mbsolve.constraints.rules.upstream import CONFIG, bridge, megatron
from mbsolve.constraints.rules.useful import has_shared_experts
from mbsolve.constraints.vocabulary import DISPATCHERS
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

GATES = "src/megatron/bridge/training/flex_dispatcher_backend.py"
DEEPEP_GROUPS: Final = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Group sizes with compiled kernels: inside a node, then whole nodes of 8; 24, 48 and 96 since 2026."""


@rule(
    "dispatcher-values",
    because="dispatcher {dispatcher} is none of: allgather, alltoall, deepep, hybridep",
    source=megatron("megatron/core/transformer/moe/moe_layer.py:330"),
)
def dispatcher_is_known(dispatcher: str) -> bool:
    """The dispatcher is one of the four."""
    return dispatcher in DISPATCHERS


@rule(
    "flex-needs-group",
    because="{dispatcher} needs more than one expert rank, but ETP x EP = {etp} x {ep}",
    source=megatron("megatron/core/transformer/moe/token_dispatcher.py:1836"),
)
def deepep_has_a_group(dispatcher: str, etp: int, ep: int, model: Model) -> bool:
    """DeepEP needs ETP x EP above 1."""
    return dispatcher != "deepep" or not model.is_moe or etp * ep > 1


@rule(
    "deepep-gpu-gate",
    because="DeepEP runs on compute capability 8.x and 9.x, B200 and B300, not on {machine.device_name}; use "
    "hybridep or alltoall",
    source=bridge(f"{GATES}:101"),
)
def deepep_knows_the_gpu(dispatcher: str, machine: Machine, model: Model) -> bool:
    """DeepEP runs on Ampere, Hopper, B200 and B300."""
    known = machine.compute_capability[0] in (8, 9) or machine.device_name.startswith(
        ("NVIDIA B200", "NVIDIA B300")
    )
    return dispatcher != "deepep" or not model.is_moe or known


@rule(
    "hybridep-gpu-gate",
    because="HybridEP runs on compute capability 8.x to 10.x, not on {machine.device_name}",
    source=bridge(f"{GATES}:108"),
)
def hybridep_knows_the_gpu(dispatcher: str, machine: Machine, model: Model) -> bool:
    """HybridEP runs on compute capability 8, 9 and 10."""
    known = machine.compute_capability[0] in (8, 9, 10)
    return dispatcher != "hybridep" or not model.is_moe or known


@rule(
    "deepep-ep-size",
    because="DeepEP has no kernels for a group of ETP x EP = {etp} x {ep} ranks, only for 2, 4, 8, 16, 24, 32, 48, "
    "64, 96, 128, 144 and 160; use alltoall or hybridep",
    source=Source("deepseek-ai/DeepEP", "csrc/kernels/launch.cuh, issues 90 and 464"),
)
def deepep_has_kernels(dispatcher: str, etp: int, ep: int, model: Model) -> bool:
    """DeepEP needs a group size that its kernels are compiled for."""
    return dispatcher != "deepep" or not model.is_moe or etp * ep == 1 or etp * ep in DEEPEP_GROUPS


@rule(
    "hybridep-nvlink-domain",
    because="HybridEP keeps an expert group inside one NVLink domain of {machine.domain_network.gpus} GPUs, but "
    "EP = {ep}",
    source=bridge("scripts/performance/utils/overrides.py:274"),
)
def hybridep_stays_in_the_domain(dispatcher: str, ep: int, machine: Machine, model: Model) -> bool:
    """On machines with an NVLink domain wider than a node, a HybridEP group fits into the domain."""
    domain = machine.domain_network.gpus or ep
    if dispatcher != "hybridep" or not model.is_moe or domain <= machine.gpus_per_node:
        return True
    return ep <= domain


@rule(
    "allgather-no-quant-padding",
    because="router_padding is on, which dispatcher {dispatcher} cannot do",
    source=megatron(f"{CONFIG}:2655"),
)
def padded_routing_needs_alltoall(dispatcher: str, job: Job, model: Model) -> bool:
    """A padded routing map needs another dispatcher than allgather."""
    return not (job.settings.router_padding and model.is_moe) or dispatcher != "allgather"


@rule(
    "quant-padding-needs-fp8",
    because="router_padding pads for quantised products, but the precision is {job.precision}",
    source=megatron(f"{CONFIG}:2652"),
)
def padded_routing_is_for_quantised_products(job: Job, model: Model) -> bool:
    """A padded routing map needs an 8-bit or 4-bit precision."""
    return not (job.settings.router_padding and model.is_moe) or job.quantised


@rule(
    "shared-overlap-dispatcher",
    because="shared_expert_overlap is on, which dispatcher {dispatcher} cannot do",
    source=megatron(f"{CONFIG}:1825"),
)
def shared_overlap_needs_alltoall(dispatcher: str, job: Job, model: Model) -> bool:
    """Overlap of shared experts needs another dispatcher than allgather."""
    overlapped = job.settings.shared_expert_overlap and has_shared_experts(model)
    return not overlapped or dispatcher != "allgather"


@rule(
    "shared-overlap-latent",
    because="{model.title} has experts in a latent of {model.moe_latent_size}, which excludes shared_expert_overlap",
    source=megatron("megatron/core/transformer/moe/moe_layer.py:480"),
)
def latent_excludes_shared_overlap(job: Job, model: Model) -> bool:
    """Experts in a latent exclude the overlap of shared experts with their dispatch."""
    return model.moe_latent_size is None or not job.settings.shared_expert_overlap


@rule(
    "rank-capacity-backend",
    because="expert_rank_capacity {job.settings.expert_rank_capacity} needs dispatcher hybridep with op_fuser, but the "
    "dispatcher is {dispatcher} and op_fuser {job.settings.op_fuser}",
    source=megatron(f"{CONFIG}:1871"),
)
def rank_capacity_needs_hybridep(dispatcher: str, job: Job, model: Model) -> bool:
    """A bound on the tokens of an expert rank needs HybridEP with fused operators."""
    if job.settings.expert_rank_capacity is None or not model.is_moe:
        return True
    return dispatcher == "hybridep" and job.settings.op_fuser
