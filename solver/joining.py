"""The choices of one shape under a target, by joining its components one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.solver.columns import Ints
from mbsolve.solver.components import HUB, Component, linked
from mbsolve.solver.rows import Rows
from mbsolve.solver.step_model import PASS_ROWS, Counter, Limits, StepModel, leading
from mbsolve.solver.tables import Features, Floats

# Partial choices times tuples beyond which a shape is left to CP-SAT.
JOIN: Final = 400_000
# Choices of one hub tuple that are kept, and choices of a shape whose rules are checked one by one.
KEPT: Final = 64
TRIED: Final = 48
OFFLOAD: Final = "optimizer_offload_fraction"

# Key features of a plan (`tie.KEY_FEATURES`): granularity, dispatcher, whether the optimizer is offloaded.
Key = tuple[str, str, bool]
KEY_HUB: Final = ("recompute_granularity", "dispatcher")

# The tuples of a component under one hub tuple: seconds, bytes at every moment, and their numbers.
Choice = tuple[Floats, Floats, Ints]


@dataclass(frozen=True)
class Listed:
    """The choices of a shape with one key under some seconds, least first.

    Parameters
    ----------
    seconds, tuples : step of each choice, and its tuple of each component.
    cut : nothing that is not listed is faster than this.
    """

    seconds: Floats
    tuples: Ints
    cut: float

    def first(self, legal: Callable[[Ints], bool]) -> tuple[float, Ints | None]:
        """(bound on the key's plans, tuples of the least legal choice)."""
        for k in range(min(len(self.seconds), TRIED)):
            if legal(self.tuples[k]):
                return float(self.seconds[k]), self.tuples[k]
        return (float(self.seconds[TRIED]) if len(self.seconds) > TRIED else self.cut), None


class Joiner:
    """Joins components over some shapes; the parameters are those of the shapes' `bounds.Bounder` and `Raised`."""

    def __init__(
        self,
        features: Features,
        kinds: dict[tuple[str, str], int],
        rows: Rows,
        model: StepModel,
        limits: Limits,
        parts: Sequence[Component],
        hub: Ints,
    ) -> None:
        self.features, self.kinds, self.rows, self.model, self.limits = features, kinds, rows, model, limits
        self.parts, self.hub = parts, hub
        self.linked = linked(features, [part.names for part in parts])
        # For each value of the offloaded fraction, whether anything is offloaded.
        self.on = np.array([v > 0 for v in features.values[OFFLOAD]])
        self.flags = sorted(set(self.on.tolist()))
        self.timed = [k for (row, _), k in kinds.items() if row in (*PASS_ROWS, "tail")]

    def choices(self, i: int, room: Callable[[Key], float], slopes: Floats) -> dict[Key, Listed] | None:
        """Feature tuples of one shape that fit, for each key those faster than its ``room`` in seconds.

        Rules between components are relaxed. Components are joined one by one, and a partial choice is dropped
        as soon as its best completion is too slow or too large. None when there are too many to join.
        """
        costs, limit = self._costs(i, slopes)
        cache: dict[tuple[int, int], Choice] = {}
        found: dict[Key, list[tuple[Floats, Ints, float]]] = {}
        for h in self.hub.tolist():
            slices = [part.groups.get(tuple(h[j] for j in part.hub)) for part in self.parts]
            if any(where is None for where in slices):
                continue
            granularity, dispatcher = (self.features.values[n][h[HUB.index(n)]] for n in KEY_HUB)
            rooms = {on: room((granularity, dispatcher, on)) for on in self.flags}
            fastest = sum(float(c[0][where].min()) for c, where in zip(costs, slices, strict=True))
            for on in self.flags:
                found.setdefault((granularity, dispatcher, on), [])
            if fastest + self.model.fixed[i] >= max(rooms.values()):
                continue
            mine: list[Choice] = []
            for c, where in enumerate(slices):
                assert where is not None
                if (c, where.start) not in cache:
                    numbers = np.arange(where.start, where.stop)
                    choice = costs[c][0][where], costs[c][1][:, where], numbers
                    cache[c, where.start] = self._useful(i, self.parts[c], choice)
                mine.append(cache[c, where.start])
            for on, restricted in self._offload(mine):
                key = granularity, dispatcher, on
                most = rooms[on]
                joined = self._join(restricted, most - self.model.fixed[i], limit)
                if joined is None:
                    return None
                if not len(joined):
                    continue
                exact = self._steps(i, joined)
                few = np.flatnonzero(exact < most)
                few = few[np.argsort(exact[few], kind="stable")]
                # What is cut off here is bounded by what is kept: nothing slower may be called the best.
                cut = float(exact[few[KEPT]]) if len(few) > KEPT else most
                few = few[:KEPT]
                found[key].append((exact[few], joined[few], cut))
        return {key: _listed(some, room(key)) for key, some in found.items()}

    def _costs(self, i: int, slopes: Floats) -> tuple[list[tuple[Floats, Floats]], Floats]:
        """For each component, seconds and bytes at every moment of its tuples; and the limit of every moment."""
        none = np.zeros((1, self.rows.moments.shape[1]))
        single = Counter(
            self.kinds,
            Rows(self.rows.stages[i : i + 1], self.rows.ranks[i : i + 1], self.rows.moments[i : i + 1]),
        )
        weight = single.weights(slopes[None], none, none)[0]
        memory = np.zeros((2 * none.shape[1], len(self.kinds)))
        for pairs, start in ((single.device, 0), (single.host, none.shape[1])):
            for k, c in pairs:
                memory[start : start + none.shape[1], k] = self.rows.moments[i, :, c]
        limit = np.concatenate(
            [np.full(none.shape[1], self.limits.device[i]), np.full(none.shape[1], self.limits.host)]
        )
        # Device and host have no kinds in common.
        some = np.concatenate(
            [
                start + leading(memory[start : start + none.shape[1]], *self._range(i))
                for start in (0, none.shape[1])
            ]
        )
        memory, limit = memory[some], limit[some] * (1 + 1e-9)
        costs = []
        for part in self.parts:
            values = part.values[:, part.classes[i], :]
            seconds = weight[part.kinds] @ values
            allowed = part.allowed(np.array([i]))
            if allowed is not None:
                seconds = np.where(allowed[0], seconds, np.inf)
            costs.append((seconds, memory[:, part.kinds] @ values))
        return costs, limit

    def _range(self, i: int) -> tuple[Floats, Floats]:
        """The least and the most that each kind may be for one shape."""
        low, high = np.zeros(len(self.kinds)), np.zeros(len(self.kinds))
        for part in self.parts:
            values = part.values[:, part.classes[i], :]
            low[part.kinds] += values.min(axis=1)
            high[part.kinds] += values.max(axis=1)
        return low, high

    def _offload(self, mine: Sequence[Choice]) -> Iterator[tuple[bool, Sequence[Choice]]]:
        """The choices without and with optimizer offload."""
        at = next((c for c, p in enumerate(self.parts) if OFFLOAD in p.names), None)
        if at is None:
            yield bool(self.on[0]), mine
            return
        seconds, held, numbers = mine[at]
        some = self.parts[at].tuples[numbers, self.parts[at].names.index(OFFLOAD)]
        for flag in self.flags:
            right = self.on[some] == flag
            if right.any():
                yield flag, [*mine[:at], (seconds[right], held[:, right], numbers[right]), *mine[at + 1 :]]

    def _useful(self, i: int, part: Component, choice: Choice) -> Choice:
        """The tuples of a component under one hub tuple, without those that another one makes useless.

        One tuple makes another useless when it costs a shape no more of any kind of time and no more bytes at any
        moment, and has the same values wherever a rule ties the component to another or the key tells them apart.
        The step is no less for more time of any kind, so no plan is lost that the other tuple would not equal.
        """
        seconds, held, numbers = choice
        places = [j for j, name in enumerate(part.names) if name in self.linked]
        tied = part.tuples[numbers][:, places]
        if OFFLOAD in part.names:
            # Plans with and without it have different keys.
            tied = np.column_stack([tied, self.on[part.tuples[numbers, part.names.index(OFFLOAD)]]])
        time = np.isin(part.kinds, self.timed)
        costs = np.vstack([part.values[time, part.classes[i]][:, numbers], held])
        no_more = (costs[:, :, None] <= costs[:, None, :]).all(axis=0)
        no_more &= (tied[:, None, :] == tied[None, :, :]).all(axis=2)
        # What the rules forbid makes nothing useless; of equals the first one is kept.
        no_more &= np.isfinite(seconds)[:, None]
        better = no_more & (~no_more.T | np.tri(len(numbers), k=-1, dtype=bool).T)
        keep = np.isfinite(seconds) & ~better.any(axis=0)
        return seconds[keep], held[:, keep], numbers[keep]

    @staticmethod
    def _join(mine: Sequence[Choice], room: float, limit: Floats) -> Ints | None:
        """The tuples of every choice under one hub tuple that may be fast and small enough; None if too many."""
        none = np.zeros((0, len(mine)), np.int64)
        floor = np.array([m[0].min() for m in mine])
        small = np.array([m[1].min(axis=1) for m in mine])
        if floor.sum() >= room or (small.sum(axis=0) > limit).any():
            return none
        seconds, held = np.zeros(1), np.zeros((1, len(limit)))
        picks = np.zeros((1, len(mine)), np.int64)
        rest_t, rest_m = floor.sum(), small.sum(axis=0)
        for c in np.argsort([len(m[0]) for m in mine], kind="stable"):
            t, m, numbers = mine[c]
            rest_t, rest_m = rest_t - floor[c], rest_m - small[c]
            if len(seconds) * len(t) > JOIN:
                return None
            all_t = seconds[:, None] + t[None, :]
            a, b = np.nonzero(all_t + rest_t < room)
            both = held[a] + m.T[b]
            fit = (both + rest_m <= limit).all(axis=1)
            a, b, held = a[fit], b[fit], both[fit]
            seconds, picks = all_t[a, b], picks[a]
            picks[:, c] = numbers[b]
            if not len(seconds):
                return none
        return picks

    def _steps(self, i: int, picks: Ints) -> Floats:
        """Seconds of one shape for some choices."""
        n = len(picks)
        values = np.zeros((n, len(self.kinds)))
        for c, part in enumerate(self.parts):
            values[:, part.kinds] += part.values[:, part.classes[i], :][:, picks[:, c]].T
        stages = self.rows.stages[np.full(n, i)]
        counter = Counter(
            self.kinds, Rows(stages, self.rows.ranks[i : i + 1], np.zeros((n, 1, len(COLUMN)), np.int64))
        )
        model = self.model.at(np.array([i]))
        seconds, _ = model.step(counter.passes(values))
        return np.asarray(seconds + values[:, counter.tail].sum(axis=1))


def _listed(found: Sequence[tuple[Floats, Ints, float]], room: float) -> Listed:
    """The choices of one key under all hub tuples; what is past the least cut is not told apart."""
    cut = min((c for _, _, c in found), default=room)
    if not found:
        return Listed(np.zeros(0), np.zeros((0, 0), np.int64), cut)
    seconds, tuples = np.concatenate([s for s, _, _ in found]), np.vstack([t for _, t, _ in found])
    keep = np.argsort(seconds, kind="stable")
    keep = keep[seconds[keep] < cut]
    return Listed(seconds[keep], tuples[keep], cut)
