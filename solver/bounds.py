"""Lower bounds on the step time of shapes, by Lagrangian duality over the features.

The step is a convex, degree-one function of the rows of the stages, and every row is linear in the term
values. So for any point the tangent of the step there, plus any non-negative prices on the memory rows,
bounds the step from below once it is minimised over the features; and that minimum falls apart into
components of features that share no term, once a few hub features are held fixed. Rules between components
are relaxed to what they allow inside each, which keeps the bound valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import reserved_permille
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.quantise import PERMILLE
from mbsolve.constraints.rule import Term
from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS, exposure
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Columns, Ints
from mbsolve.solver.tables import Bools, Features, Floats, MixedTable, TermTable, mixed_tables, split_scope, term_tables

HUB: Final = ("recompute_granularity", "recompute_layernorm", "recompute_moe", "dispatcher")
PASS_ROWS: Final = ("forward_device", "forward_host", "backward_device", "backward_host", "transfer")
_TANGENTS: Final = np.array(TANGENTS, float) / SOFT_SCALE


@dataclass(frozen=True)
class Component:
    """Features that share terms, with the hub features those terms or their rules touch.

    ``values[k]`` is (classes, tuples) for the kind ``kinds[k]``; ``groups`` are slices of tuples with equal hub
    values, keyed by those values.
    """

    names: tuple[str, ...]
    tuples: Ints
    kinds: Ints
    values: Floats
    classes: Ints
    mask: Bools | None
    groups: dict[tuple[int, ...], slice]
    hub: tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """What each shape may hold: allocated bytes on a device, bytes of one rank on its host."""

    device: Floats
    host: float


def constant(tables: Sequence[TermTable], row: str, rows: int, least: bool = True) -> Floats:
    """Sum of a row's terms for each shape, each at its least (or greatest) feature tuple."""
    out = np.zeros(rows)
    for t in tables:
        if t.term.row == row:
            best = t.values.min(axis=1) if least else t.values.max(axis=1)
            out += best[t.classes]
    return out


def limits_of(job: Job, tables: Sequence[TermTable], rows: int) -> Limits:
    """Budgets in bytes of allocated memory, after context, reserve and margin."""
    usable = job.machine.hbm_bytes * (1 - job.margin) - constant(tables, "context_bytes", rows)
    host = job.machine.host_ram_bytes_per_node / min(job.gpus_per_node, job.gpus)
    return Limits(usable * PERMILLE / reserved_permille(), host)


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
    best = np.zeros_like(device)
    pick = np.zeros(device.shape, np.int64)
    for i, (a, b) in enumerate(_TANGENTS):
        value = a * device + b * host
        better = value > best
        best = np.where(better, value, best)
        pick[better] = i
    return best, _TANGENTS[pick, 0], _TANGENTS[pick, 1]


class StepModel:
    """The step of a set of shapes as a function of its stage rows, and its gradient."""

    def __init__(self, shapes: Columns, ranks: Ints, fixed: Floats) -> None:
        pp = shapes.array("pp").astype(float)
        self.microbatches = shapes.array("microbatches").astype(float)
        self.mean = ranks / np.maximum(ranks.sum(axis=1, keepdims=True), 1)
        self.bubble = (pp - 1) / shapes.array("vpp")
        self.fixed = fixed

    def step(self, rows: Floats) -> tuple[Floats, Floats]:
        """Seconds without the tail, and weights (shapes, classes, pass rows); ``rows`` has the same shape."""
        f, fd, fh = soft_max(rows[..., 0], rows[..., 1])
        b, bd, bh = soft_max(rows[..., 2], rows[..., 3])
        total = f + b + rows[..., 4]
        slowest = total.argmax(axis=1)
        weight = self.bubble[:, None] * self.mean
        weight[np.arange(len(total)), slowest] += self.microbatches
        seconds = (weight * total).sum(axis=1) + self.fixed
        slopes = np.stack([fd, fh, bd, bh, np.ones_like(fd)], -1) * weight[..., None]
        return seconds, slopes


def kinds_of(terms: Sequence[Term]) -> dict[tuple[str, str], int]:
    """Index of each (row, count) pair that some term uses."""
    rows = {*PASS_ROWS, "tail", "device_bytes", "host_bytes"}
    return {k: i for i, k in enumerate(sorted({(t.row, t.per) for t in terms if t.row in rows}))}


