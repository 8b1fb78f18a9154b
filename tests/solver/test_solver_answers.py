"""What a user may rely on: repeatable answers, answers that move the right way, demands that are kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mbsolve.constraints.check import violations
from mbsolve.constraints.demands import DemandError
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.job import Job
from mbsolve.constraints.quantised import quantised
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.solver import explain, search
from mbsolve.solver.api import solve
from mbsolve.solver.outcome import Outcome
from mbsolve.solver.search import Objective
from tests.solver.small_jobs import dense, experts, job_with, latent, machine_with

GIB = 2**30


def make(name: str, hbm: float | None = None, **update: Any) -> Job:
    """One of the two small jobs of this file."""
    machine = load_machine("h100")
    if hbm is not None:
        machine = machine_with(machine, hbm_bytes=int(hbm * GIB))
    jobs = {
        "dense": {"model": dense(4), "gpus": 4, "gbs": 8, "seq_len": 4096},
        "experts": {"model": experts(4), "gpus": 2, "gbs": 4, "seq_len": 2048},
        "latent": {"model": latent(4), "gpus": 2, "gbs": 4, "seq_len": 2048},
    }
    return Job(machine=machine, **{**jobs[name], **update})


JOBS = ("dense", "experts")
TIGHT = {"dense": 6.5, "experts": 8.0, "latent": 6.0}


def text(outcome: Outcome) -> str:
    """An outcome as JSON, without the clock."""
    still = outcome.statistics.model_copy(update={"build_seconds": 0.0, "solve_seconds": 0.0})
    return outcome.model_copy(update={"statistics": still}).model_dump_json()


def step(outcome: Outcome) -> float:
    """Quanta of the best step; infinite without a plan."""
    assert outcome.status in ("OPTIMAL", "INFEASIBLE")
    return outcome.best.evaluation.step_seconds if outcome.best else float("inf")


def quanta(job: Job, outcome: Outcome) -> int:
    """Quanta of the best step."""
    assert outcome.status == "OPTIMAL" and outcome.best is not None
    return quantised(job, outcome.best.plan).step


@pytest.mark.parametrize("name", JOBS)
def test_same_outcome_every_time(name: str) -> None:
    """Threads and repetition change nothing, texts included."""
    job = make(name, TIGHT[name])
    first = solve(job, top=2)
    assert first.status == "OPTIMAL" and first.proven == len(first.plans) == 2
    for workers in (1, 2, 4):
        assert text(solve(job, top=2, workers=workers)) == text(first)


@pytest.mark.parametrize("name", JOBS[:1])
def test_order_of_rules_is_no_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue read backwards gives the same plans."""
    job = make(name, TIGHT[name])
    plans = [p.plan for p in solve(job, top=2).plans]
    forward = search.hard_rules

    def backward(job: Job) -> list[Rule]:
        return forward(job)[::-1]

    monkeypatch.setattr(search, "hard_rules", backward)
    assert [p.plan for p in solve(job, top=2).plans] == plans


@pytest.mark.parametrize(
    ("name", "objective"), [("dense", "time"), ("dense", "memory"), ("experts", "time"), ("latent", "time")]
)
def test_plans_are_legal_and_fit(name: str, objective: Objective) -> None:
    """A plan that is returned breaks no law, and its plain evaluation is within both budgets."""
    job = make(name, TIGHT[name])
    outcome = solve(job, objective, top=2)
    assert outcome.plans
    for ranked in outcome.plans:
        assert not violations(job, ranked.plan)
        assert all(fits(job, evaluate(job, ranked.plan)).values())
        assert ranked.evaluation == evaluate(job, ranked.plan)
    scores = [quantised(job, p.plan) for p in outcome.plans]
    order = [q.step if objective == "time" else q.peak for q in scores]
    assert order == sorted(order)


@pytest.mark.parametrize("name", JOBS)
def test_more_memory_is_never_slower(name: str) -> None:
    """A plan that fits a small device fits a larger one."""
    sizes = [TIGHT[name] * f for f in (0.6, 1.0, 4.0)]
    steps = []
    for size in sizes:
        job = make(name, size)
        outcome = solve(job, top=1, explained=False)
        steps.append(float(quanta(job, outcome)) if outcome.plans else float("inf"))
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.parametrize("name", JOBS)
def test_a_faster_network_is_never_slower(name: str) -> None:
    """Over nodes of one GPU everything crosses the scale-out network."""
    steps = []
    for factor in (0.5, 1.0, 8.0):
        job = make(name, gpus_per_node=1)
        fast, out = job.machine.networks
        fast = fast.model_copy(update={"gpus": 1})
        out = out.model_copy(update={"bytes_per_second": out.bytes_per_second * factor})
        job = job_with(job, machine=machine_with(job.machine, networks=(fast, out)))
        steps.append(quanta(job, solve(job, top=1)))
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.parametrize("name", JOBS)
def test_forbidding_never_improves(name: str) -> None:
    """What is forbidden stays out, and the step is no better for it."""
    job = make(name, TIGHT[name])
    best = solve(job, top=1)
    assert best.best is not None
    plan = best.best.plan
    for text_, field, value in (
        (f"tp={plan.tp}", "tp", plan.tp),
        (f"mbs={plan.mbs}", "mbs", plan.mbs),
        (f"cuda_graph_impl={plan.cuda_graph_impl}", "cuda_graph_impl", plan.cuda_graph_impl),
        ("precision_aware_optimizer=true", "precision_aware_optimizer", True),
    ):
        other = solve(job, top=1, forbid=[text_], explained=False)
        assert step(other) >= step(best) * (1 - 1e-6)
        if other.best is not None:
            assert quanta(job, other) >= quanta(job, best)
            assert getattr(other.best.plan, field) != value


