"""How far a prediction may be off, read from ``constraints/data/accuracy.yaml``: step times and memory."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any, NamedTuple

import yaml

from mbsolve.constraints.evaluation import MemoryBar, TimeBar
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit
from mbsolve.constraints.memory_classes import MemoryClass, classes_of
from mbsolve.constraints.vocabulary import Plan

__all__ = [
    "Bar",
    "error_bar",
    "memory_bar",
    "never_timed",
    "pair_error",
    "recorded_bar",
    "tied",
    "time_bar",
    "verdict_words",
]

GIB = 2**30


@cache
def _accuracy() -> dict[str, Any]:
    text = (files("mbsolve.constraints") / "data" / "accuracy.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def error_bar(job: Job) -> float:
    """Relative error of a step time to expect: that of tuned published runs, and more for what was not fitted."""
    return time_bar(job).error_bar


def time_bar(job: Job, knobs_known: bool = True) -> TimeBar:
    """The error of a step time of such a job, and what it rests on.

    Parameters
    ----------
    knobs_known : whether it is known how the job ran; published runs that do not tell their dispatcher or graphs are far
        more often far off.
    """
    model, kept = job.model, _accuracy()
    name = "hybrid" if model.hybrid else "moe" if model.is_moe else "dense"
    found = kept["step_time"][name if knobs_known else "unrecorded"]
    factor = float(kept["unseen_factor"]) if knobs_known else 1.0
    mean, rows = float(found["mean"]), int(found["rows"])
    rest = (
        f"{rows} tuned runs of its class, {name}, times {factor:.3g} for a job that was not among them"
        if knobs_known
        else f"{rows} tuned runs that do not record how they ran"
    )
    words = f"step time +- {mean * factor:.0%}: a mean error of {mean:.1%} over {rest}"
    never = never_timed(job)
    words = f"{words}; {never}" if never else words
    return TimeBar(name=name, error_bar=mean * factor, mean=mean, rows=rows, words=words)


def never_timed(job: Job) -> str | None:
    """What is to be said of a machine of which no step time was measured; None of one that was."""
    machine = job.machine
    if machine.name in _accuracy()["measured_machines"]:
        return None
    return (
        f"no whole step on {machine.title} was timed: its efficiencies are those of its card, of the family "
        f"{machine.calibration_family}"
    )


def pair_error() -> float:
    """Relative error of the predicted ratio of two step times of one job: what is nearer is a tie.

    Much of what a prediction of one plan gets wrong it gets wrong for every plan of the job, so this is far below
    `error_bar`.
    """
    return float(_accuracy()["pair_error"])


def tied(seconds: float, other: float) -> bool:
    """Whether two predicted step times of one job are too near to say which is less."""
    return max(seconds, other) <= min(seconds, other) * (1 + pair_error())


class Bar(NamedTuple):
    """The error of a class.

    Parameters
    ----------
    of : the class whose rows it rests on: that which was asked for, or a wider one.
    error, short : as in `MemoryBar`.
    rows : how many rows there are.
    """

    of: str
    error: float
    short: float
    rows: int


def recorded_bar(one: MemoryClass) -> Bar:
    """Return the error of a class, or where none of its rows was measured that of the nearest wider one."""
    memory = _accuracy()["memory"]
    for name, among in ((one.name, "classes"), (one.wider, "wider"), ("all", "wider")):
        found = memory[among][name]
        if found["rows"]:
            return Bar(name, float(found["error"]), float(found["short"]), int(found["rows"]))
    raise LookupError("no measured row is recorded in accuracy.yaml")


def memory_bar(job: Job, plan: Plan, peak_bytes: float) -> MemoryBar:
    """Return how far the peak of a plan may be off, and whether its margin covers that.

    Parameters
    ----------
    peak_bytes : predicted peak of the fullest pipeline rank on the device.
    """
    found = [(one, recorded_bar(one)) for one in classes_of(job, plan)]
    # Of plain classes the first is told: it says the most of the plan.
    one, bar = max(found, key=lambda pair: pair[1].error)
    unknown = [other.name for other, its in found if its.of != other.name]
    short = max(its.short for _, its in found)
    return MemoryBar(
        name=one.name,
        error_bar=bar.error,
        short=short,
        rows=bar.rows,
        validated=not unknown,
        words=verdict_words(job, peak_bytes, bar.error, short, _said(one, bar, unknown)),
    )


def _said(one: MemoryClass, bar: Bar, unknown: list[str]) -> str:
    """The error of a class in words, and of what was never measured."""
    rows = f"{bar.rows} row{'s' if bar.rows > 1 else ''}"
    if bar.of == one.name:
        text = f"memory error {bar.error:.1%} over {rows} of its class, {one.name}"
        return f"{text}; never validated: {', '.join(unknown)}" if unknown else text
    others = [name for name in unknown if name != one.name]
    never = f"never validated: {', '.join([one.name, *others])}"
    return f"{never}; a memory error of {bar.error:.1%} is assumed, as over {rows} of {_group(bar.of)}"


def _group(name: str) -> str:
    return "all classes" if name == "all" else f"any class of {name}"


def verdict_words(job: Job, peak_bytes: float, error_bar: float, short: float, error: str) -> str:
    """Return whether a peak fits a device, in words.

    Parameters
    ----------
    error_bar, short : as in `MemoryBar`.
    error : the error bar in words, and what it rests on.
    """
    hbm = job.machine.hbm_bytes
    margin = f"{100 * job.margin:.3g}%"
    left = (hbm - peak_bytes) / hbm
    if peak_bytes > hbm:
        return f"does not fit: {(peak_bytes - hbm) / GIB:.1f} GiB more than the device has ({error})"
    if peak_bytes > device_limit(job):
        return f"within the margin: the peak fits with {left:.1%} to spare, where {margin} is to be kept free ({error})"
    # The margin is a share of the device, the error one of the peak, which is below what the margin leaves.
    needed = short / (1 + short)
    if needed <= job.margin:
        # Some classes are known for predictions that are too high, which endanger no run.
        covers = f", which covers the {short:.1%} that its class takes beyond the prediction"
        return f"fits with {margin} margin{covers if error_bar > job.margin else ''} ({error})"
    if peak_bytes * (1 + short) <= hbm:
        return f"fits with {left:.0%} to spare, where a margin of {margin} alone would not cover its class ({error})"
    advice = ceil(100 * needed) / 100
    return (
        f"fits, but its class takes up to {short:.1%} more than predicted and the margin is {margin}: "
        f"use --margin {advice:.2f} ({error})"
    )
