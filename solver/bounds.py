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
from typing import Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit, host_limit_per_rank, reserved_permille
from mbsolve.constraints.moments import COLUMN
from mbsolve.constraints.quantise import PERMILLE, SECONDS_PER_QUANTUM
from mbsolve.constraints.rule import Term
from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS, exposure
from mbsolve.solver.rows import STAGE_COLUMN, Rows
from mbsolve.solver.shapes import Columns, Ints
from mbsolve.solver.tables import Bools, Features, Floats, MixedTable, TermTable, mixed_tables, split_scope

HUB: Final = ("recompute_granularity", "recompute_layernorm", "recompute_moe", "dispatcher")
PASS_ROWS: Final = ("forward_device", "forward_host", "backward_device", "backward_host", "transfer")
JOIN: Final = 400_000
# Choices of one hub tuple that are kept, and choices of a shape whose rules are checked one by one.
KEPT: Final = 64
TRIED: Final = 48
OFFLOAD: Final = "optimizer_offload_fraction"
# Rules over more free features than this are relaxed to what they allow inside each component.
JOINED: Final = 3
_TANGENTS: Final = np.array(TANGENTS, float) / SOFT_SCALE


# Key features of a plan (`tie.KEY_FEATURES`): recompute granularity, dispatcher, whether the optimizer is offloaded.
Banned = tuple[str, str, bool]


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

    def take(self, index: Ints) -> Component:
        """The same over some of the shapes."""
        mask = self.mask[index] if self.mask is not None else None
        return replace(self, classes=self.classes[index], mask=mask)


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
    usable = device_limit(job) - constant(tables, "context_bytes", rows)
    return Limits(usable * PERMILLE / reserved_permille(), host_limit_per_rank(job))


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
            out[:, kind] += (t.values.max(axis=1) if most else t.values.min(axis=1))[t.classes]
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
            chosen = t.values[:, mask] if mask.any() else t.values
            out[shapes, kind] += (chosen.max(axis=1) if most else chosen.min(axis=1))[t.classes[shapes]]
    return out


def components(
    features: Features, shapes: Columns, tables: Sequence[TermTable], kinds: dict[tuple[str, str], int]
) -> tuple[list[Component], Ints]:
    """The components of the features over some shapes, and the hub tuples (values as indices)."""
    tables = [t for t in tables if (t.term.row, t.term.per) in kinds]
    mixed = mixed_tables(features, shapes)
    key = frozenset(t.features for t in tables)
    if key not in features.groups:
        features.groups[key] = _groups(features, key)
    members = features.groups[key]
    hub = [h for h in HUB if len(features.values[h]) > 0]
    out = []
    for free in members:
        mine = [t for t in tables if set(t.features) & set(free)]
        out.append(_component(features, shapes, mine, free, hub, mixed, kinds))
    rest = [t for t in tables if set(t.features) <= set(HUB)]
    out.append(_component(features, shapes, rest, [], hub, mixed, kinds, whole_hub=True))
    hub_tuples = out[-1].tuples
    return out, hub_tuples


def _leading(counts: Floats, low: Floats, high: Floats) -> Ints:
    """Rows that no other row exceeds for every kind value between ``low`` and ``high``."""
    keep: list[int] = []
    for i in np.argsort(-(counts @ (low + high)), kind="stable"):
        more = counts[i] - counts[keep]
        if not keep or ((np.maximum(more, 0) @ high - np.maximum(-more, 0) @ low) > 0).all():
            keep.append(int(i))
    return np.array(sorted(keep), np.int64)


def _groups(features: Features, scopes: frozenset[tuple[str, ...]]) -> list[list[str]]:
    """Free features that share a term, or a small rule that does not split once the hub is held."""
    parent: dict[str, str] = {f: f for scope in sorted(scopes) for f in scope if f not in HUB}

    def find(a: str) -> str:
        while parent[a] != a:
            a = parent[a]
        return a

    def join(names: Sequence[str]) -> None:
        for other in names[1:]:
            parent[find(other)] = find(names[0])

    for scope in sorted(scopes):
        join([f for f in scope if f not in HUB])
    for scope, allowed in features.pure:
        free = [f for f in scope if f in parent]
        if 2 <= len(free) <= JOINED and not _separable(scope, allowed):
            join(free)
    members: dict[str, list[str]] = {}
    for f in parent:
        members.setdefault(find(f), []).append(f)
    return list(members.values())