@pytest.mark.parametrize(("name", "objective"), [("dense", "time"), ("dense", "memory")])
def test_fixing_the_answer_changes_nothing(name: str, objective: Objective) -> None:
    """With decisions of the best plan fixed, one or all, the best plan is the same."""
    job = make(name, TIGHT[name])
    best = solve(job, objective, top=1).best
    assert best is not None
    values = best.plan.model_dump()
    for fixed in (*({n: values[n]} for n in ("tp", "pp", "mbs", "recompute_granularity")), values):
        again = solve(job, objective, top=1, fixed=fixed).best
        assert again is not None and again.plan == best.plan


def test_demands_are_kept() -> None:
    """Fixed fields, sizes that follow from others, lists, and splits."""
    job = make("experts")
    for fixed in (
        {"tp": 2, "dp": 1},
        {"pp": 2, "vpp": 2, "edp": 1},
        {"recompute_modules": ["core_attn", "moe_act"]},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
        {"optimizer_offload_fraction": 0.37},
        {"pp": 2, "pipeline_layout": "Ettt|tL"},
        {"pp": 2, "first_stage_layers": 1, "last_stage_layers": 3},
    ):
        outcome = solve(job, top=1, fixed=fixed)
        assert outcome.status == "OPTIMAL", fixed
        for ranked in outcome.plans:
            sizes = ranked.evaluation.grids
            found = ranked.plan.model_dump() | {"dp": sizes.dense[2], "edp": sizes.expert[2]}
            assert not violations(job, ranked.plan)
            for name, value in fixed.items():
                assert found[name] == (tuple(value) if isinstance(value, list) else value)


def test_wrong_demands_are_refused() -> None:
    """A demand that means nothing is an error, not an infeasible job."""
    job = make("dense")
    for fixed, forbid in (({"tpp": 2}, []), ({"tp": "two"}, []), ({}, ["nonsense"]), ({}, ["tp=77"])):
        with pytest.raises(DemandError):
            solve(job, fixed=fixed, forbid=forbid)


def test_impossible_demands_are_explained() -> None:
    """No plan, and the reason."""
    outcome = solve(make("dense"), fixed={"tp": 4, "pp": 4})
    assert outcome.status == "INFEASIBLE" and not outcome.plans
    assert outcome.explanation is not None and outcome.explanation.causes


def _leanest(job: Job) -> tuple[str, float, float | None]:
    """What the explanation says of the leanest plan: (text, GiB it needs, GiB below which there is none)."""
    explanation = solve(job, top=1).explanation
    assert explanation is not None
    text_ = explanation.causes[0].text
    needs = re.search(r"needs ([0-9.]+) GiB on", text_)
    bound = re.search(r"none needs less than ([0-9.]+) GiB", text_)
    assert needs
    return text_, float(needs[1]), float(bound[1]) if bound else None


def test_the_leanest_plan_is_proven_or_said_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is too large is explained by its leanest plan; where the look ends early, a bound is told."""
    job = make("experts", 1.0)
    text_, exact, bound = _leanest(job)
    assert "found" not in text_ and bound is None
    monkeypatch.setattr(explain, "LEAN_SHAPES", 0)
    text_, some, bound = _leanest(job)
    assert "leanest legal plan found" in text_ and bound is not None
    assert bound <= exact <= some


@pytest.mark.parametrize(
    ("limit", "objective"), [(1e-6, "time"), (0.05, "time"), (0.3, "time"), (1e-6, "memory"), (0.1, "memory")]
)
def test_a_time_limit_ends_with_what_is_known(limit: float, objective: Objective) -> None:
    """Out of time there may be no plan, or one without a proof, never an error; the bound is a bound."""
    job = make("dense", TIGHT["dense"])
    outcome = solve(job, objective, top=2, time_limit=limit)
    assert outcome.status in ("OPTIMAL", "FEASIBLE", "UNKNOWN")
    assert (outcome.status == "UNKNOWN") == (not outcome.plans)
    true = solve(job, objective, top=1).best
    assert true is not None
    best = quantised(job, true.plan)
    bound = outcome.bound_seconds if objective == "time" else outcome.bound_bytes
    assert bound is not None
    assert bound <= (best.step * 1e-7 if objective == "time" else best.peak * 1024) * (1 + 1e-9)
    for ranked in outcome.plans:
        assert not violations(job, ranked.plan)


def test_a_plan_is_the_default_where_nothing_else_is_open() -> None:
    """Everything fixed: the outcome is that plan."""
    job = make("dense")
    plan = Plan(tp=2, sequence_parallel=True)
    outcome = solve(job, fixed=plan.model_dump())
    assert [p.plan for p in outcome.plans] == [plan]
