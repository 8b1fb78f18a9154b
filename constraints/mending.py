"""Repairs of a broken rule: the nearest changes after which it holds, each judged again by all rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mbsolve.constraints.changes import applied, distance, now, said
from mbsolve.constraints.findings import Repair
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken, broken_laws
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.repair import moves, replaces
from mbsolve.constraints.vocabulary import Plan

__all__ = ["mends", "ways", "whole"]

PER_FIELD: Final = 3
"""Repairs that change the same fields."""
MOST: Final = 12
TRIED: Final = 12
"""Values of the same fields that are judged."""
DEEPER: Final = 2
"""Values of the same fields for which a second change is looked for, when they break another law."""
BRANCHES: Final = 5
DEPTH: Final = 2
STEPS: Final = 12
"""Laws that are mended one after the other."""


Ways = Mapping[str, Collection[frozenset[str]]]


@dataclass(frozen=True)
class _Case:
    rule: Rule
    job: Job
    plan: Plan
    unknown: Collection[str]
    before: frozenset[str]
    others: Ways

    def after(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Laws that are broken after a change."""
        job, plan, _ = normalise(*applied(self.job, self.plan, fields), unknown=self.unknown)
        return broken_laws(job, plan, unknown=self.unknown)

    def breaks(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Laws that a change would newly break, or leave broken though it was to mend it."""
        return tuple(law for law in self.after(fields) if law not in self.before or law == self.rule.id)

    def halfway(self, fields: Mapping[str, Any]) -> int:
        """How many other laws are left broken that another value of the same fields would mend."""
        return sum(any(way <= set(fields) for way in self.others.get(law, ())) for law in self.after(fields))

    def far(self, fields: Mapping[str, Any]) -> float:
        return distance(self.job, self.plan, fields)


def ways(rules: Iterable[Rule], job: Job, plan: Plan, unknown: Collection[str] = ()) -> Ways:
    """Return, for each of some broken laws, the sets of fields that a change of no others can mend."""
    out: dict[str, set[frozenset[str]]] = defaultdict(set)
    for rule in rules:
        out[rule.id] |= {frozenset(fields) for fields in moves(rule, job, plan, unknown)}
    return out


def mends(
    rule: Rule,
    job: Job,
    plan: Plan,
    *,
    unknown: Collection[str] = (),
    before: Collection[str] = (),
    others: Ways = MappingProxyType({}),
) -> tuple[Repair, ...]:
    """Return repairs of one rule, nearest first.

    A repair changes one decision, size or setting; where that breaks another law, also what mends this one. Those that
    break something else are offered when there is no other, and say so; those that leave another law broken which
    the same fields could mend, when there is no better one.

    Parameters
    ----------
    unknown : fields whose values are only placeholders.
    before : ids of the laws that the plan breaks.
    others : what mends them; see `ways`.
    """
    case = _Case(rule, job, plan, unknown, frozenset(before), others)
    by_fields: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for fields in sorted(moves(rule, job, plan, unknown), key=case.far):
        by_fields[tuple(fields)].append(fields)
    sound, unsound = list[dict[str, Any]](), list[tuple[dict[str, Any], tuple[str, ...]]]()
    for group in by_fields.values():
        whole, torn = _sorted_out(case, group)
        sound += whole
        unsound += torn
    if sound:
        left = {id(fields): case.halfway(fields) for fields in sound}
        fewest = min(left.values())
        sound = [fields for fields in sound if left[id(fields)] == fewest]
        chosen = _distinct(case, sound)
        return tuple(Repair(set=fields, text=said(job, plan, fields)) for fields in chosen)
    return tuple(
        Repair(set=fields, text=f"{said(job, plan, fields)} (but this breaks {', '.join(more)})", breaks=more)
        for fields, more in sorted(unsound, key=lambda one: case.far(one[0]))[:PER_FIELD]
    )


def whole(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> Repair | None:
    """Return a change after which no law is broken: the nearest repair of any of them, again and again.

    None where a law has no repair, or the repairs go round in circles.
    """
    fields: dict[str, Any] = {}
    seen = [fields]
    for _ in range(STEPS):
        changed, altered, _ = normalise(*applied(job, plan, fields), unknown=unknown)
        found = [r for r, because in broken(changed, altered, "hard", unknown) if because is not None]
        if not found:
            final = {name: value for name, value in fields.items() if now(job, plan, name) != value}
            final = _needed(job, plan, final, unknown)
            return Repair(set=final, text=said(job, plan, final)) if final else None
        before = {rule.id for rule in found}
        others = ways(found, changed, altered, unknown) if len(found) > 1 else {}
        offered = [
            repair
            for rule in found
            for repair in mends(rule, changed, altered, unknown=unknown, before=before, others=others)
            if not repair.breaks and {**fields, **repair.set} not in seen
        ]
        if not offered:
            return None
        nearest = min(offered, key=lambda repair: distance(changed, altered, repair.set))
        fields = {**fields, **nearest.set}
        seen.append(fields)
    return None


def _needed(job: Job, plan: Plan, fields: dict[str, Any], unknown: Collection[str]) -> dict[str, Any]:
    """The change without the fields that a later one has made needless."""
    for name in tuple(fields):
        fewer = {other: value for other, value in fields.items() if other != name}
        changed, altered, _ = normalise(*applied(job, plan, fewer), unknown=unknown)
        fields = fields if broken_laws(changed, altered, unknown=unknown) else fewer
    return fields


def _sorted_out(
    case: _Case, group: Iterable[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], tuple[str, ...]]]]:
    """Changes of the same fields: those that break nothing else, made so where needed, and those that do."""
    sound, others = list[dict[str, Any]](), list[tuple[dict[str, Any], tuple[str, ...]]]()
    deeper = whole_ones = 0
    for i, fields in enumerate(group):
        if i >= TRIED or whole_ones >= PER_FIELD:
            break
        more = case.breaks(fields)
        if not more:
            sound.append(fields)
            whole_ones += not case.halfway(fields)
            continue
        found = None
        if deeper < DEEPER:
            deeper += 1
            found = _followed(case, fields, DEPTH)
        if found is not None:
            sound.append(found)
            whole_ones += 1
        else:
            others.append((fields, more))
    return sound, others


def _followed(case: _Case, fields: dict[str, Any], depth: int) -> dict[str, Any] | None:
    """The change with the nearest further ones after which nothing new is broken; None if few do not suffice."""
    job, plan, _ = normalise(*applied(case.job, case.plan, fields), unknown=case.unknown)
    newly = [
        rule
        for rule, because in broken(job, plan, "hard", case.unknown)
        if because is not None and (rule.id not in case.before or rule.id == case.rule.id)
    ]
    if not newly:
        return None if case.breaks(fields) else fields
    if depth == 0 or any(rule.id == case.rule.id for rule in newly):
        return None
    options = [
        {**fields, **more} for more in moves(newly[0], job, plan, case.unknown) if not set(more) & set(fields)
    ]
    for both in sorted(options, key=case.far)[:BRANCHES]:
        found = _followed(case, both, depth - 1)
        if found is not None:
            return found
    return None


def _distinct(case: _Case, sound: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The nearest, without those that change more than another one that suffices."""
    chosen: list[dict[str, Any]] = []
    count: dict[frozenset[str], int] = defaultdict(int)
    for fields in sorted(sound, key=case.far):
        if len(chosen) == MOST:
            break
        same = frozenset(fields)
        covered = not replaces(fields) and any(one.items() <= fields.items() for one in chosen)
        if not covered and count[same] < PER_FIELD:
            chosen.append(fields)
            count[same] += 1
    return chosen
