"""Whether a plan obeys the rules: every law that it breaks, why, and what would mend it. No solver in here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.memory.device import device_limit, host_limit
from mbsolve.constraints.normalise import Normalised, normalise
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Kind, Rule, Source
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.rules.repair import repairs, rule_reads
from mbsolve.constraints.rules.upstream import CONFIG, megatron
from mbsolve.constraints.vocabulary import GRAPH_SCOPES, OFFLOAD_MODULES, RECOMPUTE_MODULES, Plan
from mbsolve.models.partial import UnknownDimensionError

GIB = 2**30

__all__ = [
    "Finding",
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


class Repair(BaseModel):
    """A change after which one rule would hold: fields of the plan or the job, and a text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: dict[str, Any]
    text: str


class Finding(BaseModel):
    """What a rule says about a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    because: str
    source: str


class Violation(Finding):
    """A broken law."""

    repairs: tuple[Repair, ...] = ()


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
    evaluation : what the plan costs, when it is legal.
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
    evaluation: Evaluation | None = None


# Lists of names become one switch for each known name, so an unknown name is seen here or never.
SPELLINGS: dict[str, tuple[str, tuple[str, ...], Source]] = {
    "recompute_modules": ("recompute-modules-values", RECOMPUTE_MODULES, megatron(f"{CONFIG}:1960")),
    "fine_grained_offload_modules": (
        "fg-offload-modules-values",
        OFFLOAD_MODULES,
        megatron(f"{CONFIG}:2145"),
    ),
    "cuda_graph_scope": (
        "cg-modules-values",
        GRAPH_SCOPES,
        megatron("megatron/core/transformer/cuda_graph_config.py:57"),
    ),
}


def check(
    job: Job,
    plan: Plan,
    *,
    unknown: Collection[str] = (),
    completed: Mapping[str, Any] | None = None,
    memory: bool = True,
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
    """
    job, plan, changes = normalise(job, plan, unknown=unknown)
    found, open_laws = judged(job, plan, unknown=unknown)
    notes: dict[str, Any] = {
        "normalised": changes,
        "undecided": open_laws,
        "warnings": warnings(job, plan, unknown=unknown),
        "completed": dict(completed or {}),
    }
    if found:
        return Verdict(legal=False, verdict="infeasible", violations=found, **notes)
    evaluation = _evaluated(job, plan, unknown) if memory else None
    if evaluation is None:
        word: Literal["undecided", "feasible"] = "undecided" if open_laws or memory else "feasible"
        return Verdict(legal=True, verdict=word, **notes)
    over = _over_budget(job, evaluation)
    return Verdict(
        legal=True,
        fits=not over,
        verdict="oom" if over else "feasible",
        violations=over,
        evaluation=evaluation,
        **notes,
    )


def _evaluated(job: Job, plan: Plan, unknown: Collection[str]) -> Evaluation | None:
    """The evaluation, or None where it needs something unknown."""
    if unknown:
        return None
    try:
        return evaluate(job, plan)
    except UnknownDimensionError:
        return None


def _over_budget(job: Job, evaluation: Evaluation) -> tuple[Violation, ...]:
    """The memory budgets that a legal plan exceeds."""
    stage, held = evaluation.worst_stage, fits(job, evaluation)
    because = {
        "hbm-capacity": (
            f"pipeline rank {stage.stage} peaks at {stage.peak_device_bytes / GIB:.1f} GiB ({stage.peak_moment}); "
            f"a GPU has {device_limit(job) / GIB:.1f} GiB after the margin"
        ),
        "host-ram-capacity": (
            f"a node pins {evaluation.host_bytes_per_node / GIB:.0f} GiB for what is offloaded; "
            f"{host_limit(job) / GIB:.0f} GiB may be pinned"
        ),
    }
    return tuple(
        Violation(rule=name, because=because[name], source=job.machine.title)
        for name, ok in held.items()
        if not ok
    )