class Counter:
    """Turns row weights into kind weights and kind values into rows, for a set of shapes."""

    def __init__(self, kinds: dict[tuple[str, str], int], rows: Rows) -> None:
        self.kinds, self.rows = kinds, rows
        self.by_pass = [[(i, STAGE_COLUMN[p]) for (r, p), i in kinds.items() if r == row] for row in PASS_ROWS]
        self.tail = [i for (r, _), i in kinds.items() if r == "tail"]
        self.device = [(i, COLUMN[p]) for (r, p), i in kinds.items() if r == "device_bytes"]
        self.host = [(i, COLUMN[p]) for (r, p), i in kinds.items() if r == "host_bytes"]

    def weights(self, slopes: Floats, device: Floats, host: Floats) -> Floats:
        """Weight of every kind: (shapes, kinds)."""
        n = len(slopes)
        out = np.zeros((n, len(self.kinds)))
        for r, pairs in enumerate(self.by_pass):
            for kind, column in pairs:
                out[:, kind] = (slopes[:, :, r] * self.rows.stages[:, :, column]).sum(axis=1)
        out[:, self.tail] = 1.0
        for kind, column in self.device:
            out[:, kind] = (device * self.rows.moments[:, :, column]).sum(axis=1)
        for kind, column in self.host:
            out[:, kind] = (host * self.rows.moments[:, :, column]).sum(axis=1)
        return out

    def passes(self, values: Floats) -> Floats:
        """Stage rows (shapes, classes, pass rows) of kind values (shapes, kinds)."""
        out = np.zeros((*self.rows.stages.shape[:2], len(PASS_ROWS)))
        for r, pairs in enumerate(self.by_pass):
            for kind, column in pairs:
                out[:, :, r] += values[:, kind, None] * self.rows.stages[:, :, column]
        return out

    def memory(self, values: Floats) -> tuple[Floats, Floats]:
        """Device and host bytes at every moment: (shapes, moments) each."""
        device = np.zeros(self.rows.moments.shape[:2])
        host = np.zeros_like(device)
        for pairs, out in ((self.device, device), (self.host, host)):
            for kind, column in pairs:
                out += values[:, kind, None] * self.rows.moments[:, :, column]
        return device, host


def least_values(tables: Sequence[TermTable], kinds: dict[tuple[str, str], int], rows: int) -> Floats:
    """Each kind at the least of each of its terms: blind to what one feature does to two terms."""
    out = np.zeros((rows, len(kinds)))
    for t in tables:
        kind = kinds.get((t.term.row, t.term.per))
        if kind is not None:
            out[:, kind] += t.values.min(axis=1)[t.classes]
    return out


def components(
    features: Features, shapes: Columns, tables: Sequence[TermTable], kinds: dict[tuple[str, str], int]
) -> tuple[list[Component], Ints]:
    """The components of the features over some shapes, and the hub tuples (values as indices)."""
    tables = [t for t in tables if (t.term.row, t.term.per) in kinds]
    mixed = mixed_tables(features, shapes)
    parent: dict[str, str] = {f: f for t in tables for f in t.features if f not in HUB}

    def find(a: str) -> str:
        while parent[a] != a:
            a = parent[a]
        return a

    for t in tables:
        free = [f for f in t.features if f not in HUB]
        for other in free[1:]:
            parent[find(other)] = find(free[0])
    members: dict[str, list[str]] = {}
    for f in parent:
        members.setdefault(find(f), []).append(f)
    hub = [h for h in HUB if len(features.values[h]) > 0]
    out = []
    for free in members.values():
        mine = [t for t in tables if set(t.features) & set(free)]
        out.append(_component(features, shapes, mine, free, hub, mixed, kinds))
    rest = [t for t in tables if set(t.features) <= set(HUB)]
    out.append(_component(features, shapes, rest, [], hub, mixed, kinds, whole_hub=True))
    hub_tuples = out[-1].tuples
    return out, hub_tuples


