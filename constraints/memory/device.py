"""What the driver counts beside the allocator: context, communicators and the allocator's slack."""

from __future__ import annotations

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.rule import Term, term


@term("context.cuda", row="context_bytes", per="one", source=source_of("cuda_context"))
def cuda_context() -> Value:
    """CUDA context and library handles."""
    return float(constant("cuda_context"))


@term("context.communicators", row="context_bytes", per="one", source=source_of("communicator"))
def communicators(tp: Value, cp: Value, dp: Value, pp: Value, ep: Value, edp: Value) -> Value:
    """Buffers of the communicators in use: the world, and each parallel dimension above 1."""
    size = constant("communicator")
    total: Value = size["collective"]
    for degree in (tp, dp, edp):
        total = total + size["collective"] * (np.asarray(degree) > 1)
    for degree in (cp, pp, ep):
        total = total + size["exchange"] * (np.asarray(degree) > 1)
    return total


def reserved_permille(job: Job) -> int:
    """Bytes that the allocator reserves at the peak, in thousandths of those in use.

    Tokens routed to experts make tensors of ever new sizes, which leave more gaps.
    Source: ``reserved_permille`` in ``constraints/data/memory.yaml``.
    """
    segments = "expandable" if job.settings.expandable_segments else "fixed"
    return int(constant("reserved_permille")[segments]["routed" if job.model.is_moe else "uniform"])


def reserved_factor(job: Job) -> float:
    """`reserved_permille` as a ratio."""
    return reserved_permille(job) / 1000


def device_limit(job: Job) -> float:
    """Bytes that a plan may take of one device: what the driver gives, less the margin."""
    return job.machine.hbm_bytes * (1 - job.margin)


def host_limit(job: Job) -> float:
    """Bytes that the plan may pin on one host; ``host_share_permille`` of its memory."""
    return float(job.machine.host_ram_bytes_per_node * constant("host_share_permille") / 1000)


def host_limit_per_rank(job: Job) -> float:
    """Bytes that one rank may pin, the ranks of a host all alike."""
    return host_limit(job) / min(job.gpus_per_node, job.gpus)


DEVICE_TERMS: tuple[Term, ...] = (cuda_context, communicators)
