"""The passes of one pipeline rank whose collectives return at once, as a probe runs them."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.evaluate import priced, rank_counts, stage_pass
from mbsolve.constraints.job import Job
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.constraints.vocabulary import Plan

__all__ = ["passes_seconds", "without_links"]

ENDLESS: Final = 1e30
"""Bytes a second of a link that takes no time."""


def without_links(job: Job) -> Job:
    """The same job where moving bytes between GPUs takes no time."""
    networks = tuple(n.model_copy(update={"bytes_per_second": ENDLESS}) for n in job.machine.networks)
    return job.model_copy(update={"machine": job.machine.model_copy(update={"networks": networks})})


def passes_seconds(job: Job, plan: Plan, stage: int) -> float:
    """Forward and backward of all micro-batches on one pipeline rank, without communication."""
    p = priced(without_links(job), plan, TIME_TERMS)
    work = stage_pass(p, rank_counts(job, plan)[stage])
    return float(p.values["microbatches"] * (work.forward + work.backward))
