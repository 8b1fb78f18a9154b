"""Lower bounds on the step time of shapes, by Lagrangian duality over the features.

The step is a convex, degree-one function of the rows of the stages, and every row is linear in the term
values. So for any point the tangent of the step there, plus any non-negative prices on the memory rows,
bounds the step from below once it is minimised over the features; and that minimum falls apart into
components of features that share no term, once a few hub features are held fixed. Rules between components
are relaxed to what they allow inside each, which keeps the bound valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import reserved_factor
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.components import HUB, Component, components
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
    leading,
    least_values,
    limits_of,
    soft_max,
)
from mbsolve.solver.tables import Bools, Features, Floats, TermTable

__all__ = [
    "HUB",
    "PASS_ROWS",
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
    """What `Bounder.dual` found, one entry for each group of shapes.

    Parameters
    ----------
    bound : seconds; infinite where no feature tuple is legal.
    estimate : seconds of the best relaxed minimiser that fits, infinite where none did.
    chosen : the tuple of each of ``parts`` for that minimiser.
    parts, hub : the components of the shapes.
    left : groups that were not given up early.
    slopes : the tangent of each of these at its last point.
    prices : (groups, 2, moments) last prices.
    """

    bound: Floats
    estimate: Floats
    chosen: Ints
    parts: list[Component]
    hub: Ints
    left: Ints
    slopes: Floats
    prices: Floats


class Bounder:
    """Bounds and relaxed minimisers of a set of shapes; see the module's text.

    Parameters
    ----------
    job, features : the job and the domains and rules of its features.
    shapes, rows, tables : shapes with their counts and term tables.
    vpp : virtual stages of each shape, where ``shapes`` do not have them yet.
    """

    def __init__(
        self,
        job: Job,
        features: Features,
        shapes: Columns,
        rows: Rows,
        tables: Sequence[TermTable],
        vpp: Ints | None = None,
    ) -> None:
        self.shapes, self.rows, self.tables = shapes, rows, tables
        self.kinds = kinds_of([t.term for t in self.tables])
        self.counter = Counter(self.kinds, rows)
        self.model = StepModel(shapes, rows.ranks, collectives(job, shapes, self.tables), vpp)
        self.limits = limits_of(job, self.tables, shapes.rows)
        self.context = constant(self.tables, "context_bytes", shapes.rows)
        self.reserve = reserved_factor(job)
        self.features = features
        self.full = shapes.array("recompute_method") != "none"
        self._least: dict[bool, Floats] = {}
        self._parts: tuple[list[Component], Ints] | None = None
        self._origin: tuple[Bounder, Ints] | None = None

    def components(self) -> tuple[list[Component], Ints]:
        """`components.components` of these shapes."""
        if self._parts is None:
            if self._origin is not None:
                origin, index = self._origin
                parts, hub = origin.components()
                self._parts = [part.take(index) for part in parts], hub
            else:
                self._parts = components(self.features, self.shapes, self.tables, self.kinds)
        return self._parts

    def moved(self, index: Ints, shapes: Columns, rows: Rows, vpp: Ints | None = None) -> Bounder:
        """A bounder of other shapes that cost what the shapes at ``index`` do, but have other counts.

        It has no tables of its own: ``tables`` are still those of these shapes.
        """
        out = self._at(index, shapes, rows)
        out.model = StepModel(shapes, rows.ranks, self.model.fixed[index], vpp)
        return out

    def subset(self, index: Ints) -> Bounder:
        """The same for some of the shapes; ``tables`` are still those of all."""
        out = self._at(index, self.shapes.take(index), self.rows.take(index))
        out.model = self.model.at(index)
        return out

    def _at(self, index: Ints, shapes: Columns, rows: Rows) -> Bounder:
        """What `moved` and `subset` have in common: all but the model."""
        out = copy(self)
        out.shapes, out.rows, out.full = shapes, rows, self.full[index]
        out.counter = Counter(self.kinds, rows)
        out.limits, out.context = Limits(self.limits.device[index], self.limits.host), self.context[index]
        out._origin, out._parts, out._least = (self, index), None, {}
        return out

    def least(self, most: bool = False) -> Floats:
        """`least_values` of these shapes."""
        if most not in self._least:
            if self._origin is not None:
                origin, index = self._origin
                self._least[most] = origin.least(most)[index]
            else:
                self._least[most] = least_values(
                    self.tables, self.kinds, self.shapes.rows, most, self.features, self.full
                )
        return self._least[most]

    def cheap(self, ways: int = 1) -> tuple[Floats, Floats, Floats]:
        """(seconds, device bytes, host bytes) that groups and their mixtures take at least, every term at its least."""
        values = self.least()
        rows, tail = self.counter.passes(values), values[:, self.counter.tail].sum(axis=1)
        device, host = self.counter.memory(values)
        model = self.model
        if ways > 1:
            # The step is convex: a mixture may be faster than its members, but no row of it is below theirs.
            rows, tail, device, host = (
                v.reshape(-1, ways, *v.shape[1:]).min(axis=1) for v in (rows, tail, device, host)
            )
            model = model.at(np.arange(0, len(values), ways))
        return model.step(rows)[0] + tail, device.max(axis=1), host.max(axis=1)

    def binding(self, everything: bool = False) -> Bools:
        """(shapes, moments): those that may decide whether a shape fits.

        Left out are moments that stay under the limit whatever the features are (unless ``everything``), and
        repeats of the first one.
        """
        device, host = self.counter.memory(self.least(most=True))
        near = self._rounding()
        keep = (device > self.limits.device[:, None] - near) | (host > self.limits.host - near) | everything
        repeats = (self.rows.moments == self.rows.moments[:, :1]).all(axis=2)
        repeats[:, 0] = False
        return np.asarray(keep & ~repeats)

    def _rounding(self) -> float:
        """Bytes by which rounding every term to quanta may raise a moment."""
        return float(BYTES_PER_QUANTUM * (len(self.tables) + 2))

    def leading(self, i: int, some: Bools) -> Ints:
        """Of some moments of a shape, those that no other exceeds whatever the features are."""
        low, high = self.least()[i], self.least(most=True)[i]
        rows = self.rows.moments[i][some]
        # Device and host have no kinds in common: a moment leads when it does on either.
        keep: set[int] = set()
        for pairs in (self.counter.device, self.counter.host):
            kinds, columns = [k for k, _ in pairs], [c for _, c in pairs]
            if kinds and len(rows):
                found = leading(rows[:, columns].astype(float), low[kinds], high[kinds], self._rounding())
                keep.update(found.tolist())
        return np.asarray(rows[sorted(keep)])

    def minimise(self, parts: Sequence[Component], hub: Ints, weights: Floats) -> tuple[Floats, Floats, Ints]:
        """Least weighted sum over the features: (value, kind values, chosen tuple of each component)."""
        n = len(weights)
        if not len(hub) or any(not len(part.tuples) for part in parts):
            return np.full(n, np.inf), np.zeros((n, len(self.kinds))), np.zeros((n, len(parts)), np.int64)
        every = np.arange(n)
        total = np.zeros((n, len(hub)))
        costs = []
        for part in parts:
            cost = part.cost(weights)
            allowed = part.allowed()
            if allowed is not None:
                cost[~allowed] = np.inf
            costs.append(cost)
            least = np.full((n, len(part.starts) + 1), np.inf)
            np.minimum.reduceat(cost, part.starts, axis=1, out=least[:, :-1])
            total += least[:, part.of_hub]
        best = total.argmin(axis=1)
        chosen = np.zeros((n, len(parts)), np.int64)
        values_of = np.zeros((n, len(self.kinds)))
        hubs = np.unique(best)
        for c, part in enumerate(parts):
            ends = np.append(part.starts[1:], len(part.tuples))
            for g in np.unique(part.of_hub[hubs]):
                if g < len(part.starts):
                    rows = np.flatnonzero(part.of_hub[best] == g)
                    where = slice(part.starts[g], ends[g])
                    chosen[rows, c] = costs[c][rows, where].argmin(axis=1) + where.start
            values_of[:, part.kinds] += part.values[:, part.classes, chosen[:, c]].T
        return total[every, best], values_of, chosen

    def dual(
        self,
        target: float,
        rounds: int = 14,
        limited: bool = True,
        ways: int = 1,
        prices: Floats | None = None,
    ) -> Raised:
        """Raise the bounds of groups of ``ways`` successive shapes, and of every mixture of a group.

        A mixture is bounded by what its members cost at *common* prices and a common tangent, so each group has
        one vector of prices and one point; the least member speaks for the group in every round.

        Parameters
        ----------
        target : seconds; groups whose bound reaches it are done.
        rounds : steps of the prices.
        limited : whether the memory budgets count.
        ways : shapes in a group.
        prices : (groups, 2, moments) prices on device and host memory to begin with, in seconds a byte.
        """
        parts, hub = self.components()
        n = self.shapes.rows // ways
        bound, estimate = np.full(n, -np.inf), np.full(n, np.inf)
        chosen = np.zeros((n, len(parts)), np.int64)
        view, mine, left = self, parts, np.arange(n)
        first = np.arange(0, n * ways, ways)
        model, room = self.model.at(first), self.limits.device[first]
        prices = np.zeros((n, 2, self.rows.moments.shape[1])) if prices is None else prices.copy()
        device, host = prices[:, 0], prices[:, 1]
        point = self.counter.passes(self.least()[first], first)
        for turn in range(rounds):
            every = [model.step(point)[1], device, host]
            least, values, pick = view.minimise(
                mine, hub, view.counter.weights(*(np.repeat(e, ways, axis=0) for e in every))
            )
            best = np.arange(0, len(least), ways) + least.reshape(-1, ways).argmin(axis=1)
            values = values[best]
            value = (
                least[best] + model.fixed - device.sum(axis=1) * room - host.sum(axis=1) * view.limits.host
            )
            bound[left] = np.maximum(bound[left], value)
            rows = view.counter.passes(values, best)
            seconds = model.step(rows)[0] + values[:, view.counter.tail].sum(axis=1)
            over, over_host = view.excess(values, best, limited)
            fits = (over <= 0).all(axis=1) & (over_host <= 0).all(axis=1)
            better = fits & (seconds < estimate[left])
            estimate[left[better]] = seconds[better]
            chosen[left[better]] = pick[best][better]
            going = (bound[left] < target) & np.isfinite(bound[left])
            if not going.any() or turn == rounds - 1:
                break
            rate = 1.0 / (turn + 1) if turn < 3 else 0.3
            point = point + rate * (rows - point)
            length = stride(value, estimate[left], target, over, over_host, device, host)
            device = np.maximum(0.0, device + length * active(over, device) / room[:, None])
            host = np.maximum(0.0, host + length * active(over_host, host) / view.limits.host)
            prices[left, 0], prices[left, 1] = device, host
            if going.sum() < 0.7 * len(left):
                keep = np.flatnonzero(going)
                members = (keep[:, None] * ways + np.arange(ways)).ravel()
                view, mine = view.subset(members), [p.take(members) for p in mine]
                left, device, host, point = left[keep], device[keep], host[keep], point[keep]
                model, room = model.at(keep), room[keep]
        return Raised(bound, estimate, chosen, parts, hub, left, model.step(point)[1], prices)

    def excess(self, values: Floats, index: Ints, limited: bool) -> tuple[Floats, Floats]:
        """How far each moment of some shapes is over the limits of device and host, relative to them."""
        device, host = self.counter.memory(values, index)
        room = self.limits.device[index, None]
        over, over_host = (device - room) / room, (host - self.limits.host) / self.limits.host
        return (over, over_host) if limited else (np.minimum(over, 0.0), np.minimum(over_host, 0.0))

    def least_peak(self, ways: int = 1) -> tuple[Floats, Ints]:
        """Bytes of peak that each group cannot go below, each moment minimised on its own.

        Second come the tuples of each component that hold the least at the moment that decides, of every shape.
        """
        parts, hub = self.components()
        n = self.shapes.rows
        flat = np.zeros((*self.rows.stages.shape[:2], len(PASS_ROWS)))
        none = np.zeros(self.rows.moments.shape[:2])
        out, chosen = np.full(n, -np.inf), np.zeros((n, len(parts)), np.int64)
        groups = np.zeros(n // ways)
        for r in range(self.rows.moments.shape[1]):
            device = none.copy()
            device[:, r] = 1.0
            weights = self.counter.weights(flat, device, none)
            weights[:, self.counter.tail] = 0.0
            least, _, pick = self.minimise(parts, hub, weights)
            groups = np.maximum(groups, least.reshape(-1, ways).min(axis=1))
            decides = least > out
            out[decides], chosen[decides] = least[decides], pick[decides]
        return self.peak(groups, ways), chosen

    def peak(self, device: Floats, ways: int = 1) -> Floats:
        """Peak in bytes of groups that hold so many allocated bytes at their fullest moment."""
        return device * self.reserve + self.context[::ways]
