"""Which of the equally good plans is named: three more questions to CP-SAT, each holding the last one's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from ortools.sat.python import cp_model

from mbsolve.constraints.vocabulary import FEATURES, SHAPE
from mbsolve.solver.cpsat import INFEASIBLE, OPTIMAL
from mbsolve.solver.encode import LONGEST, Master
from mbsolve.solver.found import Found, InternalError, OutOfTime
from mbsolve.solver.session import Session
from mbsolve.solver.tables import Features
from mbsolve.solver.tie import feature_order, shape_order, unusual

# No plan has so many unusual features.
MOST_UNUSUAL: Final = 999


def settle(session: Session, top: Found, exclude: Sequence[tuple[Any, ...]], batch: int) -> Found:
    """Among plans with the objective of ``top``: least of the other measure, fewest unusual features, first.

    Parameters
    ----------
    session : a search whose pool knows every shape that may hold such a plan.
    top : one of the best plans.
    exclude : keys that the plan must not have.
    batch : shapes that are put into one model.
    """
    score = top.score(session.objective)
    best: tuple[Any, ...] | None = None
    out = top
    excluded = frozenset(exclude)
    for c, chunk in enumerate(session.pool.chunks):
        # A shape without a plan under the target has its bound at the target, just above the score.
        index = np.flatnonzero(chunk.bounds(excluded) <= session.seconds(score) * (1 + 1e-12))
        for start in range(0, len(index), batch):
            some = index[start : start + batch]
            with session.building():
                ((_, master),) = session.masters([(c, some)], every_moment=True)
            found = _settle_in(session, master, exclude, score)
            if found is not None and (best is None or found[0] < best):
                best, out = found
    return out


def _settle_in(
    session: Session, master: Master, exclude: Sequence[tuple[Any, ...]], score: int
) -> tuple[tuple[Any, ...], Found] | None:
    model = master.model
    session.exclude(master, exclude)
    with session.building():
        peak = master.post_memory(peak_wanted=True, unlimited=not session.limited)
        step = master.post_time(LONGEST if session.objective == "memory" else score)
    goal, other = (step, peak) if session.objective == "time" else (peak, step)
    model.add(goal <= score)
    model.minimize(other)
    done = session.ask(master)
    if done.status == INFEASIBLE:
        return None
    if done.status != OPTIMAL:
        raise OutOfTime
    second = done.integer(other)
    model.add(other <= second)
    odd, order = _oddness(session.pool.features, master)
    model.minimize(odd)
    done = session.ask(master)
    if done.status != OPTIMAL:
        raise OutOfTime
    least = done.integer(odd)
    model.add(odd == least)
    model.minimize(order)
    done = session.ask(master)
    if done.status != OPTIMAL:
        raise OutOfTime
    values = master.assignment(done.value)
    found = session.recheck(values, None)
    got = (found.quanta.step, found.quanta.peak)
    if session.objective == "time" and got != (score, second):
        raise InternalError(f"the tie-break counts {(score, second)}, the terms {got}: {found.plan}")
    place = shape_order(values)
    features = feature_order({n: session.pool.features.values[n].index(values[n]) for n in FEATURES})
    return (second, least, place, features), found


def _oddness(features: Features, master: Master) -> tuple[Any, Any]:
    """(number of unusual features, position in the total order) as linear forms."""
    lits, weights = [], []
    rows = [master.shapes.row(i) for i in range(master.shapes.rows)]
    for i, row in enumerate(rows):
        lits.append(master.shape[i])
        weights.append(sum(unusual(n, v) for n, v in row.items() if n in SHAPE))
    for name in FEATURES:
        for z, v in zip(master.literals[name], features.values[name], strict=True):
            if unusual(name, v):
                lits.append(z)
                weights.append(1)
    odd = master.model.new_int_var(0, MOST_UNUSUAL, "unusual")
    master.model.add(cp_model.LinearExpr.weighted_sum(lits, weights) == odd)
    order, scale = [], 1
    terms: list[Any] = []
    for name in reversed(FEATURES):
        values = features.values[name]
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
