"""Finding the best plans and proving them best.

A rank of the outcome is searched in two movements. *Guess*: CP-SAT on the few shapes whose relaxed minimiser
looks best. *Prove*: CP-SAT on every shape whose bound is under the best plan found, asked for a better one;
when it says there is none, the plan is optimal, since the bounds exclude all other shapes.
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
from mbsolve.constraints.quantised import memory_limits
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.canonical import CANONICAL
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.solver.cpsat import FEASIBLE, INFEASIBLE, OPTIMAL
from mbsolve.solver.encode import LARGEST, LONGEST, Master
from mbsolve.solver.found import Found, InternalError, Objective, OutOfTime, key_str
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
]

# Shapes that are solved at first, and at most at once.
GUESS = 8
BATCH = 48


def hard_rules(job: Job) -> list[Rule]:
    """The rules that a plan of this job must satisfy, and those that keep one plan of each set of equals."""
    law = [r for r in RULES if r.kind == "hard" and (not r.targets or job.target in r.targets)]
    return [*law, *CANONICAL]


# Canonical rules that leave out what a user may still ask for by name: legal, if redundant or unusual.
_YIELDING = frozenset({"canonical-recompute-layers", "canonical-recompute-moe", "canonical-recompute-block"})


def _overruled(rule: Rule, demands: Demands) -> bool:
    """Whether a canonical rule yields to a value that the user fixed."""
    return rule.id in _YIELDING and bool(set(rule.scope) & demands.fixed)


@dataclass
class Search(Session):
    """One search: a session, and the plans found in it; without ``rules`` it takes `hard_rules`."""

    def __post_init__(self) -> None:
        self.rules = self.rules or [r for r in hard_rules(self.job) if not _overruled(r, self.demands)]
        self.known: dict[tuple[Any, ...], Found] = {}
        super().__post_init__()

    def note(self, found: Found) -> None:
        """Keep the best plan of each key."""
        key = key_of(found.values)
        if key not in self.known or found.score(self.objective) < self.known[key].score(self.objective):
            self.known[key] = found

    def best(self, exclude: Sequence[tuple[Any, ...]], floor: int = 0) -> Found | None:
        """The best plan whose key is none of ``exclude``, proven; None when there is none.

        Raises
        ------
        OutOfTime
            when the deadline passes first; `known` holds what was found.
        """
        closed: dict[int, NDArray[Any]] = {}
        size = GUESS
        self.pool.ban(exclude)
        while True:
            top = self._incumbent(exclude)
            upper = top.score(self.objective) if top else math.inf
            if upper <= floor:
                break
            if self._prepare(upper, exclude):
                continue
            picks = self._open(upper, closed, size)
            if not picks:
                break
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
        top = self._incumbent(exclude)
        if top is None:
            return None
        settled = settle(self, top, exclude, BATCH)
        self.known[key_of(settled.values)] = settled
        settled.proven = True
        return settled

    def _incumbent(self, exclude: Sequence[tuple[Any, ...]]) -> Found | None:
        fit = [f for k, f in self.known.items() if k not in exclude]
        return min(fit, key=lambda f: (f.score(self.objective), f.quanta.peak, key_str(f)), default=None)

    def _target(self, upper: float) -> float:
        """Objective in its unit that a shape's bound must reach to be out."""
        return math.inf if upper == math.inf else self.seconds(upper) * (1 + 1e-9)

    def _prepare(self, upper: float, exclude: Sequence[tuple[Any, ...]]) -> bool:
        """Open and tighten until every shape not excluded is known; True as soon as the incumbent improved."""
        target = self._target(upper)
        with self.building():
            while True:
                self.left()
                while self.pool.tighten(target):
                    self.left()
                    if self._heuristic(exclude):
                        return True
                if not self.pool.grow(target):
                    return False
                self.say(f"{self.pool.next} of {len(self.pool.order)} grids opened")

    def _heuristic(self, exclude: Sequence[tuple[Any, ...]]) -> bool:
        """Price the most promising relaxed minimisers; True when the incumbent improved."""
        if self.objective != "time":
            return False
        before = self._incumbent(exclude)
        best = before.score(self.objective) if before else math.inf
        for chunk in self.pool.chunks:
            order = np.argsort(chunk.estimate, kind="stable")[:3]
            for row in order:
                estimate = chunk.estimate[row]
                if not math.isfinite(estimate) or estimate >= self.seconds(best):
                    continue
                chunk.estimate[row] = math.inf
                values = chunk.guess[int(row)]
                if values is None or not self.legal(values):
                    continue
                found = self.price(values)
                if found.quanta.fits or not self.limited:
                    self.note(found)
        after = self._incumbent(exclude)
        return after is not None and after.score(self.objective) < best

    def _open(
        self, upper: float, closed: Mapping[int, NDArray[Any]], size: int
    ) -> list[tuple[int, NDArray[Any]]]:
        """The next shapes to solve: those whose bound is under the incumbent, the least bound first."""
        rows: list[tuple[float, int, int]] = []
        limit = self._target(upper)
        for c, chunk in enumerate(self.pool.chunks):
            mask = (chunk.bound < limit) & ~np.isneginf(chunk.aimed)
            if c in closed:
                mask &= ~closed[c]
            rows += [(float(chunk.bound[i]), c, int(i)) for i in np.flatnonzero(mask)]
        rows.sort()
        out: dict[int, list[int]] = {}
        for _, c, i in rows[:size]:
            out.setdefault(c, []).append(i)
        return [(c, np.array(sorted(v), np.int64)) for c, v in sorted(out.items())]

    def _solve(
        self,
        picks: Sequence[tuple[int, NDArray[Any]]],
        exclude: Sequence[tuple[Any, ...]],
        upper: float,
        floor: int,
    ) -> Found | None:
        """The best plan of some shapes under ``upper`` quanta, or None."""
        best: Found | None = None
        with self.building():
            masters = self.masters(picks)
        for _, master in masters:
            limit = self._most(upper) if best is None else best.score(self.objective) - 1
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

    def _most(self, upper: float) -> int:
        if upper < math.inf:
            return int(upper) - 1
        if self.objective == "memory":
            return memory_limits(self.job)[0] if self.limited else LARGEST
        return LONGEST

    def _post(self, master: Master, exclude: Sequence[tuple[Any, ...]], most: int) -> Any:
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
