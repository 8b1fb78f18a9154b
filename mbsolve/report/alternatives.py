"""The same job in another precision, in one line."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.report import words
from mbsolve.solver.outcome import Outcome

PREFERRED = {"blackwell": ("mxfp8", "fp8_cs"), "hopper": ("fp8_cs",), "ampere": ()}


def other_precision(job: Job) -> str | None:
    """The precision that a user would weigh against the job's own: 8 bits for BF16, BF16 for anything else."""
    choices = PREFERRED[job.machine.generation] if job.precision == "bf16" else ("bf16",)
    return next((p for p in choices if p in job.machine.supported_precisions), None)


def line(precision: str, outcome: Outcome, other: Outcome) -> str:
    """What the other precision would give, against the best plan of the first outcome."""
    head = f"With --precision {precision}:"
    if other.best is None:
        if other.status == "UNKNOWN":
            return f"{head} no plan was found in time."
        causes = other.explanation.causes if other.explanation else ()
        return f"{head} no plan{': ' + causes[0].text.rstrip('.') if causes else ''}."
    new = other.best.evaluation
    used = f"{words.gib(new.worst_stage.peak_device_bytes)} GiB"
    if outcome.best is None:
        return f"{head} {words.seconds(new.step_seconds)} a step, {used}."
    moved = words.change(new.step_seconds, outcome.best.evaluation.step_seconds)
    return f"{head} {words.seconds(new.step_seconds)} a step ({moved}), {used}."
