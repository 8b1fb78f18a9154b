"""Rules of the global batch."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import megatron


@rule(
    "mbs-positive",
    because="the micro-batch has {mbs} sequences and the global batch {job.gbs}; both need at least 1",
    source=megatron("megatron/training/arguments.py:694"),
)
def batches_are_positive(mbs: int, job: Job) -> bool:
    """Micro-batch and global batch have at least one sequence."""
    return mbs >= 1 and job.gbs >= 1


@rule(
    "gbs-divisible",
    because="a global batch of {job.gbs} sequences does not split into micro-batches of {mbs} on DP = {dp} ranks: it is "
    "no multiple of {unit}",
    source=megatron("megatron/core/num_microbatches_calculator.py:382"),
    figures=lambda mbs, dp: {"unit": mbs * dp},
)
def batch_splits(mbs: int, dp: int, job: Job) -> bool:
    """The global batch is a multiple of the micro-batch times DP."""
    return mbs < 1 or job.gbs % (mbs * dp) == 0
