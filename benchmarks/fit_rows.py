"""Measured rows as functions of the constants of the time model: one row priced for many values at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.check import broken_laws
from mbsolve.constraints.evaluate import rank_counts, whole_layers
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.rule import Row, Term
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.constraints.time.step import StagePass, step_of
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.measured import Measured
from mbsolve.errors import InputError
from mbsolve.judge.cases import Case, case_of
from mbsolve.judge.pairfile import PairGroup
from mbsolve.judge.pairs import measured_ratios
from mbsolve.judge.passes import without_links
from mbsolve.judge.validation import GRIDS
from mbsolve.models.card import Model

Floats = NDArray[np.float64]
PASS_ROWS: tuple[Row, ...] = tuple(cast(Row, f.name) for f in fields(StagePass))


@dataclass
class Run:
    """One measured step.

    Parameters
    ----------
    id, tier, knobs_recorded : of the row.
    job, plan : what ran.
    seconds : the measured step, or the passes of one rank without communication.
    stage : that rank; None where the whole step was measured.
    """

    id: str
    tier: str
    knobs_recorded: bool
    job: Job
    plan: Plan
    seconds: float
    stage: int | None = None
    _values: dict[str, Any] = field(default_factory=dict)
    _counts: list[dict[str, int]] = field(default_factory=list)
    _terms: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Price what no constant changes: sizes, counts, and which terms can be anything but zero."""
        flat = self.plan.values()
        flat |= derive(self.job, flat)
        self._values = flat | whole_layers(self.job, flat)
        self._counts = rank_counts(self.job, self.plan)
        used = {per for counts in self._counts for per, n in counts.items() if n} | {"one"}
        offloads = self.plan.activation_offload_layers or self.plan.fine_grained_offload_modules
        self._terms = [
            t for t in TIME_TERMS if t.per in used and (offloads or not t.name.startswith("offload."))
        ]

    @property
    def cell(self) -> tuple[str, str]:
        """The model and the machine."""
        return self.job.model.name, self.job.machine.name

    def predict(self, constants: Mapping[str, Floats]) -> Floats:
        """Seconds of the step for every value of the constants (arrays of one length); others are the card's."""
        n = len(next(iter(constants.values())))
        own = self.job.machine.calibration
        many = {name: constants.get(name, value) for name, value in own.items()}
        facts = _with(self.job, many).facts
        rows: dict[Row, list[tuple[str, Any]]] = {}
        for t in self._terms:
            rows.setdefault(t.row, []).append((t.per, t.call(facts, self._values)))

        def total(row: Row, counts: Mapping[str, int]) -> Floats:
            parts = [np.asarray(v, float) * counts[per] for per, v in rows.get(row, ()) if counts[per]]
            return np.broadcast_to(sum(parts, np.zeros(1)), (n,))

        stages = [[total(row, counts) for row in PASS_ROWS] for counts in self._counts]
        if self.stage is not None:
            passes = [StagePass(*(float(row[i]) for row in stages[self.stage])) for i in range(n)]
            micro = self._values["microbatches"]
            return np.array([micro * (one.forward + one.backward) for one in passes])
        once = [total(row, {"one": 1}) for row in ("grad_reduce", "param_gather", "tail")]
        out = np.empty(n)
        for i in range(n):
            job = _with(self.job, own | {name: float(values[i]) for name, values in constants.items()})
            passes = [StagePass(*(float(row[i]) for row in stage)) for stage in stages]
            sizes = (self.plan.pp, self.plan.vpp, self._values["microbatches"])
            out[i] = step_of(job, *sizes, passes, *(float(part[i]) for part in once)).seconds
        return out


def _with(job: Job, calibration: Mapping[str, Any]) -> Job:
    machine = job.machine.model_copy(update={"calibration": dict(calibration)})
    return job.model_copy(update={"machine": machine})


def runs_of(rows: Iterable[Measured]) -> list[Run]:
    """The rows whose step can be predicted."""
    found = []
    for row in rows:
        seconds = row.figures.step_seconds
        if row.entry is None or seconds is None or row.no_time is not None:
            continue
        try:
            case = case_of(row.entry, "row")
        except InputError:
            continue
        if _predictable(case):
            passes = row.figures.passes_only
            job = without_links(case.job) if passes else case.job
            stage = (row.figures.stage or 0) if passes else None
            found.append(Run(row.id, row.tier, bool(row.knobs_recorded), job, case.plan, seconds, stage))
    return found


def _predictable(case: Case) -> bool:
    if not isinstance(case.job.model, Model):
        return False
    if case.job.precision not in case.job.machine.supported_precisions:
        return False
    return not set(GRIDS) & set(broken_laws(case.job, case.plan, unknown=case.unknown))


def ratios_of(rows: Sequence[Measured], groups: Iterable[PairGroup]) -> list[tuple[Run, Run, float]]:
    """One-knob pairs: both runs, and the measured step of the second over that of the first."""
    return [
        (_run_of(ratio.a), _run_of(ratio.b), ratio.steps)
        for ratio in measured_ratios(rows, groups)
        if _predictable(ratio.a) and _predictable(ratio.b)
    ]


def _run_of(case: Case) -> Run:
    return Run(case.name, "pair", False, case.job, case.plan, 1.0)