def judged(
    job: Job, plan: Plan, *, unknown: Collection[str] = ()
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """Return the laws of the job's target that the plan breaks, and the ids of those that cannot be decided.

    Parameters
    ----------
    unknown
        Decisions and sizes of the job (``gpus``, ``gbs``, ``seq_len``) whose values in ``job`` and ``plan`` are
        only placeholders. A law that reads one is undecided, and so is one that reads an unknown dimension of a
        `PartialModel`.
    """
    found, open_laws = [*_misspelt(plan)], list[str]()
    broken = list(_broken(job, plan, "hard", unknown))
    before = {rule.id for rule, because in broken if because is not None}
    for rule, because in broken:
        if because is None:
            open_laws.append(rule.id)
            continue
        mends = _mends(rule, job, plan, unknown, before)
        found.append(Violation(rule=rule.id, because=because, source=str(rule.source), repairs=mends))
    return tuple(found), tuple(dict.fromkeys(open_laws))


def broken_laws(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[str, ...]:
    """Return the ids of the laws that the plan breaks, without reasons and repairs."""
    ids = [v.rule for v in _misspelt(plan)]
    ids += [rule.id for rule, because in _broken(job, plan, "hard", unknown) if because is not None]
    return tuple(dict.fromkeys(ids))


def _mends(
    rule: Rule, job: Job, plan: Plan, unknown: Collection[str], before: Collection[str]
) -> tuple[Repair, ...]:
    """Repairs of one rule: first those that break no other, then those that do, with the others named."""
    sound, others = list[Repair](), list[Repair]()
    for fields, text in repairs(rule, job, plan):
        sizes = {name: value for name, value in fields.items() if name in Job.model_fields}
        changed = plan.model_copy(update={n: v for n, v in fields.items() if n not in sizes})
        after = broken_laws(job.model_copy(update=sizes), changed, unknown=unknown)
        more = [law for law in after if law not in before or law == rule.id]
        if more:
            others.append(Repair(set=fields, text=f"{text} Then {', '.join(more)} must be mended too."))
        else:
            sound.append(Repair(set=fields, text=text))
    return (*sound, *others)


def violations(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[Violation, ...]:
    """Return every law of the job's target that the plan breaks, in the order of the catalogue; see `judged`."""
    return judged(job, plan, unknown=unknown)[0]


def warnings(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return what the plan does without use."""
    return tuple(
        Finding(rule=rule.id, because=because, source=str(rule.source))
        for rule, because in _broken(job, plan, "warning", unknown)
        if because is not None
    )


def _laws(job: Job, kind: Kind) -> Iterator[Rule]:
    return (rule for rule in RULES if rule.kind == kind and rule.holds_for(job.target))


def _broken(job: Job, plan: Plan, kind: Kind, unknown: Collection[str]) -> Iterator[tuple[Rule, str | None]]:
    """Yield broken rules with their reason, and undecided ones with None; of a family that shares an id, each member."""
    values = plan.values()
    if values["mbs"] > 0:
        values |= derive(job, values)
    else:
        values |= {"dp": 1, "edp": 1, "microbatches": 1}
    for rule in _laws(job, kind):
        if rule_reads(rule) & set(unknown):
            yield rule, None
            continue
        try:
            if not rule.holds(job.facts, values):
                yield rule, _reason(rule, job, values)
        except PlacementError as error:
            yield rule, str(error)
        except UnknownDimensionError:
            yield rule, None


def _reason(rule: Rule, job: Job, values: Mapping[str, Any]) -> str:
    """Why, with numbers; in general words where a number is not known."""
    try:
        return rule.clause(job.facts, values)
    except UnknownDimensionError:
        return rule.text.rstrip(".")


def _misspelt(plan: Plan) -> Iterator[Violation]:
    for field, (id, known, source) in SPELLINGS.items():
        names: tuple[str, ...] = getattr(plan, field)
        wrong = [name for name in names if name not in known]
        if not wrong:
            continue
        right = tuple(name for name in names if name in known)
        yield Violation(
            rule=id,
            because=f"{field} has {', '.join(wrong)}, but the known names are {', '.join(known)}",
            source=str(source),
            repairs=(Repair(set={field: right}, text=f"Drop {', '.join(wrong)} from {field}."),),
        )
