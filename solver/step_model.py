"""The step of shapes as a function of term values: which terms there are, what they add up to, its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit, host_limit_per_rank, reserved_permille
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.quantise import PERMILLE, SECONDS_PER_QUANTUM
from mbsolve.constraints.rule import RESERVED, Term
from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS, exposure
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.tables import Bools, Features, Floats, TermTable

PASS_ROWS: Final = ("forward_device", "forward_host", "backward_device", "backward_host", "transfer")
_TANGENTS: Final = np.array(TANGENTS, float) / SOFT_SCALE
# Ratios of host to device time at which one tangent gives way to the next.
_TURNS: Final = -np.diff(_TANGENTS[:, 0]) / np.diff(_TANGENTS[:, 1])


@dataclass(frozen=True)
class Limits:
    """What each shape may hold: allocated bytes on a device, bytes of one rank on its host."""

    device: Floats
    host: float


def constant(tables: Sequence[TermTable], row: str, rows: int) -> Floats:
    """Sum of a row's terms for each shape, each at its least feature tuple."""
    out = np.zeros(rows)
    for t in tables:
        if t.term.row == row:
            out += t.extreme(most=False)[t.classes]
    return out


def limits_of(job: Job, tables: Sequence[TermTable], rows: int) -> Limits:
    """Budgets in bytes of allocated memory, after context, reserve and margin."""
    usable = device_limit(job) - constant(tables, "context_bytes", rows)
    return Limits(usable * PERMILLE / reserved_permille(job), host_limit_per_rank(job))


def collectives(job: Job, shapes: Columns, tables: Sequence[TermTable]) -> Floats:
    """Least exposed seconds of the data-parallel collectives of each shape."""
    out = np.zeros(shapes.rows)
    for row, overlapped in (
        ("grad_reduce", job.settings.overlap_grad_reduce),
        ("param_gather", job.settings.overlap_param_gather),
    ):
        out += constant(tables, row, shapes.rows) * exposure(job, 1, 1, overlapped)[0]
    return out


def soft_max(device: Floats, host: Floats) -> tuple[Floats, Floats, Floats]:
    """(value, weight on device, weight on host) of the soft maximum, elementwise."""
    # The tangents lie in the order of their angle: each is the largest between two ratios of host to device.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(device > 0, host / device, np.where(host > 0, np.inf, 0.0))
    pick = np.searchsorted(_TURNS, ratio)
    on_device, on_host = _TANGENTS[pick, 0], _TANGENTS[pick, 1]
    return on_device * device + on_host * host, on_device, on_host


class StepModel:
    """The step of a set of shapes as a function of its stage rows, and its gradient.

    Parameters
    ----------
    shapes : with the columns of their pipelines and micro-batches.
    ranks : (shapes, stage classes) pipeline ranks of each class.
    fixed : seconds of each shape that no feature changes.
    vpp : virtual stages of each shape, where ``shapes`` do not have them yet.
    """

    def __init__(self, shapes: Columns, ranks: Ints, fixed: Floats, vpp: Ints | Floats | None = None) -> None:
        pp = shapes.array("pp").astype(float)
        self.microbatches = shapes.array("microbatches").astype(float)
        self.mean = ranks / np.maximum(ranks.sum(axis=1, keepdims=True), 1)
        self.bubble = (pp - 1) / (shapes.array("vpp") if vpp is None else vpp)
        self.fixed = fixed

    def at(self, index: Ints) -> StepModel:
        """The model of some shapes; that of one shape may be fed any number of rows."""
        out = StepModel.__new__(StepModel)
        out.microbatches, out.bubble = self.microbatches[index], self.bubble[index]
        out.fixed, out.mean = self.fixed[index], self.mean[index]
        return out

    def step(self, rows: Floats) -> tuple[Floats, Floats]:
        """Seconds without the tail, and weights (shapes, classes, pass rows); ``rows`` has the same shape."""
        f, fd, fh = soft_max(rows[..., 0], rows[..., 1])
        b, bd, bh = soft_max(rows[..., 2], rows[..., 3])
        total = f + b + rows[..., 4]
        slowest = total.argmax(axis=1)
        weight = np.broadcast_to(self.bubble[:, None] * self.mean, total.shape).copy()
        weight[np.arange(len(total)), slowest] += self.microbatches
        seconds = (weight * total).sum(axis=1) + self.fixed
        slopes = np.stack([fd, fh, bd, bh, np.ones_like(fd)], -1) * weight[..., None]
        return seconds, slopes

    def rounding(self, i: int, terms: int) -> float:
        """Seconds by which rounding so many terms to quanta can raise the step of one shape."""
        passes = 3 * (self.microbatches[i] + self.bubble[i]) + 3
        return float(passes * terms * SECONDS_PER_QUANTUM)


