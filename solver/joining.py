"""The choices of one shape under a target, by joining its components one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from mbsolve.constraints.moments import COLUMN
from mbsolve.solver.columns import Ints
from mbsolve.solver.components import HUB, Component
from mbsolve.solver.rows import Rows
from mbsolve.solver.step_model import Counter, Limits, StepModel
from mbsolve.solver.tables import Features, Floats

# Partial choices times tuples beyond which a shape is left to CP-SAT.
JOIN: Final = 400_000
# Choices of one hub tuple that are kept, and choices of a shape whose rules are checked one by one.
KEPT: Final = 64
TRIED: Final = 48
OFFLOAD: Final = "optimizer_offload_fraction"

# Key features of a plan (`tie.KEY_FEATURES`): granularity, dispatcher, whether the optimizer is offloaded.
Banned = tuple[str, str, bool]


class Joiner:
    """Joins components over some shapes; the parameters are those of the shapes' `bounds.Bounder`."""

    def __init__(
        self,
        features: Features,
        kinds: dict[tuple[str, str], int],
        rows: Rows,
        model: StepModel,
        limits: Limits,
    ) -> None:
        self.features, self.kinds, self.rows, self.model, self.limits = features, kinds, rows, model, limits

    def choices(
        self,
        i: int,
        target: float,
        parts: Sequence[Component],
        hub: Ints,
        slopes: Floats,
        banned: frozenset[Banned],
    ) -> tuple[Floats, Ints] | None:
        """Steps of one shape under ``target`` over the feature tuples that fit, least first, with their tuples.

        Rules between components are relaxed. Components are joined one by one, and a partial choice is dropped
        as soon as its best completion is too slow or too large. None when there are too many to join.
        """
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
        used = memory.any(axis=1)
        memory, limit = memory[used], limit[used] * (1 + 1e-9)
        costs = []
        for part in parts:
            values = part.values[:, part.classes[i], :]
            seconds = weight[part.kinds] @ values
            if part.mask is not None:
                seconds = np.where(part.mask[i], seconds, np.inf)
            costs.append((seconds, memory[:, part.kinds] @ values))
        steps, tuples = [np.zeros(0)], [np.zeros((0, len(parts)), np.int64)]
        room = target - self.model.fixed[i]
        offload = next((c for c, p in enumerate(parts) if OFFLOAD in p.names), None)
        for h in hub.tolist():
            allowed = self._offload_allowed(h, banned)
            if not allowed or (offload is None and (self.features.values[OFFLOAD][0] > 0) not in allowed):
                continue
            slices = [part.groups.get(tuple(h[j] for j in part.hub)) for part in parts]
            if any(s is None for s in slices):
                continue
            mine = [
                (c[0][s], c[1][:, s], s.start) for c, s in zip(costs, slices, strict=True) if s is not None
            ]
            if offload is not None and len(allowed) == 1:
                part, where = parts[offload], slices[offload]
                on = np.array([v > 0 for v in self.features.values[OFFLOAD]])
                right = on[part.tuples[where, part.names.index(OFFLOAD)]] == next(iter(allowed))
                mine[offload] = (np.where(right, mine[offload][0], np.inf), *mine[offload][1:])
            floor = np.array([m[0].min() for m in mine])
            small = np.array([m[1].min(axis=1) for m in mine])
            if floor.sum() >= room or (small.sum(axis=0) > limit).any():
                continue
            order = np.argsort([len(m[0]) for m in mine], kind="stable")
            seconds, held = np.zeros(1), np.zeros((1, len(limit)))
            picks = np.zeros((1, len(parts)), np.int64)
            rest_t, rest_m = floor.sum(), small.sum(axis=0)
            for c in order:
                t, m, start = mine[c]
                rest_t, rest_m = rest_t - floor[c], rest_m - small[c]
                if len(seconds) * len(t) > JOIN:
                    return None
                all_t = seconds[:, None] + t[None, :]
                all_m = held[:, None, :] + m.T[None, :, :]
                a, b = np.nonzero((all_t + rest_t < room) & (all_m + rest_m <= limit).all(axis=2))
                seconds, held = all_t[a, b], all_m[a, b]
                picks = picks[a]
                picks[:, c] = b + start
                if not len(seconds):
                    break
            if not len(seconds):
                continue
            values = np.zeros((len(seconds), len(self.kinds)))
            for c, part in enumerate(parts):
                values[:, part.kinds] += part.values[:, part.classes[i], :][:, picks[:, c]].T
            exact = self._steps(i, values)
            few = np.argsort(exact, kind="stable")[:KEPT]
            steps.append(exact[few])
            tuples.append(picks[few])
            if len(exact) > KEPT:
                # What is cut off here is bounded by what is kept: nothing slower may be called the best.
                room = min(room, float(exact[few[-1]]) - self.model.fixed[i])
                target = min(target, float(exact[few[-1]]))
        all_steps, all_choices = np.concatenate(steps), np.vstack(tuples)
        keep = np.argsort(all_steps, kind="stable")
        keep = keep[all_steps[keep] < target]
        return np.append(all_steps[keep], target), np.vstack(
            [all_choices[keep], np.zeros((1, len(parts)), np.int64)]
        )

    def _offload_allowed(self, hub: Sequence[int], banned: frozenset[Banned]) -> set[bool]:
        """Whether optimizer offload may be off or on under one hub tuple."""
        granularity = self.features.values["recompute_granularity"][hub[HUB.index("recompute_granularity")]]
        dispatcher = self.features.values["dispatcher"][hub[HUB.index("dispatcher")]]
        return {False, True} - {on for g, d, on in banned if (g, d) == (granularity, dispatcher)}

    def _steps(self, i: int, values: Floats) -> Floats:
        """Seconds of one shape for many kind values."""
        n = len(values)
        stages = self.rows.stages[np.full(n, i)]
        counter = Counter(
            self.kinds, Rows(stages, self.rows.ranks[i : i + 1], np.zeros((n, 1, len(COLUMN)), np.int64))
        )
        model = self.model.at(np.array([i]))
        seconds, _ = model.step(counter.passes(values))
        return np.asarray(seconds + values[:, counter.tail].sum(axis=1))


def first_legal(
    found: tuple[Floats, Ints] | None, legal: Callable[[Ints], bool]
) -> tuple[float, Ints | None]:
    """(bound, tuples of the least legal choice) of a list whose last entry only says where it was cut."""
    if found is None:
        return -np.inf, None
    steps, choices = found
    for k in range(min(len(steps) - 1, TRIED)):
        if legal(choices[k]):
            return float(steps[k]), choices[k]
    return float(steps[min(len(steps) - 1, TRIED)]), None
