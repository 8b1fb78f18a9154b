"""Answers about configurations of job files: verdicts, evaluations, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mbsolve.constraints.check import Verdict, Violation, check, judged
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.evaluation import Evaluation, TermValue
from mbsolve.constraints.normalise import Normalised, normalise
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.emit.formats import Given
from mbsolve.errors import InputError
from mbsolve.judge.cases import Case, read_cases
from mbsolve.models.partial import UnknownDimensionError

__all__ = ["Difference", "Evaluated", "TermDifference", "diff", "evaluate_case", "read_many", "verdict"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evaluated(_Data):
    """What a configuration costs, or why that cannot be said.

    Parameters
    ----------
    id : its name in the file.
    legal : whether no law is broken, as far as the laws can be decided.
    violations : the laws that it breaks.
    normalised : fields that the stack would change by itself; what is priced is the plan with these changes.
    completed, told : what was absent and completed, and what was read loosely.
    reason : why there is no evaluation; None when there is one.
    """

    schema_version: Literal[1] = 1
    id: str
    legal: bool
    violations: tuple[Violation, ...] = ()
    normalised: tuple[Normalised, ...] = ()
    completed: dict[str, Any] = Field(default_factory=dict)
    told: tuple[str, ...] = ()
    reason: str | None = None
    evaluation: Evaluation | None = None

    def flat(self) -> dict[str, Any]:
        """The evaluation with what is said about it beside its fields, for JSON."""
        about = self.model_dump(mode="json", exclude={"evaluation"})
        return {**about, **(self.evaluation.model_dump(mode="json") if self.evaluation else {})}


class TermDifference(_Data):
    """One term of two configurations, in seconds or bytes; zero where one has none."""

    name: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """What the second has more."""
        return self.b - self.a


class Difference(_Data):
    """Two configurations, term by term.

    Parameters
    ----------
    a, b : their names.
    fields : field -> values of both, where these differ.
    step_seconds, peak_device_bytes, between_bytes, host_bytes_per_node : totals of both; memory on the fullest rank.
    stages : the pipeline rank of each whose memory is compared.
    time, memory : terms that differ, the largest change first; time in seconds, memory in bytes.
    """

    schema_version: Literal[1] = 1
    a: str
    b: str
    fields: dict[str, tuple[Any, Any]]
    step_seconds: tuple[float, float]
    peak_device_bytes: tuple[float, float]
    between_bytes: tuple[float, float]
    host_bytes_per_node: tuple[float, float]
    stages: tuple[int, int]
    time: tuple[TermDifference, ...]
    memory: tuple[TermDifference, ...]


def read_many(paths: Sequence[str | Path], given: Given | None = None) -> list[Case]:
    """The configurations of some files; from several files their names begin with the file's.

    Parameters
    ----------
    given
        What fills in where a file says nothing.

    Raises
    ------
    InputError
        one sentence, before anything is judged.
    """
    out = []
    for path in paths:
        cases = read_cases(path, given)
        for case in cases:
            name = f"{path}:{case.name}" if len(paths) > 1 else case.name
            if len(cases) == 1 and case.name == "1":
                name = str(path)
            out.append(Case(**{**vars(case), "name": name}))
    return out


def verdict(case: Case, memory: bool = True) -> Verdict:
    """Whether a configuration is legal and fits; see `constraints.check.check`."""
    if case.skipped is not None:
        ask = () if case.question is None else (f"run: {case.question}",)
        return Verdict(id=case.name, legal=True, verdict="undecided", told=(case.skipped, *ask, *case.told))
    known = not case.unmodelled
    found = check(
        case.job,
        case.plan,
        unknown=case.unknown,
        completed=case.completed,
        memory=memory and known,
        open_fields=case.open_fields,
    )
    if found.verdict == "feasible" and not known:
        found = found.model_copy(update={"verdict": "undecided"})
    return found.model_copy(update={"id": case.name, "told": case.told})


def evaluate_case(case: Case) -> Evaluated:
    """What a configuration costs; an illegal one is evaluated too where that means anything."""
    job, plan, changes = normalise(case.job, case.plan, unknown=case.unknown)
    broken = judged(job, plan, unknown=case.unknown)[0] if case.skipped is None else ()
    notes: dict[str, Any] = {
        "id": case.name,
        "legal": not broken,
        "violations": broken,
        "normalised": changes if case.skipped is None else (),
        "completed": case.completed,
        "told": case.told,
    }
    if case.skipped is not None:
        return Evaluated(**notes, reason=case.skipped)
    if case.unmodelled:
        return Evaluated(**notes, reason=f"it depends on {' and '.join(case.unmodelled)}")
    if case.unknown:
        return Evaluated(**notes, reason=f"{' and '.join(sorted(case.unknown))} must be stated")
    try:
        return Evaluated(**notes, evaluation=evaluate(job, plan))
    except (UnknownDimensionError, PlacementError) as error:
        return Evaluated(**notes, reason=str(error))
    except (ArithmeticError, LookupError, ValueError) as error:
        if not broken:
            raise
        # The arithmetic of a plan that no launcher would start need not mean anything.
        return Evaluated(**notes, reason=f"it is not legal, and cannot be priced ({error})")


def diff(a: Case, b: Case) -> Difference:
    """How two configurations differ, term by term.

    Raises
    ------
    InputError
        if one of them cannot be evaluated.
    """
    left, right = _needed(a), _needed(b)
    worst = left.worst_stage, right.worst_stage
    return Difference(
        a=a.name,
        b=b.name,
        fields={name: pair for name, pair in _fields(a, b) if pair[0] != pair[1]},
        step_seconds=(left.step_seconds, right.step_seconds),
        peak_device_bytes=(worst[0].peak_device_bytes, worst[1].peak_device_bytes),
        between_bytes=(
            max(s.between_bytes for s in left.stages),
            max(s.between_bytes for s in right.stages),
        ),
        host_bytes_per_node=(left.host_bytes_per_node, right.host_bytes_per_node),
        stages=(worst[0].stage, worst[1].stage),
        time=_terms(left.terms, right.terms),
        memory=_terms(worst[0].terms, worst[1].terms),
    )


def _needed(case: Case) -> Evaluation:
    found = evaluate_case(case)
    if found.evaluation is None:
        raise InputError(f"Job {case.name} cannot be evaluated: {found.reason}.")
    return found.evaluation


def _fields(a: Case, b: Case) -> Iterable[tuple[str, tuple[Any, Any]]]:
    yield "model", (a.job.model.name, b.job.model.name)
    yield "hardware", (a.job.machine.name, b.job.machine.name)
    for name in ("gpus", "gpus_per_node", "block_gpus", "seq_len", "gbs", "precision", "margin", "target"):
        yield name, (getattr(a.job, name), getattr(b.job, name))
    for name in Settings.model_fields:
        yield name, (getattr(a.job.settings, name), getattr(b.job.settings, name))
    for name in Plan.model_fields:
        yield name, (getattr(a.plan, name), getattr(b.plan, name))


def _terms(a: Sequence[TermValue], b: Sequence[TermValue]) -> tuple[TermDifference, ...]:
    """Terms by name, those that are the same left out."""
    sums: dict[str, list[float]] = {}
    for side, terms in enumerate((a, b)):
        for t in terms:
            amount = t.seconds if t.seconds is not None else t.bytes or 0.0
            sums.setdefault(t.name, [0.0, 0.0])[side] += amount
    found = [TermDifference(name=name, a=x, b=y) for name, (x, y) in sums.items() if x != y]
    return tuple(sorted(found, key=lambda t: (-abs(t.change), t.name)))