def _separable(scope: Sequence[str], allowed: Bools) -> bool:
    """Whether a rule leaves its features independent once the hub features are held."""
    hub = [i for i, f in enumerate(scope) if f in HUB]
    table = np.moveaxis(allowed, hub, range(len(hub)))
    table = table.reshape(-1, *table.shape[len(hub) :])
    for block in table:
        product = np.ones(block.shape, bool)
        for axis in range(block.ndim):
            others = tuple(a for a in range(block.ndim) if a != axis)
            shape = [1] * block.ndim
            shape[axis] = -1
            product &= block.any(axis=others).reshape(shape)
        if (product != block).any():
            return False
    return True


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
    tuples = features.joint(names)
    shape_names = tuple(
        dict.fromkeys(s for t in tables for s in split_scope(t.term.scope)[0] if s in shapes.codes)
    )
    masks = [m for m in mixed if set(m.features) & set(names)]
    first, classes = (
        shapes.classes(shape_names) if shape_names else (np.zeros(1, np.int64), np.zeros(shapes.rows, np.int64))
    )
    used = sorted({kinds[(t.term.row, t.term.per)] for t in tables})
    values = np.zeros((len(used), len(first), len(tuples)))
    for t in tables:
        pick = features.picks(names, t.features, t.tuples)
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
    pattern = mask if mask is not None else np.zeros((0, len(tuples)), bool)
    flat = np.ascontiguousarray(values.reshape(-1, len(tuples)).T)
    seen: dict[tuple[bytes, bytes, bytes], int] = {}
    heads = np.ascontiguousarray(tuples[:, :hub])
    pattern = np.ascontiguousarray(pattern.T)
    for i in range(len(tuples)):
        seen.setdefault((heads[i].tobytes(), flat[i].tobytes(), pattern[i].tobytes()), i)
    index = np.array(list(seen.values()), np.int64)
    order = index[np.lexsort([*tuples[index, :hub].T[::-1]])] if hub else index
    return tuples[order], values[:, :, order], mask[:, order] if mask is not None else None


def _active(over: Floats, price: Floats) -> Floats:
    """The part of an excess that a price answers to: what is over, and what is priced already."""
    return ((over > 0) | (price > 0)) * over


def _stride(
    value: Floats,
    estimate: Floats,
    target: float,
    over: Floats,
    over_host: Floats,
    device: Floats,
    host: Floats,
) -> Floats:
    """Length of the next price step (Polyak), towards the target or the best that fitted."""
    aim = target if np.isfinite(target) else 0.0
    # Where nothing fitted yet the prices must keep growing: the shape may not fit at all.
    goal = np.maximum(aim, np.where(np.isfinite(estimate), estimate, np.abs(value) * 1.5))
    with np.errstate(invalid="ignore"):
        gap = np.maximum(goal * 1.005 - value, 1e-3 * np.abs(value))
    norm = (_active(over, device) ** 2).sum(axis=1) + (_active(over_host, host) ** 2).sum(axis=1)
    return np.where(np.isfinite(gap) & (norm > 0), gap / np.maximum(norm, 1e-12), 0.0)[:, None]


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


def _first_legal(found: tuple[Floats, Ints] | None, legal: Callable[[Ints], bool]) -> tuple[float, Ints | None]:
    """(bound, tuples of the least legal choice) of a list whose last entry only says where it was cut."""
    if found is None:
        return -np.inf, None
    steps, choices = found
    for k in range(min(len(steps) - 1, TRIED)):
        if legal(choices[k]):
            return float(steps[k]), choices[k]
    return float(steps[min(len(steps) - 1, TRIED)]), None