def _component(
    features: Features,
    shapes: Columns,
    tables: Sequence[TermTable],
    free: Sequence[str],
    hub: Sequence[str],
    mixed: Sequence[MixedTable],
    kinds: dict[tuple[str, str], int],
    whole_hub: bool = False,
) -> Component:
    touched = {f for t in tables for f in t.features}
    for scope, _ in features.pure:
        if set(scope) & set(free):
            touched |= set(scope)
    for m in mixed:
        if set(m.features) & set(free):
            touched |= set(m.features)
    mine = tuple(h for h in hub if whole_hub or h in touched)
    names = (*mine, *free)
    projected = []
    for scope, allowed in features.pure:
        inter = tuple(s for s in scope if s in names)
        if inter and set(scope) - set(names):
            outside = tuple(i for i, s in enumerate(scope) if s not in names)
            projected.append((inter, allowed.any(axis=outside)))
    tuples = features.legal(names, projected)
    shape_names = tuple(dict.fromkeys(s for t in tables for s in split_scope(t.term.scope)[0]))
    masks = [m for m in mixed if set(m.features) & set(names)]
    first, classes = (
        shapes.classes(shape_names) if shape_names else (np.zeros(1, np.int64), np.zeros(shapes.rows, np.int64))
    )
    used = sorted({kinds[(t.term.row, t.term.per)] for t in tables})
    values = np.zeros((len(used), len(first), len(tuples)))
    for t in tables:
        lookup = {tuple(v): i for i, v in enumerate(t.tuples.tolist())}
        at = [names.index(f) for f in t.features]
        pick = np.array([lookup[tuple(v)] for v in tuples[:, at].tolist()], np.int64)
        values[used.index(kinds[(t.term.row, t.term.per)])] += t.values[t.classes[first]][:, pick]
    mask = np.ones((shapes.rows, len(tuples)), bool) if masks else None
    for m in masks:
        inside = [f for f in m.features if f in names]
        outside = tuple(i for i, f in enumerate(m.features) if f not in names)
        at = tuple(tuples[:, names.index(f)] for f in inside)
        allowed = np.stack([(t.any(axis=outside) if outside else t)[at] for t in m.of_class])
        assert mask is not None
        mask &= allowed[m.classes]
    tuples, values, mask = _collapse(tuples, values, mask, len(mine))
    groups: dict[tuple[int, ...], slice] = {}
    keys = [tuple(t) for t in tuples[:, : len(mine)].tolist()]
    for i, key in enumerate(keys):
        start = groups[key].start if key in groups else i
        groups[key] = slice(start, i + 1)
    return Component(
        names,
        tuples,
        np.array(used, np.int64),
        values,
        classes,
        mask,
        groups,
        tuple(hub.index(h) for h in mine),
    )


def _collapse(tuples: Ints, values: Floats, mask: Bools | None, hub: int) -> tuple[Ints, Floats, Bools | None]:
    """Sort tuples by hub values, and keep one of those that cost and are allowed the same under one hub value."""
    flat = values.reshape(-1, len(tuples)).T
    blocks = [tuples[:, :hub].astype(float), flat]
    if mask is not None:
        blocks.append(np.unique(mask, axis=0).T.astype(float))
    _, index = np.unique(np.hstack(blocks), axis=0, return_index=True)
    order = index[np.lexsort([*tuples[index, :hub].T[::-1]])] if hub else np.sort(index)
    return tuples[order], values[:, :, order], mask[:, order] if mask is not None else None


