"""What is said of a plan: findings of rules, and repairs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Finding", "Leaner", "Repair", "Violation"]


class Repair(BaseModel):
    """A change after which one rule would hold.

    Parameters
    ----------
    set : fields of the plan, the job or its settings, with their new values; None takes a field back.
    text : the change in words, as "ep=4" or "pp=1 without last_stage_layers".
    breaks : laws that held before and would not any more; empty for a repair that breaks nothing else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: dict[str, Any]
    text: str
    breaks: tuple[str, ...] = ()


class Finding(BaseModel):
    """What a rule says about a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    because: str
    source: str


class Violation(Finding):
    """A broken law."""

    repairs: tuple[Repair, ...] = ()


class Leaner(BaseModel):
    """Values that nobody stated and without which a plan would not fit.

    Parameters
    ----------
    text : the values in words, as "grad_dtype=bf16".
    device_bytes : peak of the fullest rank with the target's defaults.
    host_bytes : what a node pins with them.
    over : ids of the budgets that the defaults exceed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    device_bytes: float
    host_bytes: float
    over: tuple[str, ...]
