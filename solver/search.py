"""Finding the best plans and proving them best.

The search goes through levels (`goal.Goal`). Under each, everything whose bound is lower is opened and searched
exactly, key by key. What a rank has found is then proven: CP-SAT is asked for something better on every shape whose
bound is under the best plan; when it says there is none, the plan is optimal, since the bounds exclude all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbsolve.constraints.demands import Demands, narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.canonical import CANONICAL
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.solver.cpsat import FEASIBLE, INFEASIBLE, OPTIMAL
from mbsolve.solver.encode import Master
from mbsolve.solver.found import Found, InternalError, Objective, OutOfTime, key_str
from mbsolve.solver.goal import ABOVE, Key
from mbsolve.solver.session import Session
from mbsolve.solver.settle import settle
from mbsolve.solver.tie import key_of

__all__ = [
    "BATCH",
    "GUESS",
    "Found",
    "InternalError",
    "Objective",
    "OutOfTime",
    "Search",
    "hard_rules",
    "key_str",
    "open_search",
    "rules_of",
]

# Shapes that CP-SAT is given at first, and at most at once.
GUESS = 8
BATCH = 48


def hard_rules(job: Job) -> list[Rule]:
    """The rules that a plan of this job must satisfy, and those that keep one plan of each set of equals."""
    law = [r for r in RULES if r.kind == "hard" and r.holds_for(job.target)]
    return [*law, *CANONICAL]


# Canonical rules that leave out what a user may still ask for by name: legal, if redundant or unusual.
_YIELDING = frozenset(
    {
        "canonical-recompute-layers",
        "canonical-recompute-moe",
        "canonical-recompute-block",
        "canonical-local-router",
    }
)


def _overruled(rule: Rule, demands: Demands) -> bool:
    """Whether a canonical rule yields to a value that the user fixed."""
    # Graphs of a kind may be asked for without a word on their scopes.
    return rule.id in _YIELDING and bool((set(rule.scope) - {"cuda_graph_impl"}) & demands.fixed)


def rules_of(job: Job, demands: Demands) -> list[Rule]:
    """The rules of a search: `hard_rules`, without those that yield to a demand."""
    return [r for r in hard_rules(job) if not _overruled(r, demands)]


@dataclass
class Search(Session):
    """One search: a session, and the plans found in it; without ``rules`` it takes `rules_of` its demands."""

    def __post_init__(self) -> None:
        self.rules = self.rules or rules_of(self.job, self.demands)
        self.known: dict[tuple[Any, ...], Found] = {}
        super().__post_init__()

    def note(self, found: Found) -> None:
        """Keep the best plan of each key."""
        key = key_of(found.values)
        if self.goal.note(key, self.seconds(found.score(self.objective))):
            self.known[key] = found

    def offer(self, values: dict[str, Any]) -> None:
        """Price a plan and note it, if it is legal, fits, and is the best of its key."""
        if not self.legal(values):
            return
        found = self.price(values)
        if found.quanta.fits or not self.limited:
            self.note(found)

    def best(
        self, exclude: Sequence[Key], floor: int = 0, ahead: int = 1, any_plan: bool = False
    ) -> Found | None:
        """The best plan whose key is none of ``exclude``, proven; None when there is none.

        Parameters
        ----------
        exclude : keys of the plans of earlier ranks.
        floor : no plan scores less than this many quanta.
        ahead : ranks that will be asked for, this one included: what they need is bounded together.
        any_plan : whether the first plan found will do; it is not proven best.

        Raises
        ------
        OutOfTime
            when the deadline passes first; `known` holds what was found.
        """
        closed: dict[int, NDArray[Any]] = {}
        size = GUESS
        self.goal.wanted = len(exclude) + (ahead if self.objective == "time" else 1)
        while True:
            self._prepare(any_plan)
            top = self.incumbent(exclude)
            if top and any_plan:
                return top
            upper = min(self._level(), top.score(self.objective) if top else self.most_quanta() + 1)
            if top and top.score(self.objective) <= floor:
                break
            picks = self._open(upper, exclude, closed, size)
            if not picks:
                if (top and top.score(self.objective) <= upper) or not self.goal.climb(self.pool.frontier()):
                    break
                closed.clear()
                continue
            self.left()
            result = self._solve(picks, exclude, upper, floor)
            for c, index in picks:
                mask = closed.setdefault(c, np.zeros(self.pool.chunks[c].shapes.rows, bool))
                mask[index] = True
            if result is None:
                size = min(size * 2, BATCH)
            else:
                self.note(result)
                size = BATCH
        top = self.incumbent(exclude)
        if top is None:
            return None
        settled = settle(self, top, exclude, BATCH)
        self.known[key_of(settled.values)] = settled
        settled.proven = True
        return settled

    def incumbent(self, exclude: Sequence[Key] = ()) -> Found | None:
        """The best plan known whose key is none of ``exclude``."""
        fit = [f for k, f in self.known.items() if k not in exclude]
        return min(fit, key=lambda f: (f.score(self.objective), f.quanta.peak, key_str(f)), default=None)

    def guess(self) -> None:
        """Look for a plan among the open shapes with the least bounds, whatever the level."""
        upper = self.most_quanta() + 1
        picks = self._open(upper, (), {}, GUESS)
        found = self._solve(picks, (), upper, 0) if picks else None
        if found is not None:
            self.note(found)

    def _level(self) -> int:
        """The goal's level in whole quanta."""
        return math.floor(self.goal.level / self.quantum() + 1e-6)

    def _prepare(self, any_plan: bool = False) -> None:
        """Open and tighten until every shape under the goal is known, or ``any_plan`` is."""
        with self.building():
            while not (any_plan and self.known):
                self.left()
                target = self.goal.target
                if not self.pool.tighten(target):
                    if self.most_shapes is not None and self.pool.shapes > self.most_shapes:
                        raise OutOfTime
                    if not self.pool.grow(target):
                        return
                self.say(f"{self.pool.layouts} layouts opened")

    def _open(
        self, upper: int, exclude: Sequence[Key], closed: Mapping[int, NDArray[Any]], size: int
    ) -> list[tuple[int, NDArray[Any]]]:
        """The next shapes to solve: those whose bound is under the incumbent, the least bound first."""
        rows: list[tuple[float, int, int]] = []
        limit = self.seconds(upper) * ABOVE * (1 - 1e-12)
        excluded = frozenset(exclude)
        for c, chunk in enumerate(self.pool.chunks):
            bound = chunk.bounds(excluded)
            mask = (bound < limit) & ~np.isneginf(chunk.aimed)
            if c in closed:
                mask &= ~closed[c]
            rows += [(float(bound[i]), c, int(i)) for i in np.flatnonzero(mask)]
        rows.sort()
        out: dict[int, list[int]] = {}
        for _, c, i in rows[:size]:
            out.setdefault(c, []).append(i)
        return [(c, np.array(sorted(v), np.int64)) for c, v in sorted(out.items())]

    def _solve(
        self,
        picks: Sequence[tuple[int, NDArray[Any]]],
        exclude: Sequence[Key],
        upper: int,
        floor: int,
    ) -> Found | None:
        """The best plan of some shapes under ``upper`` quanta, or None."""
        best: Found | None = None
        with self.building():
            masters = self.masters(picks)
        for _, master in masters:
            limit = upper - 1 if best is None else best.score(self.objective) - 1
            if limit < floor:
                break
            with self.building():
                goal = self._post(master, exclude, limit)
            master.model.minimize(goal)
            done = self.ask(master)
            if done.status == INFEASIBLE:
                continue
            if done.status not in (OPTIMAL, FEASIBLE):
                raise OutOfTime
            values = master.assignment(done.value)
            found = self.recheck(values, done.integer(goal))
            if best is None or found.score(self.objective) < best.score(self.objective):
                best = found
            if done.status == FEASIBLE:
                self.note(found)
                raise OutOfTime
        return best

    def _post(self, master: Master, exclude: Sequence[Key], most: int) -> Any:
        """Budgets, objective and exclusions; returns the objective's variable."""
        self.exclude(master, exclude)
        if self.objective == "time":
            if self.limited:
                master.post_memory(peak_wanted=False)
            return master.post_time(most)
        peak = master.post_memory(peak_wanted=True, unlimited=not self.limited)
        master.model.add(peak <= most)
        return peak


def open_search(
    job: Job,
    objective: Objective = "time",
    fixed: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    **options: Any,
) -> Search:
    """A search with the demands applied.

    Raises
    ------
    DemandError
        when a demand names no decision or an impossible value.
    """
    return Search(job, narrow(domains(job), fixed, forbid), objective, **options)
