"""Lower bounds on the step time of shapes, by Lagrangian duality over the features.

The step is a convex, degree-one function of the rows of the stages, and every row is linear in the term
values. So for any point the tangent of the step there, plus any non-negative prices on the memory rows,
bounds the step from below once it is minimised over the features; and that minimum falls apart into
components of features that share no term, once a few hub features are held fixed. Rules between components
are relaxed to what they allow inside each, which keeps the bound valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.components import HUB, Component, components
from mbsolve.solver.joining import Banned, Joiner, first_legal
from mbsolve.solver.prices import active, stride
from mbsolve.solver.rows import Rows
from mbsolve.solver.step_model import (
    PASS_ROWS,
    Counter,
    Limits,
    StepModel,
    collectives,
    constant,
    kinds_of,
    least_values,
    limits_of,
    soft_max,
)
from mbsolve.solver.tables import Bools, Features, Floats, TermTable

__all__ = [
    "HUB",
    "PASS_ROWS",
    "Banned",
    "Bounder",
    "Component",
    "Counter",
    "Limits",
    "Raised",
    "StepModel",
    "collectives",
    "components",
    "constant",
    "kinds_of",
    "least_values",
    "limits_of",
    "soft_max",
]


@dataclass(frozen=True)
class Raised:
    """What `Bounder.dual` found, one entry for each shape.

    Parameters
    ----------
    bound : seconds; infinite where no feature tuple is legal.
    reached : the target that the bound was raised towards; less than asked where a better plan was found first.
    estimate : seconds of the best relaxed minimiser that fits, infinite where none did.
    chosen : the tuple of each of ``parts`` for that minimiser.
    """

    bound: Floats
    reached: Floats
    estimate: Floats
    chosen: Ints
    parts: list[Component]


def _leading(counts: Floats, low: Floats, high: Floats) -> Ints:
    """Rows that no other row exceeds for every kind value between ``low`` and ``high``."""
    keep: list[int] = []
    for i in np.argsort(-(counts @ (low + high)), kind="stable"):
        more = counts[i] - counts[keep]
        if not keep or ((np.maximum(more, 0) @ high - np.maximum(-more, 0) @ low) > 0).all():
            keep.append(int(i))
    return np.array(sorted(keep), np.int64)


class Bounder:
    """Bounds and relaxed minimisers of a set of shapes; see the module's text.

    Parameters
    ----------
    job, features : the job and the domains and rules of its features.
    shapes, rows, tables : shapes with their counts and term tables.
    vpp : virtual stages of each shape, where ``shapes`` do not have them yet.
    least : what `least` would compute, where it is known.
    """

    def __init__(
        self,
        job: Job,
        features: Features,
        shapes: Columns,
        rows: Rows,
        tables: Sequence[TermTable],
        vpp: Ints | None = None,
        least: Floats | None = None,
    ) -> None:
        self.shapes, self.rows, self.tables = shapes, rows, tables
        self.kinds = kinds_of([t.term for t in self.tables])
        self.counter = Counter(self.kinds, rows)
        self.model = StepModel(shapes, rows.ranks, collectives(job, shapes, self.tables), vpp)
        self.limits = limits_of(job, self.tables, shapes.rows)
        self.features = features
        self.full = shapes.array("recompute_method") != "none"
        self._least: dict[bool, Floats] = {} if least is None else {False: least}

    def least(self, most: bool = False) -> Floats:
        """`least_values` of these shapes."""
        if most not in self._least:
            self._least[most] = least_values(
                self.tables, self.kinds, self.shapes.rows, most, self.features, self.full
            )
        return self._least[most]

    def cheap(self) -> tuple[Floats, Floats, Floats]:
        """(seconds, device bytes over the limit, host bytes over the limit) with every term at its least."""
        values = self.least()
        seconds, _ = self.model.step(self.counter.passes(values))
        device, host = self.counter.memory(values)
        tail = values[:, self.counter.tail].sum(axis=1)
        return (
            seconds + tail,
            device.max(axis=1) - self.limits.device,
            host.max(axis=1) - self.limits.host,
        )

    def binding(self, everything: bool = False) -> Bools:
        """(shapes, moments): those that may decide whether a shape fits.

        Left out are moments that stay under the limit whatever the features are (unless ``everything``), and
        repeats of the first one.
        """
        device, host = self.counter.memory(self.least(most=True))
        keep = (device > self.limits.device[:, None]) | (host > self.limits.host) | everything
        repeats = (self.rows.moments == self.rows.moments[:, :1]).all(axis=2)
        repeats[:, 0] = False
        return np.asarray(keep & ~repeats)

    def leading(self) -> Ints:
        """The moments of each shape that no other exceeds whatever the features are, padded with zeros."""
        low, high = self.least(), self.least(most=True)
        pairs = [*self.counter.device, *self.counter.host]
        kinds, columns = [k for k, _ in pairs], [c for _, c in pairs]
        found = [
            rows[_leading(rows[:, columns].astype(float), low[i, kinds], high[i, kinds])]
            for i, rows in enumerate(self.rows.moments)
        ]
        out = np.zeros((len(found), max(len(f) for f in found), self.rows.moments.shape[2]), np.int64)
        for i, rows in enumerate(found):
            out[i, : len(rows)] = rows
        return out

    def minimise(self, parts: Sequence[Component], hub: Ints, weights: Floats) -> tuple[Floats, Floats, Ints]:
        """Least weighted sum over the features: (value, kind values, chosen tuple of each component)."""
        n = len(weights)
        every = np.arange(n)
        total = np.zeros((n, len(hub)))
        picks: list[dict[tuple[int, ...], Ints]] = []
        for part in parts:
            cost = np.zeros((n, len(part.tuples)))
            for j, kind in enumerate(part.kinds):
                cost += weights[:, kind, None] * part.values[j][part.classes]
            if part.mask is not None:
                cost[~part.mask] = np.inf
            least, pick = {}, {}
            for key, where in part.groups.items():
                pick[key] = cost[:, where].argmin(axis=1) + where.start
                least[key] = cost[every, pick[key]]
            picks.append(pick)
            for h, values in enumerate(hub.tolist()):
                key = tuple(values[i] for i in part.hub)
                total[:, h] += least.get(key, np.inf)
        best = total.argmin(axis=1)
        chosen = np.zeros((n, len(parts)), np.int64)
        values_of = np.zeros((n, len(self.kinds)))
        for c, part in enumerate(parts):
            keys = [tuple(values[i] for i in part.hub) for values in hub.tolist()]
            for h in np.unique(best):
                rows = np.flatnonzero(best == h)
                if keys[h] in picks[c]:
                    chosen[rows, c] = picks[c][keys[h]][rows]
            for j, kind in enumerate(part.kinds):
                values_of[:, kind] += part.values[j][part.classes, chosen[:, c]]
        return total[every, best], values_of, chosen

    def dual(
        self,
        target: float,
        rounds: int = 14,
        limited: bool = True,
        legal: Callable[[int, Ints], bool] | None = None,
        banned: Sequence[frozenset[Banned]] | None = None,
    ) -> Raised:
        """Raise the bounds towards ``target`` seconds.

        Parameters
        ----------
        target : seconds; shapes whose bound reaches it are done.
        rounds : steps of the prices.
        limited : whether the memory budgets count.
        legal : (shape, tuple of each component) -> whether all rules hold; with it, what stays under the target
            is searched exactly.
        banned : for each shape, the key features that a plan of it must not have.
        """
        parts, hub = components(self.features, self.shapes, self.tables, self.kinds)
        n = self.shapes.rows
        bound, estimate = np.full(n, -np.inf), np.full(n, np.inf)
        chosen = np.zeros((n, len(parts)), np.int64)
        reached = np.full(n, target)
        view, mine, left = self, parts, np.arange(n)
        device = np.zeros(self.rows.moments.shape[:2])
        host = np.zeros_like(device)
        point = self.counter.passes(self.least())
        for turn in range(rounds):
            slopes = view.model.step(point)[1]
            least, values, pick = view.minimise(mine, hub, view.counter.weights(slopes, device, host))
            value = (
                least
                + view.model.fixed
                - device.sum(axis=1) * view.limits.device
                - host.sum(axis=1) * view.limits.host
            )
            bound[left] = np.maximum(bound[left], value)
            rows = view.counter.passes(values)
            seconds = view.model.step(rows)[0] + values[:, view.counter.tail].sum(axis=1)
            over, over_host = view.excess(values, limited)
            fits = (over <= 0).all(axis=1) & (over_host <= 0).all(axis=1)
            better = fits & (seconds < estimate[left])
            estimate[left[better]] = seconds[better]
            chosen[left[better]] = pick[better]
            going = (bound[left] < target) & np.isfinite(bound[left])
            if not going.any() or turn == rounds - 1:
                break
            rate = 1.0 / (turn + 1) if turn < 3 else 0.3
            point = point + rate * (rows - point)
            length = stride(value, estimate[left], target, over, over_host, device, host)
            device = np.maximum(0.0, device + length * active(over, device) / view.limits.device[:, None])
            host = np.maximum(0.0, host + length * active(over_host, host) / view.limits.host)
            if going.sum() < 0.7 * len(left):
                keep = np.flatnonzero(going)
                view, mine = view.subset(keep, with_tables=False), [p.take(keep) for p in mine]
                left, device, host, point = left[keep], device[keep], host[keep], point[keep]
        if legal is not None and np.isfinite(target):
            slopes = view.model.step(point)[1]
            joiner = Joiner(view.features, view.kinds, view.rows, view.model, view.limits)
            goal = target
            for k in np.argsort(bound[left], kind="stable"):
                i = left[k]
                if bound[i] < target:
                    reached[i] = goal
                if not bound[i] < goal:
                    continue
                out = banned[int(i)] if banned is not None else frozenset()
                found = joiner.choices(int(k), goal, mine, hub, slopes[k], out)
                value, best = first_legal(found, partial(legal, int(i)))
                # Nothing under the goal says no more than that: a later search may aim higher.
                bound[i] = max(bound[i], min(value, goal))
                if best is not None:
                    estimate[i], chosen[i] = value, best
                    goal = min(goal, value + self.model.rounding(int(i), len(self.tables)))
        return Raised(bound, reached, estimate, chosen, parts)

    def mixed(self, target: float, ways: int, rounds: int, limited: bool = True) -> Floats:
        """Bounds in seconds of groups of ``ways`` successive shapes and of every mixture of a group.

        A mixture is bounded by what its members cost at *common* prices and a common tangent, so each group has
        one vector of prices and one point; the least member speaks for the group in every round.
        """
        parts, hub = components(self.features, self.shapes, self.tables, self.kinds)
        first = np.arange(0, self.shapes.rows, ways)
        model, limits = self.model.at(first), Limits(self.limits.device[first], self.limits.host)
        device = np.zeros((len(first), self.rows.moments.shape[1]))
        host = np.zeros_like(device)
        point = self.counter.passes(self.least())[first]
        bound, estimate = np.full(len(first), -np.inf), np.full(len(first), np.inf)
        for turn in range(rounds):
            slopes = np.repeat(model.step(point)[1], ways, axis=0)
            every = [np.repeat(price, ways, axis=0) for price in (device, host)]
            least, values, _ = self.minimise(parts, hub, self.counter.weights(slopes, *every))
            pick = first + least.reshape(-1, ways).argmin(axis=1)
            value = (
                least[pick]
                + model.fixed
                - device.sum(axis=1) * limits.device
                - host.sum(axis=1) * limits.host
            )
            bound = np.maximum(bound, value)
            if (bound >= target).all():
                break
            rows = self.counter.passes(values)[pick]
            over, over_host = (part[pick] for part in self.excess(values, limited))
            fits = (over <= 0).all(axis=1) & (over_host <= 0).all(axis=1)
            seconds = model.step(rows)[0] + values[pick][:, self.counter.tail].sum(axis=1)
            estimate = np.where(fits, np.minimum(estimate, seconds), estimate)
            rate = 1.0 / (turn + 1) if turn < 3 else 0.3
            point = point + rate * (rows - point)
            length = stride(value, estimate, target, over, over_host, device, host)
            device = np.maximum(0.0, device + length * active(over, device) / limits.device[:, None])
            host = np.maximum(0.0, host + length * active(over_host, host) / limits.host)
        return bound

    def subset(self, index: Ints, with_tables: bool = True) -> Bounder:
        """The same for some of the shapes; without tables it serves the rounds of `dual` only."""
        out = copy(self)
        out.rows, out.full = self.rows.take(index), self.full[index]
        if with_tables:
            out.shapes = self.shapes.take(index)
            out.tables = [replace(t, classes=t.classes[index]) for t in self.tables]
        out.counter, out.model = Counter(self.kinds, out.rows), self.model.at(index)
        out.limits = Limits(self.limits.device[index], self.limits.host)
        out._least = {most: values[index] for most, values in self._least.items()}
        return out

    def excess(self, values: Floats, limited: bool) -> tuple[Floats, Floats]:
        """How far each moment is over the limits of device and host, relative to them."""
        device, host = self.counter.memory(values)
        over = (device - self.limits.device[:, None]) / self.limits.device[:, None]
        over_host = (host - self.limits.host) / self.limits.host
        return (over, over_host) if limited else (np.minimum(over, 0.0), np.minimum(over_host, 0.0))

    def least_peak(self) -> Floats:
        """Bytes that the fullest moment of each shape cannot go below: each moment minimised on its own."""
        parts, hub = components(self.features, self.shapes, self.tables, self.kinds)
        flat = np.zeros((*self.rows.stages.shape[:2], len(PASS_ROWS)))
        none = np.zeros(self.rows.moments.shape[:2])
        out = np.zeros(self.shapes.rows)
        for r in range(self.rows.moments.shape[1]):
            device = none.copy()
            device[:, r] = 1.0
            weights = self.counter.weights(flat, device, none)
            weights[:, self.counter.tail] = 0.0
            out = np.maximum(out, self.minimise(parts, hub, weights)[0])
        return out
