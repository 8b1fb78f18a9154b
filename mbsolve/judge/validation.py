"""Measured rows predicted: each one evaluated and compared, or the reason why it was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.check import broken_laws
from mbsolve.constraints.error_bars import time_bar
from mbsolve.constraints.evaluate import (
    anchored_step,
    plan_moments,
    priced,
    stage_memory,
)
from mbsolve.constraints.evaluation import StageMemory, TermValue
from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.memory_classes import class_of
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.emit.figures import Figures
from mbsolve.emit.measured import Measured
from mbsolve.errors import InputError
from mbsolve.judge.anchor import Run, scaled_by
from mbsolve.judge.cases import Case, case_of
from mbsolve.judge.fitting import Fit, fit_of
from mbsolve.judge.habits import as_run
from mbsolve.judge.passes import passes_seconds
from mbsolve.judge.rows import read_rows
from mbsolve.judge.sizes import Sizes, sizes_of
from mbsolve.models.partial import PartialModel

__all__ = ["Compared", "RowResult", "read_rows", "short_reason", "step_seconds", "validate_row"]

GRIDS: Final = ("world-divisible-by-dense-grid", "world-divisible-by-expert-grid")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Compared(_Data):
    """Seconds and bytes of one row; None where there is nothing."""

    step_seconds: float | None = None
    between_bytes: float | None = None
    peak_bytes: float | None = None


class Reserved(_Data):
    """Bytes that the allocator reserved at the peak of a step, and those predicted."""

    measured_bytes: float
    predicted_bytes: float


class RowResult(_Data):
    """One measured row.

    Parameters
    ----------
    id, tier, moe, knobs_recorded : as the row has them; ``moe`` from the model where the row says nothing.
    hardware, family, precision : of the groups that errors are shown by.
    sizes : what ran; None where the row was not evaluated.
    evaluated : whether it was predicted; if not, ``reason`` says why.
    measured, predicted : what is compared.
    reserved : what the allocator reserved, where the row has it.
    time_error, between_error, peak_error, reserved_error : predicted over measured, minus one; None where nothing is
        compared.
    time_bar : relative error to expect of the step, far more where the row does not record how it ran; None without one.
    memory_class : of `constraints.memory_classes`, where memory is compared.
    not_compared : figures that were measured but not compared -> why.
    stage : pipeline rank of the memory figures.
    fit : whether it was judged to fit the device, and whether it did; None where the GPU or the plan is not known.
    illegal : laws of ours that this configuration, which ran, breaks.
    completed : what was taken from defaults.
    terms : the largest time terms, or for a row without a time the largest memory terms.
    """

    schema_version: Literal[1] = 1
    id: str
    tier: str
    moe: bool | None = None
    knobs_recorded: bool | None = None
    hardware: str
    family: str = "unknown"
    precision: str
    sizes: Sizes | None = None
    evaluated: bool = False
    reason: str | None = None
    measured: Compared = Compared()
    predicted: Compared = Compared()
    reserved: Reserved | None = None
    time_error: float | None = None
    between_error: float | None = None
    peak_error: float | None = None
    reserved_error: float | None = None
    time_bar: float | None = None
    memory_class: str | None = None
    not_compared: dict[str, str] = {}
    stage: int | None = None
    fit: Fit | None = None
    illegal: tuple[str, ...] = ()
    completed: dict[str, Any] = {}
    terms: tuple[TermValue, ...] = ()


def validate_row(row: Measured, time: bool = True, memory: bool = True, run: Run | None = None) -> RowResult:
    """Predict one row.

    Parameters
    ----------
    time, memory : what is compared.
    run : a measured run that the steps of its own model and machine are scaled by.
    """
    notes: dict[str, Any] = {
        "id": row.id,
        "tier": row.tier,
        "moe": row.moe,
        "knobs_recorded": row.knobs_recorded,
        "hardware": row.hardware,
        "precision": row.precision,
        "measured": Compared(
            step_seconds=row.figures.step_seconds,
            between_bytes=row.figures.between_bytes,
            peak_bytes=max(row.figures.peaks_by_rank, default=row.figures.peak_bytes),
        ),
    }
    if row.entry is None:
        return RowResult(**notes, reason=row.reason)
    try:
        case = scaled_by(case_of(row.entry, "row"), run)
        return _predicted(row, case, notes, time, memory)
    except InputError as error:
        return RowResult(**notes, reason=short_reason(str(error)))
    except PlacementError as error:
        return RowResult(**notes, reason=f"the layers cannot be placed: {error}")


def short_reason(message: str) -> str:
    """A reason that is the same for every row that has it."""
    text = message.removeprefix("row: ").rstrip(".")
    for start in ("There is no model", "There is no machine"):
        if text.startswith(start):
            return f"no card for the {start.split()[-1]} {text.split(chr(39))[1]}"
    return text


def _predicted(row: Measured, case: Case, notes: dict[str, Any], time: bool, memory: bool) -> RowResult:
    job, model = case.job, case.job.model
    if isinstance(model, PartialModel):
        return RowResult(**notes, reason=f"no card for the model {model.name}")
    if job.precision not in job.machine.supported_precisions:
        return RowResult(**notes, reason=f"{job.machine.title} has no {job.precision}")
    illegal = broken_laws(job, case.plan, unknown=case.unknown)
    torn = [rule for rule in illegal if rule in GRIDS]
    if torn:
        # Without whole grids there is no number of replicas, hence no step to predict.
        return RowResult(**notes, illegal=illegal, reason=f"not as recorded: breaks {torn[0]}")
    try:
        return _priced(row, case, {**notes, "illegal": illegal}, time, memory)
    except (ArithmeticError, LookupError, ValueError) as error:
        if not illegal or isinstance(error, PlacementError):
            raise
        return RowResult(**notes, illegal=illegal, reason=f"not legal, and cannot be priced: {illegal[0]}")


def _priced(row: Measured, case: Case, notes: dict[str, Any], time: bool, memory: bool) -> RowResult:
    job, model = case.job, case.job.model
    seen, found = row.figures, dict[str, float | None]()
    terms: tuple[TermValue, ...] = ()
    stage: int | None = None
    if time and seen.step_seconds is not None and row.no_time is None:
        found["step_seconds"], terms = step_seconds(case, seen)
        notes["time_bar"] = time_bar(job, knobs_known=bool(row.knobs_recorded)).error_bar
    if memory and (seen.between_bytes is not None or seen.peak_bytes is not None):
        stages = _stages(case, row)
        measured, worst = _compared_stage(case, seen, stages)
        notes["measured"] = notes["measured"].model_copy(update={"peak_bytes": measured})
        stage = worst.stage
        if seen.between_bytes is not None:
            found["between_bytes"] = worst.between_bytes
        if seen.peak_bytes is not None and row.no_peak is None:
            found["peak_bytes"] = worst.peak_allocated_bytes
        notes["memory_class"] = class_of(job, case.plan).name
        if seen.reserved_bytes is not None:
            predicted_bytes = max(s.peak_reserved_bytes for s in stages)
            notes["reserved"] = Reserved(measured_bytes=seen.reserved_bytes, predicted_bytes=predicted_bytes)
            notes["reserved_error"] = _error(predicted_bytes, seen.reserved_bytes)
        terms = terms or tuple(sorted(worst.terms, key=lambda t: -(t.bytes or 0.0))[:8])
    predicted = Compared(**found)
    if memory:
        notes["fit"] = fit_of(row, case)
    notes["precision"], notes["hardware"] = job.precision, job.machine.name
    notes["moe"] = model.is_moe if row.moe is None else row.moe
    notes["sizes"] = sizes_of(case)
    skipped = _skipped(row, time, memory)
    nothing = not found and notes.get("fit") is None
    return RowResult(
        **notes,
        family=family(case),
        evaluated=not nothing,
        reason=next(iter(skipped.values()), "nothing was measured that is asked for") if nothing else None,
        predicted=predicted,
        time_error=_error(predicted.step_seconds, notes["measured"].step_seconds),
        between_error=_error(predicted.between_bytes, notes["measured"].between_bytes),
        peak_error=_error(predicted.peak_bytes, notes["measured"].peak_bytes),
        not_compared=skipped,
        stage=stage,
        completed=case.completed,
        terms=terms,
    )


def _skipped(row: Measured, time: bool, memory: bool) -> dict[str, str]:
    """Figures that were measured and asked for but are not compared, with the reason."""
    seen = row.figures
    out: dict[str, str] = {}
    if time and row.no_time is not None:
        out["time"] = row.no_time
    if memory and row.no_peak is not None and (seen.peak_bytes is not None or seen.peaks_by_rank):
        out["peak"] = row.no_peak
    return out


def family(case: Case) -> str:
    """Dense, MoE, MoE with latent attention, or hybrid."""
    model = case.job.model
    if model.hybrid:
        return "hybrid"
    if not model.is_moe:
        return "dense"
    return "MLA MoE" if model.mla else "MoE"


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None


def step_seconds(case: Case, seen: Figures) -> tuple[float, tuple[TermValue, ...]]:
    """The predicted time of what was timed, and its largest terms."""
    if not seen.passes_only:
        p = priced(case.job, case.plan, TIME_TERMS)
        seconds, terms = anchored_step(p)
        return seconds, tuple(sorted(terms, key=lambda t: -(t.seconds or 0.0))[:8])
    return passes_seconds(case.job, case.plan, seen.stage or 0), ()


def _stages(case: Case, row: Measured) -> list[StageMemory]:
    """Memory of every pipeline rank that the row may speak of."""
    seen = row.figures
    p = as_run(priced(case.job, case.plan, MEMORY_TERMS), row.habits)
    moments = plan_moments(case.job, case.plan)
    if seen.stage is not None and not seen.peaks_by_rank:
        moments = (moments[seen.stage],)
    return [stage_memory(p, m) for m in moments]


def _compared_stage(
    case: Case, seen: Figures, stages: Sequence[StageMemory]
) -> tuple[float | None, StageMemory]:
    """The measured peak and the pipeline rank that it is compared with: of known ranks, the pair furthest apart."""
    if not seen.peaks_by_rank:
        return seen.peak_bytes, max(stages, key=lambda s: s.peak_allocated_bytes)
    each = max(1, len(seen.peaks_by_rank) // case.plan.pp)
    pairs = [(peak, stages[min(i // each, len(stages) - 1)]) for i, peak in enumerate(seen.peaks_by_rank)]
    return max(pairs, key=lambda pair: abs(pair[1].peak_allocated_bytes / pair[0] - 1))
