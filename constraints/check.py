"""Whether a plan obeys the rules: every law that it breaks, why, and what would mend it. No solver in here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mbsolve.constraints.budgets import BUDGETS
from mbsolve.constraints.changes import applied, said
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.findings import Finding, Leaner, Repair, Violation
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import SPELLINGS, broken, broken_laws, misspelt
from mbsolve.constraints.lighter import leaner, lighter
from mbsolve.constraints.mending import mends, ways, whole
from mbsolve.constraints.normalise import Normalised, normalise
from mbsolve.constraints.vocabulary import Plan
from mbsolve.models.partial import UnknownDimensionError

__all__ = [
    "SPELLINGS",
    "Finding",
    "Leaner",
    "Normalised",
    "Repair",
    "Verdict",
    "Violation",
    "broken_laws",
    "check",
    "judged",
    "violations",
    "warnings",
]


class Verdict(BaseModel):
    """The answer to ``check``.

    Parameters
    ----------
    id : the name of the configuration in its file, if it came from one.
    legal : whether no law is broken.
    fits : whether the memory suffices; None when it was not computed.
    verdict : in a word; ``undecided`` when a rule needs a size that is unknown.
    undecided : ids of the laws that need something unknown.
    normalised : fields that the stack would change by itself; the verdict is about the plan with these changes.
    completed : fields that were absent, with the values that defaults gave them.
    told : what was read loosely or ignored, in words.
    repair : where several laws are broken, a change after which none is; None where none was found.
    evaluation : what the plan costs, when it is legal.
    leaner : what the verdict rests on where the plan fits with leaner values than the defaults only; in JSON it is a
        warning, and the values are ``completed``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    id: str | None = None
    legal: bool
    fits: bool | None = None
    verdict: Literal["feasible", "infeasible", "oom", "undecided"]
    violations: tuple[Violation, ...] = ()
    undecided: tuple[str, ...] = ()
    normalised: tuple[Normalised, ...] = ()
    warnings: tuple[Finding, ...] = ()
    completed: dict[str, Any] = Field(default_factory=dict)
    told: tuple[str, ...] = ()
    repair: Repair | None = None
    evaluation: Evaluation | None = None
    leaner: Leaner | None = Field(default=None, exclude=True)


def check(
    job: Job,
    plan: Plan,
    *,
    unknown: Collection[str] = (),
    completed: Mapping[str, Any] | None = None,
    memory: bool = True,
    open_fields: Collection[str] = (),
) -> Verdict:
    """Judge a plan as the target would run it: by every rule, then, when it is legal, by the memory it takes.

    A plan that breaks no law and fits is ``feasible``, one that does not fit ``oom``; ``undecided`` if a law or
    the memory needs something unknown.

    Parameters
    ----------
    unknown
        Names whose values in ``job`` and ``plan`` are only placeholders; see `violations`.
    completed
        Fields that were absent, with the values that defaults gave them; passed through.
    memory
        Whether the memory is judged too; else a legal plan is ``feasible`` and ``fits`` is None.
    open_fields
        Those of `constraints.lighter.OPEN_FIELDS` that nothing states: where the plan does not fit with their
        defaults, it is judged with the first leaner values that fit, which are then ``completed`` and told in a warning.
    """
    job, plan, changes = normalise(job, plan, unknown=unknown)
    follows = [name for name in ("gbs",) if name in (completed or {})]
    found, open_laws = judged(job, plan, unknown=unknown, follows=follows)
    notes: dict[str, Any] = {
        "normalised": changes,
        "undecided": open_laws,
        "warnings": warnings(job, plan, unknown=unknown),
        "completed": dict(completed or {}),
    }
    if found:
        repair = whole(job, plan, unknown={*unknown, *follows}) if len(found) > 1 else None
        return Verdict(legal=False, verdict="infeasible", violations=found, repair=repair, **notes)
    evaluation = _evaluated(job, plan, unknown) if memory else None
    if evaluation is None:
        word: Literal["undecided", "feasible"] = "undecided" if open_laws or memory else "feasible"
        return Verdict(legal=True, verdict=word, **notes)
    over = _over_budget(job, evaluation)
    for fields in leaner(job, plan, open_fields) if over else ():
        lean = check(*applied(job, plan, fields), completed={**(completed or {}), **fields})
        if lean.verdict == "feasible":
            told = tuple(_as_completed(finding, job, plan, fields) for finding in over)
            notes = {"normalised": changes, "warnings": (*told, *lean.warnings)}
            rests = Leaner(
                text=said(job, plan, fields),
                device_bytes=evaluation.worst_stage.peak_device_bytes,
                host_bytes=evaluation.host_bytes_per_node,
                over=tuple(finding.rule for finding in over),
            )
            return lean.model_copy(update={**notes, "leaner": rests})
    return Verdict(
        legal=True,
        fits=not over,
        verdict="oom" if over else "feasible",
        violations=tuple(_with_repairs(finding, job, plan) for finding in over),
        evaluation=evaluation,
        **notes,
    )


