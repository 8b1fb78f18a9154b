"""The same job in another precision, in one line."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.report import words
from mbsolve.solver.outcome import Outcome

PREFERRED = {"blackwell": ("mxfp8", "fp8_cs"), "hopper": ("fp8_cs",), "ampere": ()}


# What the other precision keeps of the best plan, so that the comparison costs little.
GRID: Final = ("tp", "cp", "pp", "ep", "etp", "mbs")


def other_precision(job: Job) -> str | None:
    """The precision that a user would weigh against the job's own: 8 bits for BF16, BF16 for anything else."""
    choices = PREFERRED[job.machine.generation] if job.precision == "bf16" else ("bf16",)
    return next((p for p in choices if p in job.machine.supported_precisions), None)


def line(precision: str, outcome: Outcome, other: Outcome) -> str:
    """What the other precision would give on the grid of the first outcome's best plan, against that plan."""
    head = f"With --precision {precision}{' on the same grid' if outcome.best else ''}:"
    if other.best is None:
        return f"{head} {'no plan was found in time' if other.status == 'UNKNOWN' else 'no plan'}."
    new = other.best.evaluation
    used = f"{words.gib(new.worst_stage.peak_device_bytes)} GiB"
    if outcome.best is None:
        return f"{head} {words.seconds(new.step_seconds)} a step, {used}."
    moved = words.change(new.step_seconds, outcome.best.evaluation.step_seconds)
    return f"{head} {words.seconds(new.step_seconds)} a step ({moved}), {used}."
