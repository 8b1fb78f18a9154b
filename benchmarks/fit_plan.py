"""What the fit of the time model is told: which constants, from where to where, on which rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mbsolve.hardware.card import CALIBRATION

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Parameter:
    """One fitted number.

    Parameters
    ----------
    constant : its name in the cards.
    machines : the cards that have it in common.
    start : value before any row is seen; the fit is held to it by ``spread``, a standard deviation of its logarithm.
    low, high : bounds that physics sets.
    """

    constant: str
    machines: tuple[str, ...]
    start: float
    low: float
    high: float
    spread: float

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.constant} ({', '.join(self.machines[:3])}{', ...' if len(self.machines) > 3 else ''})"


@dataclass(frozen=True)
class Plan:
    """What `fit.yaml` says.

    Parameters
    ----------
    parameters : what is fitted.
    fitted, judged : tiers of the rows that are fitted, and of those that errors are shown of.
    faulty : beginnings of ids of rows that measured a fault of the software.
    host_bound : beginnings of ids of rows that say nothing of the device.
    noise, tail : spread of a good row's logarithmic error, and the error from which a row counts less.
    pair_weight : weight of a one-knob ratio, relative to a row.
    folds : into how many parts cells are dealt.
    """

    parameters: tuple[Parameter, ...]
    fitted: tuple[str, ...]
    judged: tuple[str, ...]
    faulty: tuple[str, ...]
    host_bound: tuple[str, ...]
    noise: float
    tail: float
    pair_weight: float
    folds: int


def read_plan(path: Path = DATA / "fit.yaml") -> Plan:
    """Read what is to be fitted."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    sets = raw.pop("machines")
    spread = raw.pop("spread")
    parameters = []
    for one in raw.pop("parameters"):
        names = [name for key in one.pop("of") for name in sets.get(key, [key])]
        parameters.append(Parameter(machines=tuple(names), **{"spread": spread, **one}))
    unknown = [p.constant for p in parameters if p.constant not in CALIBRATION]
    if unknown:
        raise ValueError(f"{path.name} fits {unknown[0]}, which is no constant of the time model.")
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return Plan(tuple(parameters), **rest)
