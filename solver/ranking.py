"""In which order plans are shown: the proven best, those that tie with it, the rest.

The first plan is always the optimum of the cost model. What comes within the error of a predicted difference of it may be
as fast on the machine, so among such plans other things decide: most free memory first, then fewest unusual features, then
the shorter step. Plans that do not tie keep the order of the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mbsolve.constraints.error_bars import tied
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.solver.found import Found, Objective
from mbsolve.solver.tie import count_unusual

__all__ = ["ranking"]

GIB: Final = 2**30


def ranking(job: Job, plans: Sequence[Found], objective: Objective) -> list[tuple[Found, Evaluation, bool]]:
    """Plans in the order in which they are shown, each with its evaluation and whether its step ties with the first's.

    Parameters
    ----------
    plans : best first, those that are proven before those that are not; the order among ties does not matter.
    """
    found = [(plan, evaluate(job, plan.plan)) for plan in plans]
    if not found:
        return []
    (best, first), rest = found[0], found[1:]
    marked = [(plan, e, tied(e.step_seconds, first.step_seconds)) for plan, e in rest]
    if objective == "time":
        ties = [entry for entry in marked if entry[2]]
        apart = [entry for entry in marked if not entry[2]]
        # What is proven stays before what is not, so that a count says how far the proof goes.
        marked = sorted([*sorted(ties, key=_order), *apart], key=lambda entry: not entry[0].proven)
    return [(best, first, True), *marked]


def _order(entry: tuple[Found, Evaluation, bool]) -> tuple[int, int, int, str]:
    """Free memory in whole GiB, the most first: less is no reason to leave a simpler plan."""
    plan, evaluation, _ = entry
    free = int(evaluation.headroom_bytes // GIB)
    return (-free, count_unusual(plan.values), plan.quanta.step, str(plan.plan))
