"""The law of the memory model, written plainly: bytes at a moment are the sum of count x term."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.moments import COLUMN, Moments, all_moments
from mbsolve.constraints.placement import Replay
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

GIB = 2**30
PROBES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("probes.json").read_text())["probes"]


class Held(NamedTuple):
    """Bytes of one pipeline rank."""

    between: float
    peak: float
    where: str
    parts: dict[str, float]


def probe(record: dict[str, Any], **settings: Any) -> tuple[Job, Plan]:
    """The job and the plan of a probe."""
    model = load_model(record["model"]).model_copy(update=record["overrides"])
    plan = Plan(**record["plan"])
    dp = record["gpus"] // (plan.tp * plan.cp * plan.pp)
    job = Job.model_validate(
        dict(
            model=model,
            machine=load_machine("h200"),
            gpus=record["gpus"],
            seq_len=record["seq_len"],
            gbs=record["microbatches"] * dp * plan.mbs,
            precision=record["precision"],
            settings=settings,
        )
    )
    return job, plan


def moments_of(job: Job, plan: Plan) -> tuple[Moments, ...]:
    """The moments of every rank of a plan."""
    flat = plan.values()
    full = plan.recompute_granularity == "full"
    replay = Replay(
        plan.recompute_method or "none" if full else "none",
        plan.recompute_num_layers or 1 if full else 0,
        plan.activation_offload_layers,
    )
    few = derive(job, flat)["microbatches"]
    return all_moments(job.model, plan.pp, plan.vpp, flat["split"], replay, few, plan.ep_overlap)


def held(job: Job, plan: Plan, rank: int, row: str = "device_bytes") -> Held:
    """What one rank holds between steps and at its peak."""
    flat = plan.values()
    flat |= derive(job, flat)
    terms = [t for t in MEMORY_TERMS if t.row == row]
    each = [(t, float(t.call(job.facts, flat))) for t in terms]
    moments = moments_of(job, plan)[rank]
    between, best = 0.0, Held(0.0, -1.0, "", {})
    for label, counts in zip(moments.labels, moments.counts, strict=True):
        parts = {t.name: value * counts[COLUMN[t.per]] for t, value in each}
        total = sum(parts.values())
        if label == "between steps":
            between = total
        if total > best.peak:
            best = Held(0.0, total, label, parts)
    return best._replace(between=between)