class Bounder:
    """Bounds and relaxed minimisers of a set of shapes; see the module's text."""

    def __init__(
        self,
        job: Job,
        features: Features,
        shapes: Columns,
        rows: Rows,
        terms: Sequence[Term],
        tables: Sequence[TermTable] | None = None,
    ) -> None:
        self.job, self.shapes, self.rows = job, shapes, rows
        self.tables = list(tables) if tables is not None else term_tables(features, shapes, terms)
        self.kinds = kinds_of([t.term for t in self.tables])
        self.counter = Counter(self.kinds, rows)
        self.model = StepModel(shapes, rows.ranks, collectives(job, shapes, self.tables))
        self.limits = limits_of(job, self.tables, shapes.rows)
        self.features = features

    def take(self, index: Ints, moments: Ints) -> Bounder:
        """The same for some of the shapes, with the moments of those."""
        rows = Rows(self.rows.stages[index], self.rows.ranks[index], moments)
        tables = [replace(t, classes=t.classes[index]) for t in self.tables]
        return Bounder(self.job, self.features, self.shapes.take(index), rows, (), tables)

    def cheap(self) -> tuple[Floats, Floats, Floats]:
        """(seconds, device bytes over the limit, host bytes over the limit) with every term at its least."""
        values = least_values(self.tables, self.kinds, self.shapes.rows)
        seconds, _ = self.model.step(self.counter.passes(values))
        device, host = self.counter.memory(values)
        tail = values[:, self.counter.tail].sum(axis=1)
        return (
            seconds + tail,
            device.max(axis=1) - self.limits.device,
            host.max(axis=1) - self.limits.host,
        )

    def minimise(self, parts: Sequence[Component], hub: Ints, weights: Floats) -> tuple[Floats, Floats, Ints]:
        """Least weighted sum over the features: (value, kind values, chosen tuple of each component)."""
        n = self.shapes.rows
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
                total[:, h] += least[key] if key in least else np.inf
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

    def dual(self, target: float, rounds: int = 14, limited: bool = True) -> tuple[Floats, Floats, Ints, list[Component]]:
        """Raise the bounds towards ``target`` seconds.

        Returns
        -------
        bound : seconds, (shapes,); infinite where no feature tuple is legal.
        estimate : seconds of the best relaxed minimiser that fits, infinite where none did.
        chosen : tuple of each component for that minimiser.
        parts : the components.
        """
        parts, hub = components(self.features, self.shapes, self.tables, self.kinds)
        n = self.shapes.rows
        device = np.zeros(self.rows.moments.shape[:2])
        host = np.zeros_like(device)
        values = least_values(self.tables, self.kinds, n)
        point = self.counter.passes(values)
        bound = np.full(n, -np.inf)
        estimate = np.full(n, np.inf)
        chosen = np.zeros((n, len(parts)), np.int64)
        aim = np.where(np.isfinite(target), target, 0.0)
        for turn in range(rounds):
            _, slopes = self.model.step(point)
            weights = self.counter.weights(slopes, device, host)
            least, values, pick = self.minimise(parts, hub, weights)
            value = (
                least
                + self.model.fixed
                - (device.sum(axis=1) * self.limits.device + host.sum(axis=1) * self.limits.host)
            )
            bound = np.maximum(bound, value)
            rows = self.counter.passes(values)
            seconds = self.model.step(rows)[0] + values[:, self.counter.tail].sum(axis=1)
            dev, ram = self.counter.memory(values)
            over = (dev - self.limits.device[:, None]) / self.limits.device[:, None]
            over_host = (ram - self.limits.host) / self.limits.host
            if not limited:
                over, over_host = np.minimum(over, 0.0), np.minimum(over_host, 0.0)
            fits = (over <= 0).all(axis=1) & (over_host <= 0).all(axis=1)
            better = fits & (seconds < estimate)
            estimate[better] = seconds[better]
            chosen[better] = pick[better]
            goal = np.maximum(aim, np.where(np.isfinite(estimate), estimate, seconds * 1.02))
            gap = np.maximum(goal * 1.005 - value, 1e-3 * np.abs(value))
            active = ((over > 0) | (device > 0)) * over
            active_host = ((over_host > 0) | (host > 0)) * over_host
            norm = (active**2).sum(axis=1) + (active_host**2).sum(axis=1)
            stride = np.where(np.isfinite(gap) & (norm > 0), gap / np.maximum(norm, 1e-12), 0.0)[:, None]
            device = np.maximum(0.0, device + stride * active / self.limits.device[:, None])
            host = np.maximum(0.0, host + stride * active_host / self.limits.host)
            rate = 1.0 / (turn + 1) if turn < 3 else 0.3
            point = point + rate * (rows - point)
            done = (bound >= target) | ~np.isfinite(bound)
            if done.all():
                break
        return bound, estimate, chosen, parts

    def least_peak(self) -> Floats:
        """Bytes that the fullest moment of each shape cannot go below: each moment minimised on its own."""
        parts, hub = components(self.features, self.shapes, self.tables, self.kinds)
        flat = np.zeros((*self.rows.stages.shape[:2], len(PASS_ROWS)))
        none = np.zeros(self.rows.moments.shape[:2])
        out = np.zeros(self.shapes.rows)
        for r in range(none.shape[1]):
            device = none.copy()
            device[:, r] = 1.0
            weights = self.counter.weights(flat, device, none)
            weights[:, self.counter.tail] = 0.0
            out = np.maximum(out, self.minimise(parts, hub, weights)[0])
        return out
