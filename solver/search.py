"""Finding the best plans and proving them best.

A rank of the outcome is searched in two movements. *Guess*: CP-SAT on the few shapes whose relaxed minimiser
looks best. *Prove*: CP-SAT on every shape whose bound is under the best plan found, asked for a better one;
when it says there is none, the plan is optimal, since the bounds exclude all other shapes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from ortools.sat.python import cp_model

from mbsolve.constraints.demands import Demands, narrow
from mbsolve.constraints.domains import domains, raw_size
from mbsolve.constraints.job import Job
from mbsolve.constraints.quantised import Quantised, memory_limits, quantised
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.canonical import CANONICAL
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.vocabulary import FEATURES, Plan, plan_of
from mbsolve.solver.bounds import Bounder
from mbsolve.solver.cpsat import FEASIBLE, INFEASIBLE, OPTIMAL, Run, run
from mbsolve.solver.encode import Master
from mbsolve.solver.outcome import Interrupted, Statistics
from mbsolve.solver.pool import Chunk, Pool
from mbsolve.solver.rows import Rows, moment_rows
from mbsolve.solver.tie import KEY_FEATURES, KEY_SHAPE, key_of, key_value, shape_key, shape_order, unusual

Objective = Literal["time", "memory"]
GUESS = 8
BATCH = 48


class InternalError(RuntimeError):
    """A plan failed its re-check: always a bug of ours."""


class OutOfTime(Exception):
    """The time limit was reached; what is known so far stands."""


def hard_rules(job: Job) -> list[Rule]:
    """The rules that a plan of this job must satisfy, and those that keep one plan of each set of equals."""
    law = [r for r in RULES if r.kind == "hard" and (not r.targets or job.target in r.targets)]
    return [*law, *CANONICAL]


@dataclass
class Found:
    """One plan with the numbers that rank it."""

    values: dict[str, Any]
    plan: Plan
    quanta: Quantised
    proven: bool = False

    def score(self, objective: Objective) -> int:
        """What is minimised, in quanta."""
        return self.quanta.step if objective == "time" else self.quanta.peak


@dataclass
class Search:
    """One search: a pool of shapes, the plans found, and the budget of time."""

    job: Job
    demands: Demands
    objective: Objective
    workers: int = 1
    deadline: float | None = None
    limited: bool = True
    progress: Callable[[str], None] | None = None
    rules: list[Rule] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=lambda: dict.fromkeys(Statistics.model_fields, 0.0))

    def __post_init__(self) -> None:
        start = time.perf_counter()
        self.rules = self.rules or hard_rules(self.job)
        self.pool = Pool(self.job, self.demands, self.rules, self.objective, self.limited)
        self.known: dict[tuple[Any, ...], Found] = {}
        self.statistics["build_seconds"] += time.perf_counter() - start

    # ------------------------------------------------------------------ small helpers
    def say(self, text: str) -> None:
        """Report progress, when someone listens."""
        if self.progress is not None:
            self.progress(text)

    def left(self) -> float | None:
        """Seconds until the deadline."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def legal(self, values: Mapping[str, Any]) -> bool:
        """Whether a full assignment satisfies every rule, canonical ones included."""
        from mbsolve.constraints.job import derive

        at = {**values, **derive(self.job, values)}
        return all(r.holds(self.job.facts, at) for r in self.rules)

    def price(self, values: Mapping[str, Any]) -> Found:
        """Evaluate an assignment in quanta."""
        plan = plan_of(values)
        return Found(dict(values), plan, quantised(self.job, plan))

    def note(self, found: Found) -> None:
        """Keep the best plan of each key."""
        key = key_of(found.values)
        if key not in self.known or found.score(self.objective) < self.known[key].score(self.objective):
            self.known[key] = found

    def seconds(self, score: float) -> float:
        """Quanta of the objective in its unit."""
        return score * self.pool.quantum

    # ------------------------------------------------------------------ one rank
    def best(self, exclude: Sequence[tuple[Any, ...]], floor: int = 0) -> Found | None:
        """The best plan whose key is none of ``exclude``, proven; None when there is none.

        Raises
        ------
        OutOfTime
            when the deadline passes first; `known` holds what was found.
        """
        closed: dict[int, np.ndarray[Any, Any]] = {}
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
        settled = self._settle(top, exclude)
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
        start = time.perf_counter()
        target = self._target(upper)
        try:
            while True:
                self.left()
                while self.pool.tighten(target):
                    self.left()
                    if self._heuristic(exclude):
                        return True
                if not self.pool.grow(target):
                    return False
                self.say(f"{self.pool.next} of {len(self.pool.order)} grids opened")
        finally:
            self.statistics["build_seconds"] += time.perf_counter() - start

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
        self, upper: float, closed: Mapping[int, np.ndarray[Any, Any]], size: int
    ) -> list[tuple[int, np.ndarray[Any, Any]]]:
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

    # ------------------------------------------------------------------ CP-SAT
    def _masters(
        self, picks: Sequence[tuple[int, np.ndarray[Any, Any]]], every_moment: bool = False
    ) -> list[tuple[Chunk, Master]]:
        """A master model for each chunk's picks; with all moments where the peak itself is wanted."""
        out = []
        for c, index in picks:
            chunk = self.pool.chunks[c]
            shapes, rows, tables = chunk.take(index)
            if every_moment:
                rows = Rows(rows.stages, rows.ranks, moment_rows(self.job, shapes))
                bounder = Bounder(self.job, self.pool.features, shapes, rows, tables)
                rows = Rows(rows.stages, rows.ranks, bounder.leading())
            out.append((chunk, Master(self.job, self.pool.features, shapes, rows, tables)))
        return out

    def _solve(
        self,
        picks: Sequence[tuple[int, np.ndarray[Any, Any]]],
        exclude: Sequence[tuple[Any, ...]],
        upper: float,
        floor: int,
    ) -> Found | None:
        """The best plan of some shapes under ``upper`` quanta, or None."""
        best: Found | None = None
        for _, master in self._timed(lambda: self._masters(picks)):
            limit = self._most(upper) if best is None else best.score(self.objective) - 1
            if limit < floor:
                break
            goal = self._timed(lambda m=master, most=limit: self._post(m, exclude, most))
            master.model.minimize(goal)
            done = self._run(master)
            if done.status == INFEASIBLE:
                continue
            if done.status not in (OPTIMAL, FEASIBLE):
                raise OutOfTime
            values = master.assignment(done.value)
            found = self._recheck(values, done.integer(goal))
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
            return memory_limits(self.job)[0] if self.limited else 1 << 36
        return 1 << 40

    def _post(self, master: Master, exclude: Sequence[tuple[Any, ...]], most: int) -> Any:
        """Budgets, objective and exclusions; returns the objective's variable."""
        self._exclude(master, exclude)
        if self.objective == "time":
            if self.limited:
                master.post_memory(peak_wanted=False)
            return master.post_time(most)
        peak = master.post_memory(peak_wanted=True, unlimited=not self.limited)
        master.model.add(peak <= most)
        return peak

    def _exclude(self, master: Master, exclude: Sequence[tuple[Any, ...]]) -> None:
        for key in exclude:
            shape_part = key[: len(KEY_SHAPE)]
            index = [
                i for i in range(master.shapes.rows) if shape_key(master.shapes.row(i)) == shape_part
            ]
            if not index:
                continue
            clause = []
            for name, wanted in zip(KEY_FEATURES, key[len(KEY_SHAPE) :], strict=True):
                values = self.pool.features.values[name]
                same = [master.literals[name][v] for v, x in enumerate(values) if key_value(name, x) == wanted]
                if len(same) < len(values):
                    clause += [master.literals[name][v] for v, x in enumerate(values) if key_value(name, x) != wanted]
            for i in index:
                master.model.add_bool_or([*clause, ~master.shape[i]])

    def _run(self, master: Master) -> Run:
        done = run(master.model, self.workers, self.left())
        self.statistics["solve_seconds"] += done.seconds
        self.statistics["solves"] += 1
        self.statistics["candidates"] += master.shapes.rows
        return done

    def _timed(self, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        out = work()
        self.statistics["build_seconds"] += time.perf_counter() - start
        return out

    def _recheck(self, values: dict[str, Any], score: int | None) -> Found:
        """Judge a solution by the plain predicates and the plain numbers."""
        if not self.legal(values):
            from mbsolve.constraints.job import derive

            at = {**values, **derive(self.job, values)}
            broken = [r.id for r in self.rules if not r.holds(self.job.facts, at)]
            raise InternalError(f"the solver's plan breaks {', '.join(broken)}: {plan_of(values)}")
        found = self.price(values)
        if self.limited and not found.quanta.fits:
            raise InternalError(f"the solver's plan does not fit: {found.quanta} {found.plan}")
        if score is not None and found.score(self.objective) != score:
            raise InternalError(f"the solver counts {score}, the terms {found.quanta}: {found.plan}")
        return found

    # ------------------------------------------------------------------ ties
    def _settle(self, top: Found, exclude: Sequence[tuple[Any, ...]]) -> Found:
        """Among plans with the objective of ``top``: least of the other measure, fewest unusual features, first."""
        score = top.score(self.objective)
        best: tuple[Any, ...] | None = None
        out = top
        for c, chunk in enumerate(self.pool.chunks):
            # A shape without a plan under the target has its bound at the target, just above the score.
            index = np.flatnonzero(chunk.bound <= self.seconds(score) * (1 + 1e-12))
            for start in range(0, len(index), BATCH):
                some = index[start : start + BATCH]
                ((_, master),) = self._timed(lambda c=c, some=some: self._masters([(c, some)], every_moment=True))
                found = self._settle_in(master, exclude, score)
                if found is not None and (best is None or found[0] < best):
                    best, out = found
        return out

    def _settle_in(
        self, master: Master, exclude: Sequence[tuple[Any, ...]], score: int
    ) -> tuple[tuple[Any, ...], Found] | None:
        model = master.model
        self._exclude(master, exclude)
        peak = self._timed(lambda: master.post_memory(peak_wanted=True, unlimited=not self.limited))
        step = self._timed(lambda: master.post_time(1 << 40 if self.objective == "memory" else score))
        goal, other = (step, peak) if self.objective == "time" else (peak, step)
        model.add(goal <= score)
        model.minimize(other)
        done = self._run(master)
        if done.status == INFEASIBLE:
            return None
        if done.status != OPTIMAL:
            raise OutOfTime
        second = done.integer(other)
        model.add(other <= second)
        odd, order = self._oddness(master)
        model.minimize(odd)
        done = self._run(master)
        if done.status != OPTIMAL:
            raise OutOfTime
        least = done.integer(odd)
        model.add(odd == least)
        model.minimize(order)
        done = self._run(master)
        if done.status != OPTIMAL:
            raise OutOfTime
        values = master.assignment(done.value)
        found = self._recheck(values, None)
        got = (found.quanta.step, found.quanta.peak)
        if self.objective == "time" and got != (score, second):
            raise InternalError(f"the tie-break counts {(score, second)}, the terms {got}: {found.plan}")
        place = shape_order(values)
        features = tuple(self.pool.features.values[n].index(values[n]) for n in FEATURES)
        return (second, least, place, features), found

    def _oddness(self, master: Master) -> tuple[Any, Any]:
        """(number of unusual features, position in the total order) as linear forms."""
        lits, weights = [], []
        rows = [master.shapes.row(i) for i in range(master.shapes.rows)]
        for i, row in enumerate(rows):
            lits.append(master.shape[i])
            weights.append(sum(unusual(n, v) for n, v in row.items() if n != "layout" and n in _SHAPE_NAMES))
        for name in FEATURES:
            for z, v in zip(master.literals[name], self.pool.features.values[name], strict=True):
                if unusual(name, v):
                    lits.append(z)
                    weights.append(1)
        odd = master.model.new_int_var(0, 10_000, "unusual")
        master.model.add(cp_model.LinearExpr.weighted_sum(lits, weights) == odd)
        order, scale = [], 1
        terms: list[Any] = []
        for name in reversed(FEATURES):
            values = self.pool.features.values[name]
            for k, z in enumerate(master.literals[name]):
                if k:
                    terms.append(z)
                    order.append(k * scale)
            scale *= len(values)
        ranks = sorted(range(len(rows)), key=lambda i: shape_order(rows[i]))
        for place, i in enumerate(ranks):
            if place:
                terms.append(master.shape[i])
                order.append(place * scale)
        return odd, cp_model.LinearExpr.weighted_sum(terms, order)


_SHAPE_NAMES = frozenset(n for n in KEY_SHAPE) | {
    "split",
    "sequence_parallel",
    "recompute_method",
    "recompute_num_layers",
    "ep_overlap",
}


def key_str(found: Found) -> str:
    """A stable text of a plan's key."""
    return str(key_of(found.values))


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


__all__ = ["InternalError", "Interrupted", "OutOfTime", "Search", "hard_rules", "open_search", "raw_size"]
