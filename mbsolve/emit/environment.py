"""What a launch needs beside its arguments' own words: the process environment, and how context groups lie over hosts."""

from __future__ import annotations

from math import gcd

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan


def environment(job: Job, plan: Plan) -> dict[str, str]:
    """Variables to be exported before the launch, name -> value."""
    out: dict[str, str] = {}
    expandable = job.settings.expandable_segments
    if expandable:
        out["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if expandable and plan.cuda_graph_impl != "none":
        # Registered NCCL buffers and segments that may move exclude each other while a graph is captured.
        out["NCCL_GRAPH_REGISTER"] = "0"
    connections = _connections(job, plan)
    if connections:
        out["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    if plan.fine_grained_offload_modules:
        out["NVTE_CPU_OFFLOAD_V1"] = "1"
    if plan.dispatcher == "hybridep":
        out |= _hybridep(job, plan)
    return out


def _connections(job: Job, plan: Plan) -> str | None:
    """Hardware queues: one keeps communication ahead of compute before Blackwell, many let streams overlap."""
    if plan.ep_overlap:
        return "32"
    ordered = job.machine.compute_capability < (10, 0) and (plan.tp > 1 or plan.cp > 1)
    return "1" if ordered else None


def _hybridep(job: Job, plan: Plan) -> dict[str, str]:
    reach = job.machine.domain_network.gpus or job.gpus
    crosses_hosts = job.topology.domain_gpus > job.gpus_per_node
    return {
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": str(min(plan.ep * plan.etp, job.topology.domain_gpus)),
        "NVLINK_DOMAIN_SIZE": str(reach),
        "USE_MNNVL": str(int(crosses_hosts)),
    }


def context_groups(job: Job, plan: Plan) -> tuple[str, str]:
    """Sizes of the inner and the outer group of hierarchical context parallelism: the inner one stays on a host."""
    inner = gcd(plan.cp, max(1, job.gpus_per_node // plan.tp))
    return str(inner), str(plan.cp // inner)