class Bounder:
    """Bounds and relaxed minimisers of a set of shapes; see the module's text."""

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
        self.job, self.shapes, self.rows, self.tables = job, shapes, rows, tables
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

    def dual(
        self,
        target: float,
        rounds: int = 14,
        limited: bool = True,
        legal: Callable[[int, Ints], bool] | None = None,
        banned: Sequence[frozenset[Banned]] | None = None,
    ) -> Raised:
        """Raise the bounds towards ``target`` seconds.

        With ``legal`` (shape, tuple of each component -> whether all rules hold), what stays under the target is
        searched exactly. ``banned`` are, for each shape, the key features that a plan of it must not have.
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
            value = least + view.model.fixed - device.sum(axis=1) * view.limits.device - host.sum(axis=1) * view.limits.host
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
            stride = _stride(value, estimate[left], target, over, over_host, device, host)
            device = np.maximum(0.0, device + stride * _active(over, device) / view.limits.device[:, None])
            host = np.maximum(0.0, host + stride * _active(over_host, host) / view.limits.host)
            if going.sum() < 0.7 * len(left):
                keep = np.flatnonzero(going)
                view, mine = view.subset(keep, with_tables=False), [p.take(keep) for p in mine]
                left, device, host, point = left[keep], device[keep], host[keep], point[keep]
        if legal is not None and np.isfinite(target):
            slopes = view.model.step(point)[1]
            goal = target
            for k in np.argsort(bound[left], kind="stable"):
                i = left[k]
                if bound[i] < target:
                    reached[i] = goal
                if not bound[i] < goal:
                    continue
                out = banned[int(i)] if banned is not None else frozenset()
                found = view._enumerate(int(k), goal, mine, hub, slopes[k], out)
                value, best = _first_legal(found, lambda pick, i=int(i): legal(i, pick))
                # Nothing under the goal says no more than that: a later search may aim higher.
                bound[i] = max(bound[i], min(value, goal))
                if best is not None:
                    estimate[i], chosen[i] = value, best
                    goal = min(goal, value + self._rounding(int(i)))
        return Raised(bound, reached, estimate, chosen, parts)

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

    def _enumerate(
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
        single = Counter(self.kinds, Rows(self.rows.stages[i : i + 1], self.rows.ranks[i : i + 1], self.rows.moments[i : i + 1]))
        weight = single.weights(slopes[None], none, none)[0]
        memory = np.zeros((2 * none.shape[1], len(self.kinds)))
        for pairs, start in ((single.device, 0), (single.host, none.shape[1])):
            for k, c in pairs:
                memory[start : start + none.shape[1], k] = self.rows.moments[i, :, c]
        limit = np.concatenate([np.full(none.shape[1], self.limits.device[i]), np.full(none.shape[1], self.limits.host)])
        used = memory.any(axis=1)
        memory, limit = memory[used], limit[used] * (1 + 1e-9)
        costs = []
        for part in parts:
            values = part.values[:, part.classes[i], :]
            seconds = weight[part.kinds] @ values
            if part.mask is not None:
                seconds = np.where(part.mask[i], seconds, np.inf)
            costs.append((seconds, memory[:, part.kinds] @ values))
        steps, choices = [np.zeros(0)], [np.zeros((0, len(parts)), np.int64)]
        room = target - self.model.fixed[i]
        offload = next((c for c, p in enumerate(parts) if OFFLOAD in p.names), None)
        for h in hub.tolist():
            allowed = self._offload_allowed(h, banned)
            if not allowed or (offload is None and (self.features.values[OFFLOAD][0] > 0) not in allowed):
                continue
            slices = [part.groups.get(tuple(h[j] for j in part.hub)) for part in parts]
            if any(s is None for s in slices):
                continue
            mine = [(c[0][s], c[1][:, s], s.start) for c, s in zip(costs, slices, strict=True) if s is not None]
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
            exact = self._steps_of(i, values)
            few = np.argsort(exact, kind="stable")[:KEPT]
            steps.append(exact[few])
            choices.append(picks[few])
            if len(exact) > KEPT:
                # What is cut off here is bounded by what is kept: nothing slower may be called the best.
                room = min(room, float(exact[few[-1]]) - self.model.fixed[i])
                target = min(target, float(exact[few[-1]]))
        all_steps, all_choices = np.concatenate(steps), np.vstack(choices)
        keep = np.argsort(all_steps, kind="stable")
        keep = keep[all_steps[keep] < target]
        return np.append(all_steps[keep], target), np.vstack([all_choices[keep], np.zeros((1, len(parts)), np.int64)])

    def _rounding(self, i: int) -> float:
        """Seconds by which rounding to quanta can raise a step of one shape."""
        passes = 3 * (self.model.microbatches[i] + self.model.bubble[i]) + 3
        return float(passes * len(self.tables) * SECONDS_PER_QUANTUM)

    def _offload_allowed(self, hub: Sequence[int], banned: frozenset[Banned]) -> set[bool]:
        """Whether optimizer offload may be off or on under one hub tuple."""
        granularity = self.features.values["recompute_granularity"][hub[HUB.index("recompute_granularity")]]
        dispatcher = self.features.values["dispatcher"][hub[HUB.index("dispatcher")]]
        return {False, True} - {on for g, d, on in banned if (g, d) == (granularity, dispatcher)}

    def _steps_of(self, i: int, values: Floats) -> Floats:
        """Seconds of one shape for many kind values."""
        n = len(values)
        stages = np.repeat(self.rows.stages[i : i + 1], n, axis=0)
        counter = Counter(self.kinds, Rows(stages, self.rows.ranks[i : i + 1], np.zeros((n, 1, len(COLUMN)), np.int64)))
        model = self.model.at(np.array([i]))
        return model.step(counter.passes(values))[0] + values[:, counter.tail].sum(axis=1)

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
