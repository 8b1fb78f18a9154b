"""The slow, obvious answer: every plan of a small job, judged and priced one by one.

Nothing in here bounds, tabulates or reasons. Decisions are tried one after the other, and a partial choice is
dropped only when a rule whose whole scope is chosen does not hold.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from mbsolve.constraints import quantised as pricing
from mbsolve.constraints.demands import Demands
from mbsolve.constraints.evaluate import Priced
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.quantised import Quantised, memory_limits, quantised
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.splits import splits
from mbsolve.constraints.terms import TERMS
from mbsolve.constraints.vocabulary import DECISIONS, FEATURES, Plan, Split, plan_of
from mbsolve.solver.search import Found, Objective, Search, hard_rules
from mbsolve.solver.tie import count_unusual, feature_order, key_of, shape_order

Values = dict[str, Any]
SIZES = {"dp": ("tp", "cp", "pp"), "edp": ("etp", "ep", "pp"), "microbatches": ("tp", "cp", "pp", "mbs")}
NEUTRAL = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, "mbs": 1}


def needs(rule: Rule) -> set[str]:
    """The decisions that a rule reads, derived sizes resolved."""
    return {n for name in rule.scope for n in SIZES.get(name, (name,))}


def holds(rule: Rule, job: Job, values: Mapping[str, Any]) -> bool:
    """Whether a rule holds; a split that places the layers wrongly breaks it."""
    try:
        return rule.holds(job.facts, {**values, **derive(job, {**NEUTRAL, **values})})
    except PlacementError:
        return False


def candidates(job: Job, demands: Demands, values: Mapping[str, Any]) -> Sequence[Split]:
    """The splits to try for a pipeline."""
    if demands.split is not None:
        return demands.splits(job.model.num_layers)
    pp, vpp = values["pp"], values["vpp"]
    if vpp > 1 and pp * vpp > job.model.num_layers + 2:
        return ()
    found = splits(job.model, pp, vpp)
    return tuple(s for s in found if s.layout is None) if demands.no_layout else found


def legal_assignments(job: Job, demands: Demands) -> Iterator[Values]:
    """Every full assignment for which every rule of the search holds."""
    due: dict[str, list[Rule]] = defaultdict(list)
    always: list[Rule] = []
    for rule in hard_rules(job):
        names = needs(rule)
        if names:
            due[max(names, key=DECISIONS.index)].append(rule)
        else:
            always.append(rule)
    if not all(holds(r, job, {}) for r in always):
        return

    def extend(values: Values, at: int) -> Iterator[Values]:
        if at == len(DECISIONS):
            sizes = derive(job, values)
            if all(sizes[n] == wanted for n, wanted in demands.derived.items()):
                yield dict(values)
            return
        name = DECISIONS[at]
        options = candidates(job, demands, values) if name == "split" else demands.domains[name]
        for option in options:
            values[name] = option
            if all(holds(r, job, values) for r in due[name]):
                yield from extend(values, at + 1)
        values.pop(name, None)

    yield from extend({}, 0)


@contextmanager
def remembered_terms() -> Iterator[None]:
    """Price plans with each term called once for each value of its own scope: the same numbers, sooner."""
    memory: dict[tuple[int, tuple[Any, ...]], float] = {}

    def priced(job: Job, plan: Plan) -> Priced:
        flat = plan.values()
        flat |= derive(job, flat)
        out = Priced(job, plan, flat)
        for number, t in enumerate(TERMS):
            key = (number, tuple(flat[n] for n in t.scope))
            if key not in memory:
                memory[key] = float(t.call(job.facts, flat))
            out.terms[t.row].append((t, memory[key]))
        return out

    with mock.patch.object(pricing, "priced", priced):
        yield


@dataclass(frozen=True)
class Entry:
    """One legal plan with its numbers."""

    values: Values
    plan: Plan
    quanta: Quantised
    order: tuple[Any, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(self.values)

    def fits(self, job: Job) -> bool:
        """Whether the plan fits a job that differs in its memory only."""
        device, host = memory_limits(job)
        return self.quanta.peak <= device and self.quanta.host <= host

    def score(self, objective: Objective) -> int:
        return self.quanta.step if objective == "time" else self.quanta.peak

    def rank(self, objective: Objective) -> tuple[Any, ...]:
        """What is compared, the first difference deciding."""
        step, peak = self.quanta.step, self.quanta.peak
        first = (step, peak) if objective == "time" else (peak, step)
        return (*first, count_unusual(self.values), *self.order)


def entries(job: Job, demands: Demands, most: int | None = None) -> list[Entry]:
    """Every legal plan, priced; ``most`` + 1 of them when there are more than ``most``."""
    found = legal_assignments(job, demands)
    if most is not None:
        found = itertools.islice(found, most + 1)
    assignments = list(found)
    if most is not None and len(assignments) > most:
        return [Entry(v, plan_of(v), Quantised(0, 0, 0, 0, 0), ()) for v in assignments]
    out = []
    with remembered_terms():
        for values in assignments:
            plan = plan_of(values)
            index = {n: demands.domains[n].index(values[n]) for n in FEATURES}
            order = (shape_order(values), feature_order(index))
            out.append(Entry(values, plan, quantised(job, plan), order))
    return out


def best_of(job: Job, found: Sequence[Entry], objective: Objective, top: int) -> list[Entry]:
    """The best plan of each key among those that fit, best first."""
    ranked = sorted((e for e in found if e.fits(job)), key=lambda e: e.rank(objective))
    by_key: dict[tuple[Any, ...], Entry] = {}
    for entry in ranked:
        by_key.setdefault(entry.key, entry)
    return list(by_key.values())[:top]


def searched(job: Job, demands: Demands, objective: Objective, top: int, **options: Any) -> list[Found]:
    """The best plans as the solver finds them, rank by rank, the way `solve` asks for them."""
    search = Search(job, demands, objective, **options)
    plans: list[Found] = []
    if search.pool.empty:
        return plans
    for _ in range(top):
        floor = plans[-1].score(objective) if plans else 0
        found = search.best([key_of(p.values) for p in plans], floor, ahead=top - len(plans))
        if found is None:
            break
        plans.append(found)
    return plans
