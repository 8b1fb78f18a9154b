"""What measured rows say of predicted step times: errors by what rows have in common, order, one-knob changes, anchors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from mbsolve.emit.recorded import TUNED
from mbsolve.judge.errors import ErrorGroup, errors_of
from mbsolve.judge.leaving_out import Anchoring, anchoring, constant_rate
from mbsolve.judge.pairs import PairResult, Pairs, pairs_of
from mbsolve.judge.ranking import Ranking, ranking
from mbsolve.judge.validation import RowResult

__all__ = ["Timing", "counted", "timing"]

EVERY: Final = "tuned runs, knobs recorded"


class Timing(BaseModel):
    """Step times judged; errors are of tuned runs whose knobs are recorded.

    Parameters
    ----------
    every, by_hardware, by_family, by_cell, by_kind : errors of all; by machine; by family of the model; by model and
        machine; by machine, family and precision.
    baselines : errors of the same rows when every run of a machine and precision, or of a model and machine, is given the
        same share of the peak.
    ranking, ranking_of_tuned : order of runs of the same job; of tuned runs alone.
    pairs : changes of one knob.
    anchoring : errors with another row of the same model and machine as the anchor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: tuple[ErrorGroup, ...] = ()
    by_hardware: tuple[ErrorGroup, ...] = ()
    by_family: tuple[ErrorGroup, ...] = ()
    by_cell: tuple[ErrorGroup, ...] = ()
    by_kind: tuple[ErrorGroup, ...] = ()
    baselines: tuple[ErrorGroup, ...] = ()
    ranking: Ranking | None = None
    ranking_of_tuned: Ranking | None = None
    pairs: Pairs | None = None
    anchoring: Anchoring | None = None


def counted(row: RowResult) -> bool:
    """Whether a row's time is one to be judged on: of a tuned run, with its knobs recorded."""
    return row.tier in TUNED and bool(row.knobs_recorded) and row.time_error is not None


def timing(rows: Sequence[RowResult], pairs: Sequence[PairResult] = ()) -> Timing:
    """All that is to be said of the step times of some rows and pairs of them."""
    some = [row for row in rows if counted(row)]
    shares = {
        "the same share of the peak for a machine and precision": lambda r: (r.hardware, r.precision),
        "the same share of the peak for a model and machine": _cell,
    }
    baselines = [(name, [e for _, e in constant_rate(some, cell)]) for name, cell in shares.items()]
    return Timing(
        every=_groups(some, lambda _: (EVERY,)),
        by_hardware=_groups(some, lambda r: (r.hardware,)),
        by_family=_groups(some, lambda r: (r.family,)),
        by_cell=_groups(some, _cell),
        by_kind=_groups(some, lambda r: (r.hardware, r.family, r.precision)),
        baselines=tuple(
            ErrorGroup(name=name, quantity="time", errors=errors_of(errors))
            for name, errors in baselines
            if errors
        ),
        ranking=ranking(rows),
        ranking_of_tuned=ranking(some),
        pairs=pairs_of(pairs),
        anchoring=anchoring(some),
    )


def _cell(row: RowResult) -> tuple[str, ...]:
    return (row.sizes.model if row.sizes else "unknown", row.hardware)


def _groups(rows: Iterable[RowResult], key: Callable[[RowResult], tuple[str, ...]]) -> tuple[ErrorGroup, ...]:
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.time_error is not None:
            found.setdefault(key(row), []).append(row.time_error)
    return tuple(
        ErrorGroup(name=", ".join(name), quantity="time", errors=errors_of(errors))
        for name, errors in sorted(found.items())
    )
