"""Whether a measured run was judged to fit its GPUs, and whether it did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.changes import applied
from mbsolve.constraints.error_bars import memory_bar
from mbsolve.constraints.evaluate import plan_moments, priced, stage_memory
from mbsolve.constraints.job import Job
from mbsolve.constraints.lighter import leaner
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.habits import Habits
from mbsolve.emit.measured import Measured
from mbsolve.judge.cases import Case
from mbsolve.judge.habits import as_run

__all__ = ["Fit", "Fits", "fit_of", "fits_of", "fits_text", "verdict"]

Verdict = Literal["oom", "within margin", "fits"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fit(_Data):
    """One run against the memory of its GPU.

    Parameters
    ----------
    ran : whether the run had enough memory.
    device_bytes : predicted at the peak of the fullest rank, as the driver counts it.
    budget_bytes : what the GPU has.
    verdict : ``within margin`` where the two are closer than the error bar.
    leaner : formats and recompute that the row leaves open, as taken for a run that would not fit otherwise.
    """

    ran: bool
    device_bytes: float
    budget_bytes: float
    verdict: Verdict
    leaner: dict[str, Any] = {}


class Fits(_Data):
    """Runs that are judged against the memory of their GPU.

    Parameters
    ----------
    oom, oom_within_margin, oom_wrong : runs that ended for lack of memory: judged so, within the error bar, and the ids
        of those judged to fit.
    ran, ran_within_margin, ran_wrong : runs that had enough: judged to fit, within the error bar, and the ids of those
        judged impossible.
    """

    oom: int = 0
    oom_within_margin: int = 0
    oom_wrong: tuple[str, ...] = ()
    ran: int = 0
    ran_within_margin: int = 0
    ran_wrong: tuple[str, ...] = ()


def verdict(device_bytes: float, budget_bytes: float, bar: float) -> Verdict:
    """Whether a prediction is above the budget, below, or as near as its error bar."""
    if device_bytes * (1 - bar) > budget_bytes:
        return "oom"
    return "fits" if device_bytes * (1 + bar) <= budget_bytes else "within margin"


def fit_of(row: Measured, case: Case) -> Fit | None:
    """Judge one run; one that ran takes the leanest of the formats that its row leaves open.

    None where a run ended for lack of memory with a batch that is not recorded, and would fit with the least one.
    """
    job, plan = case.job, case.plan
    budget = float(job.machine.hbm_bytes)
    # As far off as its classes are, and at least the margin.
    bar = max(job.margin, memory_bar(job, plan, budget).error_bar)
    ran = row.outcome == "ok"
    best, taken = device_bytes(job, plan, row.habits), dict[str, Any]()
    if ran and verdict(best, budget, bar) == "oom":
        for fields in leaner(job, plan, row.open_fields):
            size = device_bytes(*applied(job, plan, fields), row.habits)
            if size < best:
                best, taken = size, fields
    word = verdict(best, budget, bar)
    if not ran and row.least_batch and word == "fits":
        return None
    return Fit(
        ran=ran,
        device_bytes=best,
        budget_bytes=budget,
        verdict=word,
        leaner=taken,
    )


def device_bytes(job: Job, plan: Plan, habits: Habits) -> float:
    """Bytes of the fullest rank at its peak, as the driver counts them."""
    p = as_run(priced(job, plan, MEMORY_TERMS), habits)
    return max(stage_memory(p, moments).peak_device_bytes for moments in plan_moments(job, plan))


def fits_text(fits: Fits) -> list[str]:
    """Lines that say how runs were judged; none where none was."""
    lines = []
    if fits.oom or fits.oom_within_margin or fits.oom_wrong:
        lines.append(
            f"Ended for lack of memory: {fits.oom} judged so, {fits.oom_within_margin} within the error bar, "
            f"{len(fits.oom_wrong)} judged to fit."
        )
        lines += [f"  judged to fit: {name}" for name in fits.oom_wrong]
    if fits.ran or fits.ran_within_margin or fits.ran_wrong:
        lines.append(
            f"Ran: {fits.ran} judged to fit, {fits.ran_within_margin} within the error bar, "
            f"{len(fits.ran_wrong)} judged impossible, in the leanest formats that their rows leave open."
        )
        lines += [f"  judged impossible: {name}" for name in fits.ran_wrong]
    return lines


def fits_of(found: Iterable[tuple[str, Fit | None]]) -> Fits:
    """Count judged runs, given by id."""
    judged = [(name, fit) for name, fit in found if fit is not None]

    def some(ran: bool, word: Verdict) -> list[str]:
        return [name for name, fit in judged if fit.ran == ran and fit.verdict == word]

    return Fits(
        oom=len(some(False, "oom")),
        oom_within_margin=len(some(False, "within margin")),
        oom_wrong=tuple(some(False, "fits")),
        ran=len(some(True, "fits")),
        ran_within_margin=len(some(True, "within margin")),
        ran_wrong=tuple(some(True, "oom")),
    )
