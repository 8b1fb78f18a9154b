"""A plan as the target stack would run it: the fields that it changes by itself, applied and told. No solver in here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Normalisation, sentence
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.constraints.vocabulary import Plan
from mbsolve.models.partial import UnknownDimensionError

__all__ = ["Normalised", "normalise"]


class Normalised(BaseModel):
    """A field that the stack would change by itself.

    Parameters
    ----------
    field : a field of the plan, or of the settings of the job.
    was, now : its value as stated, and as the stack would have it.
    rule : id of the declaration.
    because, source : why, and where the stack does it.
    applied : whether the rest of the verdict is about the changed value; False where a law refuses the plan instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    was: Any
    now: Any
    rule: str
    because: str = ""
    source: str = ""
    applied: bool = True


def normalise(
    job: Job, plan: Plan, *, unknown: Collection[str] = ()
) -> tuple[Job, Plan, tuple[Normalised, ...]]:
    """The job and the plan as the job's target would run them, and what it would change.

    Parameters
    ----------
    unknown
        Decisions whose values in ``plan`` are only placeholders: what reads one is left alone.
    """
    found: list[Normalised] = []
    for change in NORMALISATIONS:
        if not change.holds_for(job.target) or set(change.scope) & set(unknown):
            continue
        told = _told(change, job, plan)
        if told is None:
            continue
        found.append(told)
        if told.applied:
            job, plan = _set(job, plan, told.field, told.now)
    return job, plan, tuple(found)


def _told(change: Normalisation, job: Job, plan: Plan) -> Normalised | None:
    """What a declaration changes; None where it changes nothing or needs something unknown."""
    # Fields too: a list of names as it stands may have names that are no switch.
    values = {**{name: getattr(plan, name) for name in Plan.model_fields}, **plan.values()}
    home = plan if change.field in Plan.model_fields else job.settings
    was = getattr(home, change.field)
    try:
        now = change.call(job.facts, values)
        if now == was:
            return None
        because = sentence(change.because, {**job.facts, **values})
    except UnknownDimensionError:
        return None
    return Normalised(
        field=change.field,
        was=was,
        now=now,
        rule=change.id,
        because=because,
        source=str(change.source),
        applied=not change.refused_by,
    )


def _set(job: Job, plan: Plan, field: str, value: Any) -> tuple[Job, Plan]:
    if field in Plan.model_fields:
        return job, plan.model_copy(update={field: value})
    return job.model_copy(update={"settings": job.settings.model_copy(update={field: value})}), plan
