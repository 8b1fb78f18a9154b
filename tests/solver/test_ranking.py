"""The order of plans that tie, and graphs in optima: those that gain, and no others."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, permutations

import pytest

from mbsolve.constraints.error_bars import pair_error, tied
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.quantised import quantised
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from mbsolve.report.why import reasons
from mbsolve.solver.api import solve
from mbsolve.solver.found import Found, Objective
from mbsolve.solver.outcome import Outcome
from mbsolve.solver.ranking import ranking
from mbsolve.solver.tie import count_unusual

GIB = 2**30
DENSE = make_job("llama3-8b", "h100", 8, 8192, gbs=128)
MOE = make_job("qwen3-30b-a3b", "h200", 8, 4096, gbs=512)


@lru_cache
def solved(job: Job, objective: Objective = "time") -> Outcome:
    """The four best plans."""
    return solve(job, objective=objective, top=4)


def found(job: Job, plan: Plan, proven: bool = True) -> Found:
    return Found(plan.values(), plan, quantised(job, plan), proven)


PLANS = tuple(
    Plan(pp=2, cp=cp, mbs=cp, precision_aware_optimizer=aware, optimizer_offload_fraction=share)
    for cp in (1, 2)
    for aware, share in ((False, 0.0), (True, 0.0), (True, 0.1))
)


def test_the_order_of_ties_does_not_depend_on_how_they_came() -> None:
    plans = sorted((found(DENSE, plan) for plan in PLANS), key=lambda f: f.quanta.step)
    first, rest = plans[0], plans[1:]
    orders = {
        tuple(str(f.plan) for f, _, _ in ranking(DENSE, [first, *order], "time"))
        for order in permutations(rest)
    }
    assert len(orders) == 1


def test_ties_come_by_free_memory_then_by_features() -> None:
    plans = sorted((found(DENSE, plan) for plan in PLANS), key=lambda f: f.quanta.step)
    shown = ranking(DENSE, plans, "time")
    assert shown[0][0] is plans[0]
    best = shown[0][1].step_seconds
    assert [tie for _, _, tie in shown] == [e.step_seconds <= best * (1 + pair_error()) for _, e, _ in shown]
    ties = [(f, e) for f, e, tie in shown[1:] if tie]
    assert len(ties) > 2
    keys = [(-(e.headroom_bytes // GIB), count_unusual(f.values)) for f, e in ties]
    assert keys == sorted(keys)
    assert [f for f, _ in ties] != sorted((f for f, _ in ties), key=lambda f: f.quanta.step)
    apart = [e.step_seconds for _, e, tie in shown[1:] if not tie]
    assert apart == sorted(apart)
    assert shown[1 + len(ties) :] == [entry for entry in shown if not entry[2]]


def test_what_is_proven_stays_first() -> None:
    plans = sorted((found(DENSE, plan) for plan in PLANS), key=lambda f: f.quanta.step)
    for f in plans[2:]:
        f.proven = False
    shown = [f.proven for f, _, _ in ranking(DENSE, plans, "time")]
    assert shown == sorted(shown, reverse=True)


def test_where_memory_is_the_goal_the_order_stays() -> None:
    plans = sorted((found(DENSE, plan) for plan in PLANS), key=lambda f: f.quanta.peak)
    assert [f for f, _, _ in ranking(DENSE, plans, "memory")] == plans
    assert ranking(DENSE, [], "time") == []


@pytest.mark.parametrize(("errors_apart", "tie"), [(0.0, True), (0.9, True), (1.1, False)])
def test_a_tie_is_one_whichever_is_first(errors_apart: float, tie: bool) -> None:
    a, b = 1.0, 1.0 + errors_apart * pair_error()
    assert tied(a, b) == tied(b, a) == tie


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_ranks_and_ties_of_an_outcome(objective: Objective) -> None:
    outcome = solved(DENSE, objective)
    assert outcome.status == "OPTIMAL"
    assert [ranked.rank for ranked in outcome.plans] == [1, 2, 3, 4]
    steps = [ranked.evaluation.step_seconds for ranked in outcome.plans]
    assert [r.tie_with_best for r in outcome.plans] == [tied(steps[0], step) for step in steps]
    if objective == "time":
        assert steps[0] == min(steps)
        assert outcome.bound_seconds == pytest.approx(steps[0], rel=2e-3)
        ties = [r for r in outcome.plans[1:] if r.tie_with_best]
        assert [r.rank for r in ties] == list(range(2, 2 + len(ties)))
        free = [r.evaluation.headroom_bytes // GIB for r in ties]
        assert free == sorted(free, reverse=True)


def less_captured(plan: Plan) -> list[Plan]:
    """The plan without its graphs, or without some of their scopes."""
    scopes = plan.cuda_graph_scope
    some = [scope for n in range(1, len(scopes)) for scope in combinations(scopes, n)]
    eager = plan.model_copy(update={"cuda_graph_impl": "none", "cuda_graph_scope": ()})
    return [eager, *(plan.model_copy(update={"cuda_graph_scope": scope}) for scope in some)]


@pytest.mark.parametrize("job", [DENSE, MOE, make_job("gpt-oss-20b", "h100", 16, 4096, gbs=512)])
def test_every_graph_in_a_returned_plan_gains(job: Job) -> None:
    for ranked in solved(job).plans:
        if ranked.plan.cuda_graph_impl == "none":
            continue
        now = quantised(job, ranked.plan).step
        for other in less_captured(ranked.plan):
            if not broken_laws(job, other) and all(fits(job, evaluate(job, other)).values()):
                assert quantised(job, other).step > now, other


@pytest.mark.parametrize("hardware", ["h100", "b200"])
def test_a_job_that_waits_for_its_device_has_no_graphs(hardware: str) -> None:
    job = make_job("llama3-8b", hardware, 8, 8192, gbs=128)
    outcome = solved(job)
    assert outcome.best is not None
    assert outcome.best.plan.cuda_graph_impl == "none"
    assert not any("graph" in text.lower() for text in reasons(job, outcome))


def test_a_job_that_waits_for_its_host_has_graphs_or_says_why_not() -> None:
    best = solved(MOE).best
    assert best is not None
    assert best.plan.cuda_graph_impl != "none"
    full = solve(MOE, fixed={"recompute_granularity": "full"})
    assert full.best is not None
    assert full.best.plan.cuda_graph_impl == "none"
    said = [
        text for text in reasons(MOE, full) if text.startswith("eager: no legal CUDA graphs are faster: ")
    ]
    assert len(said) == 1
    assert "[cg-full-recompute]" in said[0]
