"""Features that fall apart into components which share no term, once a few hub features are held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from mbsolve.solver.columns import Columns, Ints, distinct
from mbsolve.solver.tables import Bools, Features, Floats, MixedTable, TermTable, mixed_tables, split_scope

HUB: Final = (
    "recompute_granularity",
    "recompute_layernorm",
    "recompute_moe",
    "dispatcher",
)
# Shapes to a class from which classes are taken one by one.
DENSE: Final = 6
# Rules over more free features than this are relaxed to what they allow inside each component.
JOINED: Final = 3


@dataclass(frozen=True)
class Component:
    """Features that share terms, with the hub features those terms or their rules touch.

    Parameters
    ----------
    names : hub features first.
    tuples : (tuples, names) indices of values, sorted by the hub features.
    kinds : indices of the kinds that the features touch.
    values : (kinds, classes, tuples).
    classes : class of each shape.
    mask : (mask classes, tuples) that the rules allow; None where they allow all.
    mask_classes : mask class of each shape.
    groups : values of the hub features -> the slice of tuples that have them.
    hub : places of the component's hub features among all hub features.
    starts : first tuple of each group.
    of_hub : the group of each hub tuple; one more than there are where it has none.
    """

    names: tuple[str, ...]
    tuples: Ints
    kinds: Ints
    values: Floats
    classes: Ints
    mask: Bools | None
    mask_classes: Ints
    groups: dict[tuple[int, ...], slice]
    hub: tuple[int, ...]
    starts: Ints
    of_hub: Ints

    def take(self, index: Ints) -> Component:
        """The same over some of the shapes."""
        return replace(self, classes=self.classes[index], mask_classes=self.mask_classes[index])

    def cost(self, weights: Floats) -> Floats:
        """Weighted sum (shapes, tuples) of the component's kinds, for weights (shapes, all kinds)."""
        mine = weights[:, self.kinds]
        order = np.argsort(self.classes, kind="stable")
        starts = np.flatnonzero(np.diff(self.classes[order], prepend=-1))
        if len(order) < DENSE * len(starts):
            return np.asarray(
                np.matmul(mine[:, None, :], self.values[:, self.classes].transpose(1, 0, 2))[:, 0]
            )
        out = np.empty((len(mine), len(self.tuples)))
        for some in np.split(order, starts[1:]):
            out[some] = mine[some] @ self.values[:, self.classes[some[0]]]
        return out

    def allowed(self, index: Ints | None = None) -> Bools | None:
        """(shapes, tuples) that the rules allow, of the shapes at ``index``; None where they allow all."""
        if self.mask is None:
            return None
        return self.mask[self.mask_classes if index is None else self.mask_classes[index]]


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
    tied = linked(features, members)
    out = []
    for free in members:
        mine = [t for t in tables if set(t.features) & set(free)]
        out.append(_component(features, shapes, mine, free, hub, mixed, kinds, tied))
    # What no feature changes has a component of its own, with one tuple.
    constant = [t for t in tables if not t.features]
    out.append(_component(features, shapes, constant, [], (), mixed, kinds, tied))
    rest = [t for t in tables if t.features and set(t.features) <= set(HUB)]
    out.append(_component(features, shapes, rest, [], hub, mixed, kinds, tied, whole_hub=True))
    hub_tuples = out[-1].tuples
    return [_with_hub(part, hub_tuples) for part in out], hub_tuples


def _with_hub(part: Component, hub: Ints) -> Component:
    """A component that knows the hub tuples."""
    number = {key: i for i, key in enumerate(part.groups)}
    keys = [tuple(values[i] for i in part.hub) for values in hub.tolist()]
    return replace(part, of_hub=np.array([number.get(key, len(number)) for key in keys], np.int64))


