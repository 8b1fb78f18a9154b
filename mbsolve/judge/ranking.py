"""How predictions rank measured runs of the same job: order within groups, pairs, and the price of taking the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import sqrt
from statistics import mean, median
from typing import Final

from pydantic import BaseModel, ConfigDict

from mbsolve.emit.recorded import TUNED
from mbsolve.judge.errors import TRUSTED
from mbsolve.judge.validation import RowResult

__all__ = ["Ranking", "RankingGroup", "kendall_tau", "ranked_rows", "ranking", "regret"]

# Fewer configurations have no order worth the name.
LEAST: Final = 3
# Measured times nearer than this are not told apart: one configuration drifts as much between releases.
APART: Final = 0.03


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankingGroup(_Data):
    """Runs of one model on one machine, with one number of GPUs, precision and sequence length.

    Parameters
    ----------
    configurations : how many differ; several runs of one are one, with the median of what was measured.
    per_token : whether batches differ, so that times of a token are compared.
    tau : Kendall's tau-b of predicted and measured times; 0 where one side is all ties.
    pairs, right : pairs whose measured times are apart, and those of them that are predicted in that order.
    regret : how much longer the run predicted fastest took than the fastest; of predicted ties the slowest.
    """

    name: str
    configurations: int
    per_token: bool
    tau: float
    pairs: int
    right: int
    regret: float


class Ranking(_Data):
    """All groups, and their figures together.

    Parameters
    ----------
    mean_tau, median_tau : over groups.
    pairs, right : over all groups.
    mean_regret, worst_regret : over groups.
    """

    groups: tuple[RankingGroup, ...]
    mean_tau: float
    median_tau: float
    pairs: int
    right: int
    mean_regret: float
    worst_regret: float


def ranked_rows(rows: Iterable[RowResult]) -> list[RowResult]:
    """The rows that order is judged on: timed steps of trusted tiers, tuned ones only with their knobs recorded."""
    return [
        row
        for row in rows
        if row.time_error is not None
        and row.sizes is not None
        and row.tier in TRUSTED
        and row.tier != "probe"
        and (row.knobs_recorded or row.tier not in TUNED)
    ]


def ranking(rows: Iterable[RowResult]) -> Ranking | None:
    """How the predictions order runs of the same job; None where no group has enough of them."""
    groups: dict[tuple[str, str, int, str, int], list[RowResult]] = {}
    for row in ranked_rows(rows):
        if row.sizes is not None:
            s = row.sizes
            groups.setdefault((s.model, row.hardware, s.gpus, row.precision, s.seq_len), []).append(row)
    found = []
    for (model, hardware, gpus, precision, seq_len), some in sorted(groups.items()):
        name = f"{model}, {gpus} x {hardware}, {precision}, {seq_len} tokens"
        one = _group(name, some)
        if one is not None:
            found.append(one)
    if not found:
        return None
    return Ranking(
        groups=tuple(found),
        mean_tau=mean(g.tau for g in found),
        median_tau=median(g.tau for g in found),
        pairs=sum(g.pairs for g in found),
        right=sum(g.right for g in found),
        mean_regret=mean(g.regret for g in found),
        worst_regret=max(g.regret for g in found),
    )


def _group(name: str, rows: Sequence[RowResult]) -> RankingGroup | None:
    runs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        measured, predicted = row.measured.step_seconds, row.predicted.step_seconds
        if row.sizes is not None and measured is not None and predicted is not None:
            # Of runs of one job the batches are the same or not: the time of a token serves both.
            tokens = row.sizes.tokens
            runs.setdefault(row.sizes.model_dump_json(), []).append((measured / tokens, predicted / tokens))
    if len(runs) < LEAST:
        return None
    measured_ = [median(m for m, _ in some) for some in runs.values()]
    predicted_ = [median(p for _, p in some) for some in runs.values()]
    right = pairs = 0
    for (m, p), (n, q) in combinations(zip(measured_, predicted_, strict=True), 2):
        if max(m, n) / min(m, n) - 1 > APART:
            pairs += 1
            right += (m < n and p < q) or (m > n and p > q)
    return RankingGroup(
        name=name,
        configurations=len(runs),
        per_token=len({row.sizes.gbs for row in rows if row.sizes is not None}) > 1,
        tau=kendall_tau(measured_, predicted_),
        pairs=pairs,
        right=right,
        regret=regret(measured_, predicted_),
    )


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in opposite order, over the pairs without ties.

    Returns
    -------
    float
        -1 to 1; 0 where all values of one side are the same.
    """
    both = alone_a = alone_b = 0
    for (x, u), (y, v) in combinations(zip(a, b, strict=True), 2):
        s, t = (x > y) - (x < y), (u > v) - (u < v)
        both += s * t
        alone_a += s != 0
        alone_b += t != 0
    return both / sqrt(alone_a * alone_b) if alone_a and alone_b else 0.0


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """How much longer the one predicted fastest takes than the fastest, as a share; of predicted ties the slowest."""
    best = min(predicted)
    return max(m for m, p in zip(measured, predicted, strict=True) if p == best) / min(measured) - 1
