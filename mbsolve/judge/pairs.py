"""Pairs of measured rows that differ in one knob: the measured ratio of their times, and the predicted one.

A ratio needs less than a time: what both rows leave open is assumed alike, and a rate serves where the step was not told.
Times are GPU time of a model FLOP (in the stack's counting), so that runs of other batches, lengths and numbers of GPUs can
be compared; for runs of one job that is the ratio of their steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.placement import PlacementError
from mbsolve.emit.measured import Measured, completed_row
from mbsolve.errors import InputError
from mbsolve.judge.anchor import Run, scaled_by
from mbsolve.judge.cases import Case, case_of
from mbsolve.judge.pairfile import PairGroup, Twin
from mbsolve.judge.sizes import sizes_of
from mbsolve.judge.validation import RowResult, short_reason, step_seconds
from mbsolve.models.flops import flops_per_token
from mbsolve.models.partial import PartialModel

__all__ = ["APART", "PairResult", "Pairs", "Ratio", "measured_ratios", "pairs_of", "predicted_pairs"]

# Changes of less than this are near the drift between releases: no sign is asked of them.
APART: Final = 0.05
# Of ratios that are 1 but for rounding.
SAME: Final = 1e-9


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PairResult(_Data):
    """One pair.

    Parameters
    ----------
    group, factor, a, b : as the file of pairs has them.
    measured, predicted : GPU time of a model FLOP of ``b`` over that of ``a``; None where there is none.
    modelled : whether the two differ for the model at all; where not, 1 is predicted by construction.
    assumed, why : what rows leave open and was taken, and on what grounds where no row of the group has it.
    batch : where the batch was not recorded, which one was taken and why.
    added_seconds : measured and predicted step of ``b`` less that of ``a``, where the batch was not recorded.
    reason : why the pair was not compared; None when it was.
    """

    group: str
    factor: str
    a: str
    b: str
    measured: float | None = None
    predicted: float | None = None
    modelled: bool = True
    assumed: dict[str, Any] = {}
    why: str | None = None
    batch: str | None = None
    added_seconds: tuple[float, float] | None = None
    reason: str | None = None

    @property
    def apart(self) -> bool:
        """Whether the measured change is large enough to ask for its sign."""
        return self.measured is not None and abs(self.measured - 1) > APART

    @property
    def right(self) -> bool | None:
        """Whether the predicted change has the sign of the measured one; None where nothing is compared."""
        if self.measured is None or self.predicted is None:
            return None
        return abs(self.predicted - 1) > SAME and (self.measured > 1) == (self.predicted > 1)

    @property
    def ratio_error(self) -> float | None:
        """Predicted over measured ratio, less one."""
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None


class Pairs(_Data):
    """All pairs, and their figures together; those of pairs that are apart, and of these of modelled knobs.

    Parameters
    ----------
    apart, right, median_error : how many, how many with the right sign, median absolute error of the ratio; the last is
        None where there are none.
    """

    pairs: tuple[PairResult, ...]
    apart: int
    right: int
    median_error: float | None
    modelled_apart: int
    modelled_right: int
    modelled_median_error: float | None


def pairs_of(pairs: Sequence[PairResult]) -> Pairs | None:
    """The figures of some pairs; None where there is none."""
    apart = [p for p in pairs if p.apart and p.ratio_error is not None]
    modelled = [p for p in apart if p.modelled]
    if not pairs:
        return None
    return Pairs(
        pairs=tuple(pairs),
        apart=len(apart),
        right=sum(bool(p.right) for p in apart),
        median_error=_median_error(apart),
        modelled_apart=len(modelled),
        modelled_right=sum(bool(p.right) for p in modelled),
        modelled_median_error=_median_error(modelled),
    )


def _median_error(pairs: Sequence[PairResult]) -> float | None:
    errors = [abs(p.ratio_error) for p in pairs if p.ratio_error is not None]
    return median(errors) if errors else None


@dataclass(frozen=True)
class _Side:
    """One row of a pair, with what is assumed."""

    row: Measured
    case: Case

    @property
    def batch_recorded(self) -> bool:
        return "gbs" in (self.row.entry.sizes if self.row.entry else {})


class _Unfit(Exception):
    """A pair cannot be compared; the message says why."""


def predicted_pairs(
    rows: Iterable[Measured],
    results: Iterable[RowResult],
    groups: Iterable[PairGroup],
    run: Run | None = None,
) -> list[PairResult]:
    """Every pair of which both rows are there.

    Parameters
    ----------
    results : of the rows; a step that was predicted there is not predicted again.
    run : a measured run that steps of its own model and machine are scaled by.
    """
    known = {row.id: row for row in rows}
    steps = {row.id: row.predicted.step_seconds for row in results}
    return [
        _pair(group, twin, known, steps, run)
        for group in groups
        for twin in group.pairs
        if twin.a in known and twin.b in known
    ]


def _pair(
    group: PairGroup,
    twin: Twin,
    known: Mapping[str, Measured],
    steps: Mapping[str, float | None],
    run: Run | None,
) -> PairResult:
    about: dict[str, Any] = {"group": group.name, "factor": twin.factor, "a": twin.a, "b": twin.b}
    about["why"] = group.why
    try:
        a, b, about["assumed"], about["batch"] = _sides(group, twin, known, run)
        measured = _measured(a, b)
        times = [_predicted(side, steps.get(side.row.id)) for side in (a, b)]
    except _Unfit as why:
        return PairResult(**about, reason=str(why))
    except PlacementError as why:
        return PairResult(**about, reason=f"the layers cannot be placed: {why}")
    work = [_work_time(side, seconds) for side, seconds in zip((a, b), times, strict=True)]
    seen = [side.row.figures.step_seconds for side in (a, b)]
    added = None
    if about["batch"] is not None and seen[0] is not None and seen[1] is not None:
        added = (seen[1] - seen[0], times[1] - times[0])
    return PairResult(
        **about,
        measured=measured,
        predicted=work[1] / work[0],
        modelled=(a.case.job, a.case.plan) != (b.case.job, b.case.plan),
        added_seconds=added,
    )


def _sides(
    group: PairGroup, twin: Twin, known: Mapping[str, Measured], run: Run | None
) -> tuple[_Side, _Side, dict[str, Any], str | None]:
    """Both runs of a pair, what was assumed of them, and how their batch was come by."""
    a, b = (_side(known[id_], group.assumed, run) for id_ in (twin.a, twin.b))
    assumed = {
        name: value
        for name, value in group.assumed.items()
        if any(known[id_].record.get(name) is None for id_ in (twin.a, twin.b))
    }
    a, b, batch = _same_batch(a, b)
    return a, b, assumed, batch


@dataclass(frozen=True)
class Ratio:
    """A measured ratio of steps, and the two runs that it is of.

    Parameters
    ----------
    a, b : the runs.
    steps : step of ``b`` over that of ``a``, as measured; of runs of unlike work, as their rates tell it.
    """

    a: Case
    b: Case
    steps: float


def measured_ratios(rows: Iterable[Measured], groups: Iterable[PairGroup]) -> list[Ratio]:
    """The pairs of which both rows are there and differ for the model."""
    known = {row.id: row for row in rows}
    found = []
    for group in groups:
        for twin in group.pairs:
            if twin.a not in known or twin.b not in known:
                continue
            try:
                a, b, *_ = _sides(group, twin, known, None)
                work = _work_time(a, 1.0) / _work_time(b, 1.0)
                ratio = Ratio(a.case, b.case, _measured(a, b) * work)
            except (_Unfit, PlacementError):
                continue
            if (a.case.job, a.case.plan) != (b.case.job, b.case.plan):
                found.append(ratio)
    return found


def _side(row: Measured, assumed: Mapping[str, Any], run: Run | None) -> _Side:
    again = completed_row(row, assumed)
    if again.entry is None:
        raise _Unfit(f"{row.id}: {again.reason}")
    try:
        case = scaled_by(case_of(again.entry, "row"), run)
    except InputError as error:
        raise _Unfit(short_reason(str(error))) from error
    if isinstance(case.job.model, PartialModel):
        raise _Unfit(f"no card for the model {case.job.model.name}")
    if case.job.precision not in case.job.machine.supported_precisions:
        raise _Unfit(f"{case.job.machine.title} has no {case.job.precision}")
    return _Side(again, case)


def _with_batch(side: _Side, gbs: int) -> _Side:
    return replace(side, case=replace(side.case, job=side.case.job.model_copy(update={"gbs": gbs})))


def _round(side: _Side) -> int:
    """Sequences of one micro-batch on every data-parallel rank, or of one whole round of an interleaved pipeline."""
    job, plan = side.case.job, side.case.plan
    dp = max(1, job.gpus // (plan.tp * plan.cp * plan.pp))
    return dp * plan.mbs * (plan.pp if plan.vpp > 1 else 1)


def _whole(side: _Side, sequences: float) -> int:
    """The number of sequences nearest to some that makes whole rounds."""
    return max(1, round(sequences / _round(side))) * _round(side)


def _same_batch(a: _Side, b: _Side) -> tuple[_Side, _Side, str | None]:
    """Both with the batch that they record, else with one of as many tokens, and how that was come by."""
    if a.batch_recorded and b.batch_recorded:
        return a, b, None
    seen, job = a.row.figures, a.case.job
    if a.batch_recorded:
        gbs, why = job.gbs, "that of the first"
    elif seen.step_seconds is not None and seen.tflops_per_gpu is not None:
        done = seen.tflops_per_gpu * 1e12 * job.gpus * seen.step_seconds
        gbs = _whole(a, done / (flops_per_token(job.model, job.seq_len) * job.seq_len))
        why = "implied by the TFLOP/s and the step of the first"
    elif seen.step_seconds is not None:
        gbs = _nearest_batch(a, seen.step_seconds)
        why = "the one whose predicted step is nearest to that of the first"
    else:
        gbs, why = job.gbs, "the model's default"
    a = _with_batch(a, gbs)
    if not b.batch_recorded:
        b = _with_batch(b, _whole(b, gbs * job.seq_len / b.case.job.seq_len))
    return a, b, f"{a.case.job.gbs} sequences of {job.seq_len}, {why}"


def _nearest_batch(side: _Side, seconds: float) -> int:
    """Whole rounds with which the predicted step comes nearest to a measured one; steps grow with rounds."""
    unit = _round(side)
    low, high = 1, 2
    while _predicted(_with_batch(side, high * unit), None) < seconds and high < 2**16:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _predicted(_with_batch(side, middle * unit), None) < seconds:
            low = middle
        else:
            high = middle
    return unit * min(
        (low, high), key=lambda n: abs(log(_predicted(_with_batch(side, n * unit), None) / seconds))
    )


def _predicted(side: _Side, known: float | None) -> float:
    """Seconds of the step; predicted only where it is not known, and that is only of rows that recorded all."""
    if known is not None and side.batch_recorded:
        return known
    return step_seconds(side.case, side.row.figures)[0]


def _work_time(side: _Side, step: float) -> float:
    """GPU seconds of a model FLOP."""
    return step * side.case.job.gpus / sizes_of(side.case).step_flops


def _measured(a: _Side, b: _Side) -> float:
    """GPU time of a FLOP of the second over that of the first, by steps where both are told, else by TFLOP/s."""
    steps = [side.row.figures.step_seconds for side in (a, b)]
    rates = [side.row.figures.tflops_per_gpu for side in (a, b)]
    if steps[0] is not None and steps[1] is not None:
        return _work_time(b, steps[1]) / _work_time(a, steps[0])
    if rates[0] is None or rates[1] is None:
        raise _Unfit("neither a step nor TFLOP/s are told of both rows")
    return rates[0] / rates[1]
