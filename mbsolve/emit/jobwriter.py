"""A job and a plan as a job file, which `mbsolve check`, `evaluate` and `diff` read back to the same."""

from __future__ import annotations

from typing import Any

import yaml

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import Machine, load_machine, machine_names
from mbsolve.models.card import Model, load_model, model_names

__all__ = ["job_file"]


def job_file(job: Job, plan: Plan) -> str:
    """The text of a job file, YAML.

    A shipped card goes in by name, any other with all of its fields.
    """
    out: dict[str, Any] = {
        "model": _model(job.model),
        "hardware": _machine(job.machine),
        "gpus": job.gpus,
        "gpus_per_node": job.gpus_per_node,
        "block_gpus": job.block_gpus,
        "seq_len": job.seq_len,
        "gbs": job.gbs,
        "precision": job.precision,
        "margin": job.margin,
        "target": job.target,
        "config": {**plan.model_dump(mode="json"), **job.settings.model_dump(mode="json")},
    }
    if out["block_gpus"] is None:
        del out["block_gpus"]
    return yaml.safe_dump(out, sort_keys=False, width=100)


def _model(model: Model) -> Any:
    if model.name in model_names() and load_model(model.name) == model:
        return model.name
    return model.model_dump(mode="json", exclude={"sources"}, exclude_none=True)


def _machine(machine: Machine) -> Any:
    if machine.name in machine_names() and load_machine(machine.name) == machine:
        return machine.name
    return machine.model_dump(mode="json", exclude={"sources"})