def _groups(features: Features, scopes: frozenset[tuple[str, ...]]) -> list[list[str]]:
    """Free features that share a term, or a small rule that does not split once the hub is held.

    A feature in no term is there too: a rule may leave it no choice.
    """
    parent: dict[str, str] = {
        f: f for f, values in features.values.items() if len(values) > 1 and f not in HUB
    }

    def find(a: str) -> str:
        while parent[a] != a:
            a = parent[a]
        return a

    def join(names: Sequence[str]) -> None:
        for other in names[1:]:
            parent[find(other)] = find(names[0])

    for scope in sorted(scopes):
        join([f for f in scope if f in parent])
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
    tied: frozenset[str],
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
        shapes.classes(shape_names)
        if shape_names
        else (np.zeros(1, np.int64), np.zeros(shapes.rows, np.int64))
    )
    used = sorted({kinds[(t.term.row, t.term.per)] for t in tables})
    values = np.zeros((len(used), len(first), len(tuples)))
    # Tables of one kind with the same shape decisions are added up before they are spread over the classes.
    groups_of: dict[tuple[int, tuple[str, ...]], tuple[Floats, Ints]] = {}
    for t in tables:
        mine_of = t.values[:, features.picks(names, t.features, t.tuples)]
        at = used.index(kinds[(t.term.row, t.term.per)]), split_scope(t.term.scope)[0]
        if at in groups_of:
            groups_of[at] = groups_of[at][0] + mine_of, t.classes
        else:
            groups_of[at] = mine_of, t.classes
    for (kind, _), (sums, of_class) in groups_of.items():
        values[kind] += sums[of_class[first]]
    mask, of_mask = (
        _mask(shapes.rows, masks, names, tuples) if masks else (None, np.zeros(shapes.rows, np.int64))
    )
    if free:
        apart = [i for i, f in enumerate(names) if i < len(mine) or f in tied]
        tuples, values, mask = _collapse(tuples, values, mask, apart)
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
        of_mask,
        groups,
        tuple(hub.index(h) for h in mine),
        np.array([where.start for where in groups.values()], np.int64),
        np.zeros(0, np.int64),
    )


def _mask(rows: int, masks: Sequence[MixedTable], names: Sequence[str], tuples: Ints) -> tuple[Bools, Ints]:
    """What some mixed rules allow: (mask classes, tuples), and the mask class of each shape."""
    code = np.zeros(rows, np.int64)
    size = 1
    for m in masks:
        first, code = distinct(code * len(m.of_class) + m.classes, size * len(m.of_class))
        size = len(first)
    first = distinct(code, size)[0]
    out = np.ones((size, len(tuples)), bool)
    for m in masks:
        inside = [f for f in m.features if f in names]
        outside = tuple(i for i, f in enumerate(m.features) if f not in names)
        at = tuple(tuples[:, names.index(f)] for f in inside)
        allowed = np.stack([np.asarray(t.any(axis=outside) if outside else t)[at] for t in m.of_class])
        out &= allowed[m.classes[first]]
    return out, code


def linked(features: Features, groups: Sequence[Sequence[str]]) -> frozenset[str]:
    """Free features that some rule ties to a feature of another group."""
    home = {name: c for c, names in enumerate(groups) for name in names if name not in HUB}
    scopes = [scope for scope, _ in features.pure] + [split_scope(r.scope)[1] for r in features.mixed]
    out: set[str] = set()
    for scope in scopes:
        free = [name for name in scope if name in home]
        if len({home[name] for name in free}) > 1:
            out.update(free)
    return frozenset(out)


def _collapse(
    tuples: Ints, values: Floats, mask: Bools | None, key: Sequence[int]
) -> tuple[Ints, Floats, Bools | None]:
    """Sort tuples by the columns of a key, and keep one of those that share it, cost the same and are allowed alike.

    The hub features come first in the key; what a rule ties to another component is in it too.
    """
    if not len(tuples):
        return tuples, values, mask
    pattern = mask if mask is not None else np.zeros((0, len(tuples)), bool)
    flat = np.concatenate([values.reshape(-1, len(tuples)), pattern.astype(float)])
    # Equal tuples share a sum; whether tuples that share it are equal is then looked at.
    mark = np.cos(np.arange(1.0, len(flat) + 1)) @ flat
    order = np.lexsort([mark, *tuples[:, key].T[::-1]])
    tuples, values, flat = tuples[order], values[:, :, order], flat[:, order]
    same = (tuples[1:, key] == tuples[:-1, key]).all(axis=1) & (flat[:, 1:] == flat[:, :-1]).all(axis=0)
    keep = np.flatnonzero(np.append(True, ~same))
    return tuples[keep], values[:, :, keep], mask[:, order][:, keep] if mask is not None else None
