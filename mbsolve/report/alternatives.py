"""The same job in another precision, in one line."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.check import violations
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.report import words
from mbsolve.solver.outcome import Outcome, Ranked

PREFERRED = {"blackwell": ("mxfp8", "fp8_cs"), "hopper": ("fp8_cs",), "ampere": ()}


# What the other precision keeps of the best plan, so that the comparison costs little.
GRID: Final = ("tp", "cp", "pp", "ep", "etp", "mbs")


def other_precision(job: Job) -> str | None:
    """The precision that a user would weigh against the job's own: 8 bits for BF16, BF16 for anything else."""
    choices = PREFERRED[job.machine.generation] if job.precision == "bf16" else ("bf16",)
    return next((p for p in choices if p in job.machine.supported_precisions), None)


def same_plan(job: Job, best: Ranked) -> str | None:
    """What the best plan of another precision gives in this job's; None where it is not legal or does not fit."""
    if violations(job, best.plan):
        return None
    new = evaluate(job, best.plan)
    if not all(fits(job, new).values()):
        return None
    return f"With --precision {job.precision} plan 1 as it is: {_given(new, best.evaluation)}."


def same_grid(precision: str, best: Ranked, other: Outcome) -> str:
    """What another precision gives on the grid of the best plan, against that plan."""
    head = f"With --precision {precision} on the same grid:"
    if other.best is None:
        return f"{head} {'no plan was found in time' if other.status == 'UNKNOWN' else 'no plan'}."
    return f"{head} {_given(other.best.evaluation, best.evaluation)}."


def _given(new: Evaluation, old: Evaluation) -> str:
    moved = words.compared(new.step_seconds, old.step_seconds)
    used = words.gib(new.worst_stage.peak_device_bytes)
    return f"{words.seconds(new.step_seconds)} a step ({moved}), {used} GiB"
