"""What the parts of one search share: the pool, the rules, the clock, and the questions put to CP-SAT."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, SECONDS_PER_QUANTUM
from mbsolve.constraints.quantised import memory_limits, quantised
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.vocabulary import plan_of
from mbsolve.solver.chunk import Chunk
from mbsolve.solver.cpsat import Run, run
from mbsolve.solver.encode import LARGEST, LONGEST, Master
from mbsolve.solver.found import Found, InternalError, Objective, OutOfTime
from mbsolve.solver.goal import Goal
from mbsolve.solver.pool import Pool
from mbsolve.solver.rows import moment_rows, padded
from mbsolve.solver.tie import KEY_FEATURES, KEY_SHAPE, key_value, shape_key


class Effort(TypedDict):
    """What a search has cost so far; the names are those of `outcome.Statistics`."""

    candidates: int
    solves: int
    build_seconds: float
    solve_seconds: float


def _no_effort() -> Effort:
    return Effort(candidates=0, solves=0, build_seconds=0.0, solve_seconds=0.0)


@dataclass
class Session:
    """A pool of shapes, the rules, and the budget of time.

    Parameters
    ----------
    job, demands, objective : what is asked.
    workers : threads of CP-SAT.
    deadline : ``time.monotonic()`` at which `OutOfTime` is raised; None for never.
    most_shapes, most_work : open shapes, and shapes searched exactly, beyond which `OutOfTime` is raised too, the same
        on every machine; None for no limit.
    limited : whether the memory budgets hold.
    progress : called with a line of text now and then.
    rules : rules that every plan satisfies.
    """

    job: Job
    demands: Demands
    objective: Objective
    workers: int = 1
    deadline: float | None = None
    most_shapes: int | None = None
    most_work: int | None = None
    limited: bool = True
    progress: Callable[[str], None] | None = None
    rules: list[Rule] = field(default_factory=list)
    statistics: Effort = field(default_factory=_no_effort)

    def __post_init__(self) -> None:
        self.goal = Goal((self.most_quanta() + 1) * self.quantum())
        with self.building():
            self.pool = Pool(
                self.job, self.demands, self.rules, self.objective, self.limited, self.goal, self.offer
            )
        self.pool.most_work = self.most_work if self.most_work is not None else math.inf

    def most_quanta(self) -> int:
        """The most that a plan may score."""
        if self.objective == "time":
            return LONGEST
        return memory_limits(self.job)[0] if self.limited else LARGEST

    def quantum(self) -> float:
        """Seconds or bytes of one quantum of the objective."""
        return SECONDS_PER_QUANTUM if self.objective == "time" else BYTES_PER_QUANTUM

    def offer(self, values: dict[str, Any]) -> None:
        """Take a plan into account that may be one of the best; what came of it is in `goal`."""
        raise NotImplementedError

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count the time spent inside as building."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.statistics["build_seconds"] += time.perf_counter() - start

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

    def bound(self) -> float | None:
        """What no plan beats that has not been seen, in seconds or bytes; None where nothing is left."""
        bounds = [float(c.bound.min()) for c in self.pool.chunks if len(c.bound)]
        least = min([*bounds, self.pool.frontier()])
        return least if math.isfinite(least) else None

    def legal(self, values: Mapping[str, Any]) -> bool:
        """Whether a full assignment satisfies every rule, canonical ones included."""
        at = {**values, **derive(self.job, values)}
        return all(r.holds(self.job.facts, at) for r in self.rules)

    def broken(self, values: Mapping[str, Any]) -> list[str]:
        """Names of the rules that a full assignment breaks."""
        at = {**values, **derive(self.job, values)}
        return [r.id for r in self.rules if not r.holds(self.job.facts, at)]

    def price(self, values: Mapping[str, Any]) -> Found:
        """Evaluate an assignment in quanta."""
        plan = plan_of(values)
        return Found(dict(values), plan, quantised(self.job, plan))

    def seconds(self, score: float) -> float:
        """Quanta of the objective in its unit."""
        return score * self.quantum()

    def masters(
        self, picks: Sequence[tuple[int, np.ndarray[Any, Any]]], every_moment: bool = False
    ) -> list[tuple[Chunk, Master]]:
        """A master model for each chunk's picks; with all moments where the peak itself is wanted."""
        out = []
        for c, index in picks:
            chunk = self.pool.chunks[c]
            shapes, rows, tables = chunk.take(index)
            if every_moment:
                bounder = chunk.bounder(index, moment_rows(self.job, shapes))
                found = [
                    bounder.leading(i, np.ones(len(m), bool)) for i, m in enumerate(bounder.rows.moments)
                ]
                rows = replace(rows, moments=padded(found))
            out.append((chunk, Master(self.job, self.pool.features, shapes, rows, tables)))
        return out

    def exclude(self, master: Master, keys: Sequence[tuple[Any, ...]]) -> None:
        """Forbid the plans of a model that have one of some keys."""
        for key in keys:
            shape_part = key[: len(KEY_SHAPE)]
            index = [i for i in range(master.shapes.rows) if shape_key(master.shapes.row(i)) == shape_part]
            if not index:
                continue
            clause = []
            for name, wanted in zip(KEY_FEATURES, key[len(KEY_SHAPE) :], strict=True):
                values = self.pool.features.values[name]
                same = [
                    master.literals[name][v] for v, x in enumerate(values) if key_value(name, x) == wanted
                ]
                if len(same) < len(values):
                    clause += [
                        master.literals[name][v] for v, x in enumerate(values) if key_value(name, x) != wanted
                    ]
            for i in index:
                master.model.add_bool_or([*clause, ~master.shape[i]])

    def ask(self, master: Master) -> Run:
        """Solve a model within the time that is left."""
        done = run(master.model, self.workers, self.left())
        self.statistics["solve_seconds"] += done.seconds
        self.statistics["solves"] += 1
        self.statistics["candidates"] += master.shapes.rows
        return done

    def recheck(self, values: dict[str, Any], score: int | None) -> Found:
        """Judge a solution by the plain predicates and the plain numbers."""
        broken = self.broken(values)
        if broken:
            raise InternalError(f"the solver's plan breaks {', '.join(broken)}: {plan_of(values)}")
        found = self.price(values)
        if self.limited and not found.quanta.fits:
            raise InternalError(f"the solver's plan does not fit: {found.quanta} {found.plan}")
        if score is not None and found.score(self.objective) != score:
            raise InternalError(f"the solver counts {score}, the terms {found.quanta}: {found.plan}")
        return found
