"""A measured run of the user's own, read from a job file, and put on the jobs that it speaks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from mbsolve.constraints.anchor import Anchor
from mbsolve.constraints.job import Job
from mbsolve.emit.formats import Given
from mbsolve.errors import InputError
from mbsolve.judge.answers import evaluate_case
from mbsolve.judge.cases import Case, read_cases
from mbsolve.models.card import Model

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
        if job.model == self.job.model:
            return None
        ours, theirs = job.model, self.job.model
        if ours.name != theirs.name:
            return f"the anchor {self.anchor.by} is a run of {theirs.name}, but this is {ours.name}"
        return f"the anchor {self.anchor.by} is a run of another {ours.name}: {_difference(theirs, ours)}"


def _difference(theirs: Model, ours: Model) -> str:
    """The first fields that two models of one name differ in."""
    pairs = [
        (name, getattr(theirs, name, None), getattr(ours, name, None)) for name in type(ours).model_fields
    ]
    differ = [f"{name} {a!r} there and {b!r} here" for name, a, b in pairs if a != b]
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
    return Run(case.job, measured, predicted, Anchor(factor=measured / predicted, by=str(path)))


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
