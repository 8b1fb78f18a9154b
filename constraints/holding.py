"""What a pipeline rank holds: the terms of a row at each of its moments, and what the ranks of a node hold together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.evaluation import TermValue
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import Moments
from mbsolve.constraints.rule import Term

__all__ = ["KINDS", "Held", "Kind", "Node", "fullest_node", "held"]

Kind = Literal["between", "pass", "optimizer"]
KINDS: tuple[Kind, ...] = ("between", "pass", "optimizer")
"""Between two steps, in a forward or backward pass, in the step of the optimizer."""


class Held(NamedTuple):
    """The terms of a row on one pipeline rank.

    Parameters
    ----------
    terms : the terms of the row.
    moments : the moments of the rank.
    parts : bytes, of shape (moments, terms).
    totals : bytes of each moment.
    pool : bytes of each moment that are reserved, but not counted as allocated.
    """

    terms: tuple[Term, ...]
    moments: Moments
    parts: NDArray[np.float64]
    totals: NDArray[np.float64]
    pool: NDArray[np.float64]

    @property
    def allocated(self) -> NDArray[np.float64]:
        """Bytes of each moment that count as allocated."""
        return self.totals - self.pool

    @property
    def peak(self) -> int:
        """Index of the fullest moment."""
        return int(self.totals.argmax())

    def fullest(self, kind: Kind) -> int:
        """Index of the fullest moment of a kind; a rank without passes is in them as it is between steps."""
        rest = self.moments.counts[:, COLUMN["at_rest"]].astype(bool)
        step = self.moments.counts[:, COLUMN["at_optimizer"]].astype(bool)
        mine = {"between": rest & ~step, "pass": ~rest & ~step, "optimizer": step}
        index = np.flatnonzero(mine[kind] if mine[kind].any() else mine["between"])
        return int(index[self.totals[index].argmax()])

    def at(self, moment: int) -> tuple[TermValue, ...]:
        """The terms at a moment, those of no bytes left out; they add up to its total."""
        return tuple(
            TermValue(name=t.name, bytes=float(b), stage=self.moments.rank, source=str(t.source))
            for t, b in zip(self.terms, self.parts[moment], strict=True)
            if b
        )


def held(terms: Sequence[tuple[Term, float]], moments: Moments) -> Held:
    """What some priced terms come to at each moment of a pipeline rank: counts times bytes."""
    index = np.array([COLUMN[t.per] for t, _ in terms], np.int64)
    parts: NDArray[np.float64] = moments.counts[:, index].astype(float) * np.array(
        [v for _, v in terms], float
    )
    totals = parts.sum(axis=1)
    return Held(tuple(t for t, _ in terms), moments, parts, totals, np.zeros_like(totals))


class Node(NamedTuple):
    """A host of the job: its number, the bytes that its ranks hold, and how many of them are on each pipeline rank."""

    number: int
    bytes: float
    ranks: dict[int, int]


def fullest_node(stages: Sequence[float], gpus: int, gpus_per_node: int) -> Node:
    """The host whose ranks hold most.

    Ranks are numbered with tensor, context and data parallelism innermost and the pipeline outermost, and fill one host
    after the other: a host may hold ranks of several pipeline ranks, or only a part of one.

    Parameters
    ----------
    stages : bytes of a rank of each pipeline rank, first to last.
    """
    size = max(1, gpus // len(stages))
    last = len(stages) - 1
    # Hosts inside one pipeline rank are alike: only its first one, its first whole one and its last one are looked at.
    seen = {
        host
        for stage in range(len(stages))
        for host in (
            stage * size // gpus_per_node,
            stage * size // gpus_per_node + 1,
            (stage * size + size - 1) // gpus_per_node,
        )
        if host * gpus_per_node < gpus
    }
    best: Node | None = None
    for host in sorted(seen):
        begin, end = host * gpus_per_node, min((host + 1) * gpus_per_node, gpus)
        first, final = min(begin // size, last), min((end - 1) // size, last)
        ranks = {
            s: (end if s == last else min(end, (s + 1) * size)) - max(begin, s * size)
            for s in range(first, final + 1)
        }
        total = sum(stages[s] * n for s, n in ranks.items())
        if best is None or total > best.bytes:
            best = Node(host, total, ranks)
    assert best is not None
    return best
