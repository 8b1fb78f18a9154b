"""Running CP-SAT: parameters that make its answers trustworthy and repeatable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

OPTIMAL = cp_model.OPTIMAL
FEASIBLE = cp_model.FEASIBLE
INFEASIBLE = cp_model.INFEASIBLE


@dataclass
class Run:
    """One finished solve."""

    status: Any
    solver: cp_model.CpSolver
    seconds: float

    def value(self, literal: Any) -> bool:
        """Truth of a literal in the solution."""
        return bool(self.solver.boolean_value(literal))

    def integer(self, variable: Any) -> int:
        """Value of an integer variable in the solution."""
        return int(self.solver.value(variable))


def run(model: cp_model.CpModel, workers: int, seconds: float | None) -> Run:
    """Solve a model to the end, or until the time is used up.

    One fixed seed. From 9.15 on, presolve inclusion is switched off: with it a wrong answer was called optimal
    (tests/solver/test_presolve_guard.py).
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    if hasattr(solver.parameters, "presolve_inclusion_work_limit"):
        solver.parameters.presolve_inclusion_work_limit = 0
    if seconds is not None:
        solver.parameters.max_time_in_seconds = max(seconds, 0.01)
    start = time.perf_counter()
    # Typed loosely: the stubs hold the returned status and its constants for different types.
    status: Any = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"internal error: invalid model: {model.validate()}")
    return Run(status, solver, time.perf_counter() - start)
