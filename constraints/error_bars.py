"""How far a predicted step time may be off, read from ``constraints/data/accuracy.yaml``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml

from mbsolve.models.card import Model


@cache
def _errors() -> dict[str, float]:
    text = (files("mbsolve.constraints") / "data" / "accuracy.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    return {name: float(one["mean"]) * float(raw["unseen_factor"]) for name, one in raw["step_time"].items()}


def error_bar(model: Model) -> float:
    """Relative error of a step time to expect: that of tuned published runs, and more for what was not fitted."""
    return _errors()["hybrid" if model.hybrid else "moe" if model.is_moe else "dense"]
