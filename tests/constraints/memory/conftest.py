"""The law of the memory model, written plainly: bytes at a moment are the sum of count x term."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import all_moments
from mbsolve.constraints.placement import Replay
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("probes.json").read_text(encoding="utf-8"))


class Held(NamedTuple):
    """Bytes of one pipeline rank, and the terms of its peak."""

    between: float
    peak: float
    where: str
    parts: dict[str, float]


def probe_case(record: dict[str, Any]) -> tuple[Job, Plan]:
    """The job and the plan of a probe."""
    plan = Plan(**record["plan"])
    dp = record["gpus"] // (plan.tp * plan.cp * plan.pp)
    job = Job.model_validate(
        {
            "model": load_model(record["model"]).model_copy(update=record["overrides"]),
            "machine": load_machine("h200"),
            "gpus": record["gpus"],
            "seq_len": record["seq_len"],
            "gbs": record["microbatches"] * dp * plan.mbs,
            "precision": record["precision"],
            # Faked peers route alike: an expert's rows are a multiple of their number, so nothing was padded.
            "settings": {"router_padding": record["precision"] != "bf16" and plan.ep % 16 == 0},
        }
    )
    return job, plan


def held_by(job: Job, plan: Plan, rank: int, row: str = "device_bytes") -> Held:
    """What one rank holds between steps and at its peak."""
    flat = plan.values()
    flat |= derive(job, flat)
    full = plan.recompute_granularity == "full"
    replay = Replay(
        (plan.recompute_method or "none") if full else "none",
        (plan.recompute_num_layers or 1) if full else 0,
        plan.activation_offload_layers,
    )
    moments = all_moments(
        job.model, plan.pp, plan.vpp, flat["split"], replay, flat["microbatches"], plan.ep_overlap
    )[rank]
    each = [(t, float(t.call(job.facts, flat))) for t in MEMORY_TERMS if t.row == row]
    between, best = 0.0, Held(0.0, -1.0, "", {})
    for label, counts in zip(moments.labels, moments.counts, strict=True):
        parts = {t.name: value * int(counts[COLUMN[t.per]]) for t, value in each}
        total = sum(parts.values())
        if label == "between steps":
            between = total
        if total > best.peak:
            best = Held(0.0, total, label, parts)
    return best._replace(between=between)


@pytest.fixture(scope="session")
def probes() -> list[dict[str, Any]]:
    """The recorded probes."""
    records: list[dict[str, Any]] = DATA["probes"]
    return records


@pytest.fixture(scope="session")
def case() -> Callable[[dict[str, Any]], tuple[Job, Plan]]:
    """A function: the job and the plan of a probe."""
    return probe_case


@pytest.fixture(scope="session")
def held() -> Callable[..., Held]:
    """A function: what one rank of a plan holds."""
    return held_by
