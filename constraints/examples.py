"""Example plans: legal ones to start from, and for each law a change that breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

FILE = Path(__file__).with_name("data") / "breaks.yaml"


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return data


def bases() -> dict[str, dict[str, Any]]:
    """Name -> ``job`` and ``plan`` of a legal example."""
    found: dict[str, dict[str, Any]] = _data()["bases"]
    return found


def breaks() -> list[dict[str, Any]]:
    """One row or more for each law: ``id``, ``base``, changes of its ``job`` and ``plan``, and laws broken ``also``."""
    found: list[dict[str, Any]] = _data()["breaks"]
    return found


def overruns() -> list[dict[str, Any]]:
    """One row for each memory budget, as those of `breaks`: a legal plan that exceeds it."""
    found: list[dict[str, Any]] = _data()["overruns"]
    return found


def build_job(base: str, changes: Mapping[str, Any]) -> Job:
    """The job of an example with changes, also of its settings, model and machine (a name, or fields of the card)."""
    spec = bases()[base]["job"]
    fields = {**spec, **changes}
    machine = changes.get("machine", {})
    card = load_machine(machine if isinstance(machine, str) else spec["machine"])
    fields["machine"] = card if isinstance(machine, str) else card.model_copy(update=machine)
    fields["model"] = load_model(spec["model"]).model_copy(update=changes.get("model", {}))
    return Job(**fields)


def build_plan(base: str, changes: Mapping[str, Any]) -> Plan:
    """The plan of an example with changes, which need not make sense."""
    update = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    return Plan(**bases()[base]["plan"]).model_copy(update=update)