def kinds_of(terms: Sequence[Term]) -> dict[tuple[str, str], int]:
    """Index of each (row, count) pair that some term uses."""
    rows = {*PASS_ROWS, "tail", *RESERVED, "host_bytes"}
    return {k: i for i, k in enumerate(sorted({(t.row, t.per) for t in terms if t.row in rows}))}


class Counter:
    """Turns row weights into kind weights and kind values into rows, for a set of shapes."""

    def __init__(self, kinds: dict[tuple[str, str], int], rows: Rows) -> None:
        self.kinds, self.rows = kinds, rows
        by_pass = [[(i, STAGE_COLUMN[p]) for (r, p), i in kinds.items() if r == row] for row in PASS_ROWS]
        self.tail = [i for (r, _), i in kinds.items() if r == "tail"]
        self.device = [(i, COLUMN[p]) for (r, p), i in kinds.items() if r in RESERVED]
        self.host = [(i, COLUMN[p]) for (r, p), i in kinds.items() if r == "host_bytes"]
        self._stages = [
            (_firsts(pairs), rows.stages[:, :, _seconds(pairs)].astype(float)) for pairs in by_pass
        ]
        self._held = [
            (_firsts(pairs), rows.moments[:, :, _seconds(pairs)].astype(float))
            for pairs in (self.device, self.host)
        ]

    def weights(self, slopes: Floats, device: Floats, host: Floats) -> Floats:
        """Weight of every kind: (shapes, kinds)."""
        out = np.zeros((len(slopes), len(self.kinds)))
        for r, (kinds, counts) in enumerate(self._stages):
            out[:, kinds] = np.einsum("ns,nsk->nk", slopes[:, :, r], counts)
        out[:, self.tail] = 1.0
        for (kinds, counts), price in zip(self._held, (device, host), strict=True):
            out[:, kinds] = np.einsum("nm,nmk->nk", price, counts)
        return out

    def passes(self, values: Floats, index: Ints | None = None) -> Floats:
        """Stage rows (shapes, classes, pass rows) of kind values (shapes, kinds); of the shapes at ``index``."""
        out = np.zeros((len(values), self.rows.stages.shape[1], len(PASS_ROWS)))
        for r, (kinds, counts) in enumerate(self._stages):
            mine = counts if index is None else counts[index]
            out[:, :, r] = np.einsum("nk,nsk->ns", values[:, kinds], mine)
        return out

    def memory(self, values: Floats, index: Ints | None = None) -> tuple[Floats, Floats]:
        """Device and host bytes at every moment: (shapes, moments) each; of the shapes at ``index``."""
        device, host = (
            np.einsum("nk,nmk->nm", values[:, kinds], counts if index is None else counts[index])
            for kinds, counts in self._held
        )
        return device, host


def _firsts(pairs: Sequence[tuple[int, int]]) -> Ints:
    return np.array([a for a, _ in pairs], np.int64)


def _seconds(pairs: Sequence[tuple[int, int]]) -> Ints:
    return np.array([b for _, b in pairs], np.int64)


def leading(counts: Floats, low: Floats, high: Floats, margin: float = 0.0) -> Ints:
    """Rows that no other row equals or exceeds, by a margin, for every kind value between ``low`` and ``high``.

    Without a margin the first of equals is kept.
    """
    live = np.flatnonzero((counts != counts[:1]).any(axis=0))
    counts, low, high = counts[:, live], low[live], high[live]
    more = counts[:, None, :] - counts[None, :, :]
    below = (np.maximum(more, 0) @ high + np.minimum(more, 0) @ low) <= -margin
    below &= ~below.T | np.tri(len(counts), k=-1, dtype=bool)
    return np.flatnonzero(~below.any(axis=1))


def least_values(
    tables: Sequence[TermTable],
    kinds: dict[tuple[str, str], int],
    rows: int,
    most: bool = False,
    features: Features | None = None,
    full: Bools | None = None,
) -> Floats:
    """Each kind at the least (or ``most``) of each of its terms: blind to what one feature does to two terms.

    With ``features``, shapes marked ``full`` (full recompute) take only the tuples that go with it, and the
    others only those that do not need it.
    """
    out = np.zeros((rows, len(kinds)))
    masks: dict[tuple[str, ...], list[Bools]] = {}
    for t in tables:
        kind = kinds.get((t.term.row, t.term.per))
        if kind is None:
            continue
        if features is None or full is None or not t.features:
            out[:, kind] += t.extreme(most)[t.classes]
            continue
        if t.features not in masks:
            masks[t.features] = [
                np.logical_or.reduce(
                    [features.under(t.features, t.tuples, "recompute_granularity", g) for g in which]
                )
                for which in (("none", "selective"), ("full",))
            ]
        for shapes, mask in ((~full, masks[t.features][0]), (full, masks[t.features][1])):
            if not shapes.any():
                continue
            out[shapes, kind] += t.extreme(most, mask)[t.classes[shapes]]
    return out
