"""Rules and demands by themselves, no costs: whether some of them can hold together, and the fewest that cannot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from mbsolve.constraints.demands import forbidden, narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import DECISIONS, SPLIT_FIELDS, Split
from mbsolve.solver.columns import NEEDS, holds, with_sizes
from mbsolve.solver.cpsat import FEASIBLE, OPTIMAL, run

__all__ = ["Logic", "Member", "Relation"]

# A pipeline is one variable: the splits that there are hang on its stages.
PIPELINE = ("pp", "vpp", "split")
# Forbidden tuples of a member that are posted one by one; the allowed ones are where these are fewer.
CLAUSES = 64

Bools = NDArray[np.bool_]
Member = tuple[str, str]


class Relation:
    """A rule or demand as the combinations of values that it allows.

    Parameters
    ----------
    names : variables of the `Logic`.
    allowed : one axis for each of the names.
    rule : the rule; None of a demand.
    """

    def __init__(self, names: tuple[str, ...], allowed: Bools, rule: Rule | None = None) -> None:
        self.names, self.allowed, self.rule = names, allowed, rule

    def left(self, open_values: Mapping[str, Bools]) -> dict[str, Bools]:
        """The values of each variable that some allowed combination of open values has."""
        table = self.allowed
        for axis, name in enumerate(self.names):
            shape = [1] * table.ndim
            shape[axis] = -1
            table = table & open_values[name].reshape(shape)
        axes = range(table.ndim)
        return {
            n: np.asarray(table.any(axis=tuple(a for a in axes if a != i))) for i, n in enumerate(self.names)
        }


class Logic:
    """The decisions of a job with its rules and demands, each of which can be left out.

    A member is ``("rule", id)``, ``("demand", field)`` or ``("forbid", text)``; fields of the split are one demand,
    ``("demand", "split")``. Members that forbid nothing are not among `members`.

    Parameters
    ----------
    job : what is asked.
    rules : hard rules; those of one id are one member.
    fixed, forbid : demands, as of `demands.narrow`.
    """

    def __init__(
        self, job: Job, rules: Iterable[Rule], fixed: Mapping[str, Any], forbid: Sequence[str]
    ) -> None:
        self.job = job
        self.whole = domains(job)
        asked = self._demands(fixed)
        self.values: dict[str, tuple[Any, ...]] = {
            name: tuple(
                dict.fromkeys((*self.whole[name], *(v for d in asked.values() for v in d.get(name, ()))))
            )
            for name in DECISIONS
            if name != "split"
        }
        self.values["pipeline"] = tuple(self._pipelines(fixed))
        self.relations: dict[Member, list[Relation]] = {}
        for member, allowed in asked.items():
            for name, some in allowed.items():
                self._relate(member, (name,), _one_of(name, some))
        for text in forbid:
            for name, gone in forbidden(self.whole, text).items():
                # Left are also values that only another demand offers.
                left = [v for v in self.values[name] if v not in gone]
                self._relate(("forbid", text), (name,), _one_of(name, left))
        self._sizes_and_split(fixed)
        for rule in rules:
            self._relate(("rule", rule.id), rule.scope, _keeps(rule, job), rule)
        self.members = list(self.relations)

    def _demands(self, fixed: Mapping[str, Any]) -> dict[Member, dict[str, tuple[Any, ...]]]:
        """For each demand on decisions: the values that it leaves of each decision."""
        out: dict[Member, dict[str, tuple[Any, ...]]] = {}
        for name, value in fixed.items():
            left = narrow(self.whole, {name: value}).domains
            changed = {n: left[n] for n in left if left[n] != self.whole[n]}
            if name == "recompute_modules" and "recompute_granularity" in fixed:
                changed.pop("recompute_granularity", None)
            if changed:
                out["demand", name] = changed
        return out

    def _pipelines(self, fixed: Mapping[str, Any]) -> Iterator[tuple[int, int, Split]]:
        """Stages, interleaving and split; even splits stand for all where none is offered."""
        asked = narrow(self.whole, {n: v for n, v in fixed.items() if n in SPLIT_FIELDS})
        wanted = asked.splits(self.job.model.num_layers)
        for pp, vpp in itertools.product(self.values["pp"], self.values["vpp"]):
            offered = vpp == 1 or pp * vpp <= self.job.model.num_layers + 2
            found = list(splits(self.job.model, pp, vpp)) if offered else []
            offers: list[Split] = found or [Split()]
            offers += [split for split in wanted if split not in offers]
            yield from ((pp, vpp, split) for split in offers)

    def _sizes_and_split(self, fixed: Mapping[str, Any]) -> None:
        """Demands on what follows from decisions, and on the split."""
        demands = narrow(self.whole, fixed)
        for name, wanted in demands.derived.items():
            self._relate(("demand", name), (name,), _one_of(name, (wanted,)))
        meant = demands.splits(self.job.model.num_layers)
        if meant:
            self._relate(("demand", "split"), ("split",), _one_of("split", meant))
        elif demands.no_layout:
            self._relate(("demand", "split"), ("split",), lambda at: at["split"].layout is None)

    def _relate(
        self,
        member: Member,
        scope: Sequence[str],
        allowed: Callable[[Mapping[str, Any]], bool],
        rule: Rule | None = None,
    ) -> None:
        """Tabulate one more relation of a member, unless it allows everything."""
        needs = dict.fromkeys(n for name in scope for n in NEEDS.get(name, (name,)))
        names = tuple(dict.fromkeys("pipeline" if "split" in needs and n in PIPELINE else n for n in needs))
        known: dict[tuple[Any, ...], bool] = {}
        table = np.empty([len(self.values[n]) for n in names], bool)
        for at, values in zip(np.ndindex(*table.shape), self._combinations(names, scope), strict=True):
            key = tuple(values[n] for n in scope)
            if key not in known:
                known[key] = allowed(values)
            table[at] = known[key]
        if not table.all():
            self.relations.setdefault(member, []).append(Relation(names, table, rule))

    def _combinations(self, names: Sequence[str], scope: Sequence[str]) -> Iterator[dict[str, Any]]:
        derived = any(n in NEEDS for n in scope)
        for combination in itertools.product(*(self.values[n] for n in names)):
            at = dict(zip(names, combination, strict=True))
            if "pipeline" in at:
                at |= dict(zip(PIPELINE, at.pop("pipeline"), strict=True))
            yield with_sizes(self.job, at) if derived else at

    def fewest(self) -> list[Member] | None:
        """A conflict of the fewest members, those listed first preferred; None where all can hold together.

        Every conflict meets every set of members that some assignment leaves unsatisfied. So: the smallest set of
        members that meets the sets seen so far; an assignment that satisfies it and as much of the rest as can be
        gives the next set; where there is none, the set is a conflict, and none is smaller.
        """
        model = _Model(self)
        seen: list[list[int]] = []
        while True:
            chosen = _meeting(seen, len(self.members))
            missed = model.missed(chosen)
            if missed is None:
                return [self.members[i] for i in chosen]
            if not missed:
                return None
            seen.append(missed)

    def together(self, members: Iterable[Member]) -> bool:
        """Whether some members can hold together."""
        wanted = set(members)
        return _Model(self).missed([i for i, m in enumerate(self.members) if m in wanted]) is not None


Test = Callable[[Mapping[str, Any]], bool]


def _one_of(name: str, values: Sequence[Any]) -> Test:
    return lambda at: at[name] in values


def _keeps(rule: Rule, job: Job) -> Test:
    return lambda at: holds(rule, job, at)


class _Model:
    """A CP-SAT model in which every member has a literal that enforces it."""

    def __init__(self, logic: Logic) -> None:
        self.model = cp_model.CpModel()
        self.literals: dict[str, list[Any]] = {}
        touched = {n for relations in logic.relations.values() for r in relations for n in r.names}
        for name in logic.values:
            if name in touched or ("pipeline" in touched and name in ("pp", "vpp")):
                self.literals[name] = [self.model.new_bool_var("") for _ in logic.values[name]]
                self.model.add_exactly_one(self.literals[name])
        if "pipeline" in self.literals:
            for i, name in enumerate(PIPELINE[:2]):
                for pipe, literal in zip(logic.values["pipeline"], self.literals["pipeline"], strict=True):
                    at = logic.values[name].index(pipe[i])
                    self.model.add_implication(literal, self.literals[name][at])
        self.guards = [self.model.new_bool_var("") for _ in logic.members]
        for guard, member in zip(self.guards, logic.members, strict=True):
            for relation in logic.relations[member]:
                self._post(relation, guard)
        self.model.maximize(sum(self.guards))

    def _post(self, relation: Relation, guard: Any) -> None:
        good, bad = np.argwhere(relation.allowed), np.argwhere(~relation.allowed)
        literals = [self.literals[n] for n in relation.names]
        if len(bad) <= CLAUSES or len(bad) <= len(good):
            for combination in bad:
                clause = [~lits[int(v)] for lits, v in zip(literals, combination, strict=True)]
                self.model.add_bool_or([*clause, ~guard])
            return
        if len(relation.names) == 1:
            self.model.add_bool_or([*(literals[0][int(v)] for (v,) in good), ~guard])
            return
        picks = [self.model.new_bool_var("") for _ in good]
        for pick, combination in zip(picks, good, strict=True):
            for lits, v in zip(literals, combination, strict=True):
                self.model.add_implication(pick, lits[int(v)])
        self.model.add_bool_or([*picks, ~guard])

    def missed(self, chosen: Sequence[int]) -> list[int] | None:
        """The fewest members that an assignment with all of ``chosen`` leaves unsatisfied; None where there is none."""
        fixed = set(chosen)
        for i, guard in enumerate(self.guards):
            self.model.proto.variables[guard.index].domain[:] = [1, 1] if i in fixed else [0, 1]
        done = run(self.model, 1, None)
        if done.status not in (OPTIMAL, FEASIBLE):
            return None
        return [i for i, guard in enumerate(self.guards) if not done.value(guard)]


def _meeting(sets: Sequence[Sequence[int]], members: int) -> list[int]:
    """The fewest members that meet every set; of equally few, the ones that come first."""
    if not sets:
        return []
    model = cp_model.CpModel()
    chosen = [model.new_bool_var("") for _ in range(members)]
    for some in sets:
        model.add_bool_or([chosen[i] for i in some])
    model.minimize(sum((members * members + i) * c for i, c in enumerate(chosen)))
    done = run(model, 1, None)
    return [i for i, c in enumerate(chosen) if done.value(c)]
