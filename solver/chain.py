"""A conflict of rules and demands as a chain: what is asked, what each rule leaves of it, and the rule that leaves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mbsolve.constraints.rule import Rule
from mbsolve.solver.columns import with_sizes
from mbsolve.solver.logic import PIPELINE, Bools, Logic, Member, Relation
from mbsolve.solver.outcome import Cause

__all__ = ["Narrowing", "chain", "narrowed", "pins"]

# Decisions worth a word where a rule settles them.
SIZES = ("tp", "cp", "pp", "vpp", "ep", "etp", "mbs", "activation_offload_layers", "dispatcher")

Step = tuple[Member, Rule, dict[str, list[Any]]]

# Values that a sentence lists; of more it gives the ends.
LISTED = 4


class Narrowing:
    """What is left of every decision while rules are applied one after the other.

    Parameters
    ----------
    logic : decisions and relations.
    """

    def __init__(self, logic: Logic) -> None:
        self.logic = logic
        self.open: dict[str, Bools] = {n: np.ones(len(v), bool) for n, v in logic.values.items()}

    @property
    def empty(self) -> bool:
        """Whether some decision has no value left."""
        return any(not mask.any() for mask in self.open.values())

    def left(self, name: str) -> list[Any]:
        """The values that a decision can still take."""
        if name == "split":
            pipes = self.logic.values["pipeline"]
            return list(dict.fromkeys(pipes[int(i)][2] for i in np.flatnonzero(self.open["pipeline"])))
        return [self.logic.values[name][int(i)] for i in np.flatnonzero(self.open[name])]

    def apply(self, relation: Relation) -> list[str]:
        """Leave what a relation allows; the names of the decisions that lost a value by it."""
        before = {n: m.copy() for n, m in self.open.items()}
        self.open |= relation.left(self.open)
        self._channel()
        return [n for n in before if n != "pipeline" and (before[n] != self.open[n]).any()]

    def refusal(self, relation: Relation) -> str | None:
        """The words of a rule that allows nothing of what is left, at the first values left; None if it does."""
        rule = relation.rule
        if rule is None or relation.left(self.open)[relation.names[0]].any():
            return None
        at: dict[str, Any] = {}
        various = []
        for name in relation.names:
            for part in PIPELINE if name == "pipeline" else (name,):
                values = self.left(part)
                at[part] = values[0]
                various += [part] if len(values) > 1 and part in relation.names else []
        clause = rule.clause(self.logic.job.facts, with_sizes(self.logic.job, at)).rstrip(".")
        return clause + (f"; the same with any other {' and '.join(various)}" if various else "")

    def _channel(self) -> None:
        """Carry what is left of pipelines over to their stages, and back."""
        values = self.logic.values
        pipes = values["pipeline"]
        for i, name in enumerate(PIPELINE[:2]):
            at = np.array([values[name].index(pipe[i]) for pipe in pipes], np.int64)
            self.open["pipeline"] = self.open["pipeline"] & self.open[name][at]
            kept = np.zeros(len(values[name]), bool)
            kept[at[self.open["pipeline"]]] = True
            self.open[name] = self.open[name] & kept


def narrowed(logic: Logic, members: Iterable[Member]) -> tuple[Narrowing, list[Step]]:
    """Apply members until nothing changes: what is left, and each step (member, rule, values that it left).

    Demands come first; of rules, one is applied again as often as it narrows something. Ends where nothing is left.
    """
    now = Narrowing(logic)
    members = list(members)
    for member in members:
        if member[0] != "rule":
            for relation in logic.relations[member]:
                now.apply(relation)
    steps: list[Step] = []
    rules = [(m, r) for m in members if m[0] == "rule" for r in logic.relations[m]]
    changed = True
    while changed and not now.empty:
        changed = False
        for member, relation in rules:
            before = dict(now.open)
            names = now.apply(relation)
            if names and relation.rule is not None:
                steps.append((member, relation.rule, {name: now.left(name) for name in names}))
                changed = True
            if now.empty:
                # The reason names the values that the last rule met.
                now.open = before
                return now, steps
    return now, steps


def chain(logic: Logic, members: Sequence[Member], fixed: Mapping[str, Any]) -> list[Cause]:
    """The sentences of the rules of a conflict, one for each."""
    now, steps = narrowed(logic, members)
    told: dict[Member, Cause] = {}
    last = steps[-1][0] if steps else None
    for member, rule, left in steps:
        if member == last or member in told:
            continue
        told[member] = Cause(rule=member[1], text=f"{_law(rule)}: {_left(left)}")
    for member in [m for m in members if m[0] == "rule" and m not in told]:
        told[member] = Cause(rule=member[1], text=_reason(now, logic.relations[member], fixed))
    return list(told.values())


def pins(logic: Logic, fixed: Mapping[str, Any]) -> list[Cause]:
    """The rules by which demands settle sizes that were open, and at what; a cause for each rule."""
    settled: dict[str, tuple[Rule, dict[str, list[Any]]]] = {}
    seen: set[str] = set(fixed)
    for (_, name), rule, left in reversed(narrowed(logic, logic.members)[1]):
        mine = {n: v for n, v in left.items() if n in SIZES and n not in seen and len(v) == 1}
        if mine:
            settled.setdefault(name, (rule, {}))[1].update(mine)
            seen |= set(mine)
    return [
        Cause(rule=name, text=f"{_law(rule)}: {_left(left)}")
        for name, (rule, left) in reversed(settled.items())
    ]


def _reason(now: Narrowing, relations: Sequence[Relation], fixed: Mapping[str, Any]) -> str:
    """A rule in the numbers of the case, where it refuses every case; else in general words."""
    for relation in relations:
        told = now.refusal(relation)
        if told is not None:
            return told
    rule = relations[0].rule
    if rule is None:
        return ""
    given = [f"{n}={fixed[n]}" for n in rule.scope if n in fixed]
    return _law(rule) + (f" (here {', '.join(given)})" if given else "")


def _law(rule: Rule) -> str:
    """The law in general words, in the middle of a sentence."""
    text = rule.text.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _left(left: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(f"{name} {_values(values)}" for name, values in left.items())


def _values(values: Sequence[Any]) -> str:
    """``is 4``, ``is 1, 2 or 4``, ``is one of 12 from 1 to 64``."""
    words = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    if len(words) == 1:
        return f"is {words[0]}"
    if len(words) <= LISTED:
        return f"is {', '.join(words[:-1])} or {words[-1]}"
    return f"is one of {len(words)} from {words[0]} to {words[-1]}"
