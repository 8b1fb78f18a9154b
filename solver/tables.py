"""Terms and rules as tables: arrays over classes of shapes and tuples of features.

A term is called once with arrays over its own scope only, so the cost of tabulation follows the number of
distinct inputs, not the number of shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.domains import Domains
from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Rule, Term
from mbsolve.constraints.vocabulary import FEATURES
from mbsolve.solver.columns import NEEDS, Columns, Ints, scope_rows, values_at

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Features:
    """Domains of the feature decisions, and the rules over them alone as boolean arrays."""

    job: Job
    values: dict[str, tuple[Any, ...]]
    pure: tuple[tuple[tuple[str, ...], Bools], ...]
    mixed: tuple[Rule, ...]
    groups: dict[frozenset[tuple[str, ...]], list[list[str]]] = field(default_factory=dict, repr=False)
    _legal: dict[tuple[str, ...], Ints] = field(default_factory=dict, repr=False)
    _under: dict[tuple[Any, ...], Bools] = field(default_factory=dict, repr=False)
    _joint: dict[tuple[str, ...], Ints] = field(default_factory=dict, repr=False)
    _picks: dict[tuple[Any, ...], Ints] = field(default_factory=dict, repr=False)
    _mixed: dict[tuple[Any, ...], Bools] = field(default_factory=dict, repr=False)

    def legal(self, names: Sequence[str]) -> Ints:
        """Index tuples over ``names`` that satisfy every rule inside them; shape (tuples, len(names))."""
        key = tuple(names)
        if key not in self._legal:
            self._legal[key] = self._join(key, ())
        return self._legal[key]

    def _join(self, names: tuple[str, ...], extra: Iterable[tuple[tuple[str, ...], Bools]]) -> Ints:
        tables = [t for t in (*self.pure, *extra) if set(t[0]) <= set(names)]
        columns: dict[str, Ints] = {}
        size, done = 1, set[str]()
        for name in names:
            n = len(self.values[name])
            columns = {k: np.repeat(v, n) for k, v in columns.items()}
            columns[name] = np.tile(np.arange(n), size)
            done.add(name)
            keep = np.ones(size * n, bool)
            for scope, allowed in tables:
                if name in scope and set(scope) <= done:
                    keep &= allowed[tuple(columns[s] for s in scope)]
            columns = {k: v[keep] for k, v in columns.items()}
            size = int(keep.sum())
        return np.stack([columns[n] for n in names], 1) if names else np.zeros((1, 0), np.int64)

    def joint(self, names: tuple[str, ...]) -> Ints:
        """Index tuples over ``names``, every rule that touches them projected onto them."""
        if names not in self._joint:
            projected = []
            for scope, allowed in self.pure:
                inside = tuple(s for s in scope if s in names)
                if inside and len(inside) < len(scope):
                    outside = tuple(i for i, s in enumerate(scope) if s not in names)
                    projected.append((inside, np.asarray(allowed.any(axis=outside))))
            self._joint[names] = self._join(names, projected)
        return self._joint[names]

    def picks(self, names: tuple[str, ...], features: tuple[str, ...], tuples: Ints) -> Ints:
        """For each joint tuple over ``names``: the tuple of a table over ``features`` that it holds."""
        key = (names, features, len(tuples))
        if key not in self._picks:
            lookup = {tuple(v): i for i, v in enumerate(tuples.tolist())}
            at = [names.index(f) for f in features]
            self._picks[key] = np.array(
                [lookup[tuple(v)] for v in self.joint(names)[:, at].tolist()], np.int64
            )
        return self._picks[key]

    def under(self, names: Sequence[str], tuples: Ints, name: str, value: Any) -> Bools:
        """Which tuples can be completed with ``name`` at ``value``; ``tuples`` must be those of a table."""
        key = (tuple(names), name, value, len(tuples))
        if key not in self._under:
            self._under[key] = self._completed(names, tuples, name, value)
        return self._under[key]

    def _completed(self, names: Sequence[str], tuples: Ints, name: str, value: Any) -> Bools:
        if value not in self.values[name]:
            return np.zeros(len(tuples), bool)
        code = self.values[name].index(value)
        if name in names:
            return np.asarray(tuples[:, list(names).index(name)] == code)
        joint = self.legal((*names, name))
        found = {tuple(t[:-1]) for t in joint.tolist() if t[-1] == code}
        return np.array([tuple(t) in found for t in tuples.tolist()], bool)

    def arrays(self, names: Sequence[str], tuples: Ints) -> dict[str, NDArray[Any]]:
        """Values of the tuples, one row array for each name."""
        return {n: np.array(self.values[n])[tuples[:, i]][None, :] for i, n in enumerate(names)}


def split_scope(scope: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(shape decisions and derived sizes, features) of a scope."""
    names = tuple(scope)
    return tuple(n for n in names if n not in FEATURES), tuple(n for n in names if n in FEATURES)