def _as_completed(finding: Finding, job: Job, plan: Plan, fields: Mapping[str, Any]) -> Finding:
    """That a plan fits with other values than the defaults only."""
    because = f"with the target's defaults {finding.because}; it fits with {said(job, plan, fields)}, not stated here"
    return Finding(rule=finding.rule, because=because, source=finding.source)


def _with_repairs(finding: Finding, job: Job, plan: Plan) -> Violation:
    def fit(job: Job, plan: Plan) -> bool:
        if broken_laws(job, plan):
            return False
        try:
            return all(fits(job, evaluate(job, plan)).values())
        except UnknownDimensionError:
            return False

    return Violation(**finding.model_dump(), repairs=lighter(job, plan, fit))


def _evaluated(job: Job, plan: Plan, unknown: Collection[str]) -> Evaluation | None:
    """The evaluation, or None where it needs something unknown."""
    if unknown:
        return None
    try:
        return evaluate(job, plan)
    except UnknownDimensionError:
        return None


def _over_budget(job: Job, evaluation: Evaluation) -> tuple[Finding, ...]:
    """The memory budgets that a legal plan exceeds."""
    return tuple(
        Finding(rule=budget.id, because=budget.clause(job, evaluation), source=job.machine.title)
        for budget in BUDGETS
        if not budget.holds(job, evaluation)
    )


def judged(
    job: Job, plan: Plan, *, unknown: Collection[str] = (), follows: Collection[str] = ()
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """Return the laws of the job's target that the plan breaks, and the ids of those that cannot be decided.

    Parameters
    ----------
    unknown
        Decisions and sizes of the job (``gpus``, ``gbs``, ``seq_len``) whose values in ``job`` and ``plan`` are
        only placeholders. A law that reads one is undecided, and so is one that reads an unknown dimension of a
        `PartialModel`.
    follows
        Sizes of the job that nobody stated and that follow the plan: no repair changes or minds them.
    """
    found, open_laws = [*_spellings(plan)], list[str]()
    refused = list(broken(job, plan, "hard", unknown))
    before = {rule.id for rule, because in refused if because is not None} | {v.rule for v in found}
    laws_broken = [rule for rule, because in refused if because is not None]
    others = ways(laws_broken, job, plan, {*unknown, *follows}) if len(laws_broken) > 1 else {}
    for rule, because in refused:
        if because is None:
            open_laws.append(rule.id)
            continue
        offered = mends(rule, job, plan, unknown={*unknown, *follows}, before=before, others=others)
        found.append(Violation(rule=rule.id, because=because, source=str(rule.source), repairs=offered))
    return tuple(found), tuple(dict.fromkeys(open_laws))


def violations(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[Violation, ...]:
    """Return every law of the job's target that the plan breaks, in the order of the catalogue; see `judged`."""
    return judged(job, plan, unknown=unknown)[0]


def warnings(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return what the plan does without use."""
    return tuple(
        Finding(rule=rule.id, because=because, source=str(rule.source))
        for rule, because in broken(job, plan, "warning", unknown)
        if because is not None
    )


def _spellings(plan: Plan) -> Iterator[Violation]:
    for field, id, wrong in misspelt(plan):
        known, source = SPELLINGS[field][1:]
        right = tuple(name for name in getattr(plan, field) if name in known)
        yield Violation(
            rule=id,
            because=f"{field} has {', '.join(wrong)}, but the known names are {', '.join(known)}",
            source=str(source),
            repairs=(Repair(set={field: right}, text=f"{field} without {', '.join(wrong)}"),),
        )
