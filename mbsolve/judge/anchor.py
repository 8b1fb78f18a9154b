"""A measured run of the user's own, read from a job file, and put on the jobs that it speaks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from mbsolve.constraints.anchor import Anchor
from mbsolve.constraints.job import Job
from mbsolve.emit.formats import Given
from mbsolve.errors import InputError
from mbsolve.judge.answers import evaluate_case
from mbsolve.judge.cases import Case, read_cases
from mbsolve.models.card import Model

# Fields of a model that say where it is from, not what it is.
ABOUT: Final = ("sources", "source", "title", "aliases", "published_params")
# The runs on record that tell the least of how they ran are within 4 times of what is predicted.
FARTHEST: Final = 10.0

__all__ = ["Run", "anchor_case", "anchor_job", "read_run", "scaled_by"]


@dataclass(frozen=True)
class Run:
    """A measured run and what it says of predictions for its model on its machine.

    Parameters
    ----------
    job : what was run, itself without an anchor.
    measured, predicted : seconds of its step.
    anchor : their ratio, with the file's name.
    """

    job: Job
    measured: float
    predicted: float
    anchor: Anchor

    def other_than(self, job: Job) -> str | None:
        """What of a job is not the run's, in words; None where the run speaks for it."""
        if job.machine.name != self.job.machine.name:
            return (
                f"the anchor {self.anchor.by} ran on {self.job.machine.name}, but this is {job.machine.name}"
            )
        if not _differing(self.job.model, job.model):
            return None
        ours, theirs = job.model, self.job.model
        if ours.name != theirs.name:
            return f"the anchor {self.anchor.by} is a run of {theirs.name}, but this is {ours.name}"
        return f"the anchor {self.anchor.by} is a run of another {ours.name}: {_difference(theirs, ours)}"


def _differing(theirs: Model, ours: Model) -> list[str]:
    """Fields in which two models differ; where a card is from is none of them."""
    names = [name for name in type(ours).model_fields if name not in ABOUT]
    return [name for name in names if getattr(theirs, name, None) != getattr(ours, name, None)]


def _difference(theirs: Model, ours: Model) -> str:
    """The first fields that two models of one name differ in."""
    differ = [
        f"{name} {getattr(theirs, name, None)!r} there and {getattr(ours, name)!r} here"
        for name in _differing(theirs, ours)
    ]
    return ", ".join(differ[:3]) or "its dimensions are not all known"


def read_run(path: str | Path, given: Given | None = None) -> Run:
    """A job file with one job and its measured ``step_seconds``.

    Parameters
    ----------
    given
        What fills in where the file says nothing.

    Raises
    ------
    InputError
        if the file holds no such run, or its step cannot be predicted.
    """
    cases = read_cases(path, given)
    if len(cases) != 1:
        raise InputError(f"The anchor {path} holds {len(cases)} jobs, but it must be one measured run.")
    case = cases[0]
    measured = _seconds(path, case.step_seconds)
    found = evaluate_case(case)
    if found.evaluation is None:
        raise InputError(f"The anchor {path} cannot be evaluated: {found.reason}.")
    predicted = found.evaluation.step_seconds
    factor = measured / predicted
    if not 1 / FARTHEST <= factor <= FARTHEST:
        raise InputError(
            f"The anchor {path}: step_seconds is {measured:g}, {factor:.3g} times the predicted {predicted:.4g} seconds, but "
            f"a run of this job is within {FARTHEST:g} times of it."
        )
    doubts = tuple(dict.fromkeys(v.rule for v in found.violations))
    return Run(case.job, measured, predicted, Anchor(factor=factor, by=str(path), doubts=doubts))


def _seconds(path: str | Path, value: Any) -> float:
    if value is None:
        raise InputError(f"The anchor {path} lacks the field 'step_seconds', the measured time of its step.")
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    if not number:
        raise InputError(f"The anchor {path}: step_seconds is {value!r}, but it must be a number above 0.")
    return float(value)


def anchor_job(job: Job, run: Run) -> Job:
    """The job with its times scaled by a run.

    Raises
    ------
    InputError
        if the run is of another model or machine.
    """
    other = run.other_than(job)
    if other is not None:
        raise InputError(f"{other[0].upper()}{other[1:]}.")
    return job.model_copy(update={"anchor": run.anchor})


def anchor_case(case: Case, run: Run) -> Case:
    """The configuration with its times scaled by a run.

    Raises
    ------
    InputError
        if the run is of another model or machine.
    """
    other = run.other_than(case.job)
    if other is not None:
        raise InputError(f"Job {case.name}: {other}.")
    return scaled_by(case, run)


def scaled_by(case: Case, run: Run | None) -> Case:
    """The configuration with its times scaled by a run where that speaks for it; else as it is."""
    if run is None or run.other_than(case.job) is not None:
        return case
    return replace(case, job=case.job.model_copy(update={"anchor": run.anchor}))