def feature_space(job: Job, domains: Domains, rules: Iterable[Rule]) -> Features:
    """The features of a job, with every value that a single-feature rule forbids removed."""
    values = {name: domains[name] for name in FEATURES}
    pure, mixed = [], []
    for rule in rules:
        shape, features = split_scope(rule.scope)
        if shape:
            mixed.append(rule)
        elif len(features) == 1:
            name = features[0]
            values[name] = tuple(v for v in values[name] if rule.holds(job.facts, {name: v}))
        else:
            pure.append(rule)
    if any(not allowed for allowed in values.values()):
        return Features(job, values, (), ())
    tables = []
    for rule in pure:
        table = _rule_table(job, rule, rule.scope, values, {})
        if not table.all():
            tables.append((rule.scope, table))
    return Features(job, values, tuple(tables), tuple(mixed))


def _rule_table(
    job: Job, rule: Rule, features: Sequence[str], values: dict[str, tuple[Any, ...]], shape: dict[str, Any]
) -> Bools:
    """Truth of a rule over its features, the shape decisions given."""
    dims = [len(values[n]) for n in features]
    flat = [
        rule.holds(job.facts, {**shape, **dict(zip(features, combination, strict=True))})
        for combination in itertools.product(*(values[n] for n in features))
    ]
    return np.array(flat, bool).reshape(dims)


def completable(features: Features, at: Mapping[str, Any]) -> bool:
    """Whether each mixed rule whose shape decisions are all in ``at`` holds there for some of its features."""
    for rule in features.mixed:
        shape, names = split_scope(rule.scope)
        if set(shape) <= set(at):
            key = (id(rule), *(at[n] for n in shape))
            if key not in features._mixed:
                features._mixed[key] = _rule_table(features.job, rule, names, features.values, dict(at))
            if not features._mixed[key].any():
                return False
    return True


@dataclass(frozen=True)
class MixedTable:
    """A rule that ties features to shapes: one table for each class of shapes."""

    rule: Rule
    features: tuple[str, ...]
    of_class: tuple[Bools, ...]
    classes: Ints


def mixed_tables(features: Features, shapes: Columns) -> list[MixedTable]:
    """The mixed rules over a set of shapes, without those that always hold there.

    A rule that names a decision which the shapes do not have yet is relaxed.
    """
    out = []
    for rule in features.mixed:
        shape, names = split_scope(rule.scope)
        if not all(n in shapes.codes for name in shape for n in NEEDS.get(name, (name,))):
            continue
        needed, first, inverse = scope_rows(shapes, shape)
        cache = features._mixed
        tables = []
        for row in first:
            at = values_at(features.job, shapes, needed, int(row))
            key = (id(rule), *(at[n] for n in shape))
            if key not in cache:
                cache[key] = _rule_table(features.job, rule, names, features.values, at)
            tables.append(cache[key])
        if not all(t.all() for t in tables):
            out.append(MixedTable(rule, names, tuple(tables), inverse))
    return out


@dataclass(frozen=True)
class TermTable:
    """Values of one term: ``values[class, tuple]`` for one count, in seconds or bytes."""

    term: Term
    features: tuple[str, ...]
    tuples: Ints
    values: Floats
    classes: Ints
    # The extremes of ``values``, shared by all tables that differ in ``classes`` only.
    _extremes: dict[tuple[bool, bytes], Floats] = field(default_factory=dict, repr=False, compare=False)

    def extreme(self, most: bool, mask: Bools | None = None) -> Floats:
        """The least (or ``most``) value of each class over some tuples, over all where the mask leaves none."""
        key = most, b"" if mask is None else mask.tobytes()
        if key not in self._extremes:
            chosen = self.values if mask is None or not mask.any() else self.values[:, mask]
            self._extremes[key] = chosen.max(axis=1) if most else chosen.min(axis=1)
        return self._extremes[key]


def term_tables(features: Features, shapes: Columns, terms: Iterable[Term]) -> list[TermTable]:
    """Tabulate terms over a set of shapes; terms that are zero throughout are left out.

    A table is over the features of its term's scope that make a difference.
    """
    out = []
    fixed = {n: v[0] for n, v in features.values.items() if len(v) == 1}
    for term in terms:
        shape, scope = split_scope(term.scope)
        free = tuple(n for n in scope if n not in fixed)
        first, inverse = (
            shapes.classes(shape) if shape else (np.zeros(1, np.int64), np.zeros(shapes.rows, np.int64))
        )
        legal = features.legal(free)
        at: dict[str, Any] = {n: shapes.array(n)[first][:, None] for n in shape}
        at |= features.arrays(free, legal) | {n: fixed[n] for n in scope if n in fixed}
        raw = np.asarray(term.call(features.job.facts, at), float)
        if raw.any():
            names, tuples, values = _depends(free, legal, np.broadcast_to(raw, (len(first), len(legal))))
            out.append(TermTable(term, names, tuples, values, inverse))
    return out


def _depends(names: tuple[str, ...], tuples: Ints, values: Floats) -> tuple[tuple[str, ...], Ints, Floats]:
    """Drop the features that make no difference to a table."""
    for name in names:
        others = [i for i, n in enumerate(names) if n != name]
        if not others:
            if (values == values[:, :1]).all():
                return (), np.zeros((1, 0), np.int64), values[:, :1]
            continue
        rest, first, inverse = np.unique(tuples[:, others], axis=0, return_index=True, return_inverse=True)
        if (values == values[:, first][:, inverse]).all():
            return _depends(tuple(names[i] for i in others), rest, values[:, first])
    return names, tuples, values
