"""What the stack changes by itself is applied and told; what the solver offers is changed by nothing."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.check import check, violations
from mbsolve.constraints.domains import domains
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.examples import bases, build_job, build_plan
from mbsolve.constraints.job import Job
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.rule import FACTS
from mbsolve.constraints.rules.catalogue import CANONICAL, OURS, RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import DECISIONS, TARGETS, Plan, Settings, plan_of
from mbsolve.solver.outcome import Outcome

UPSTREAM: dict[str, list[str]] = json.loads((Path(__file__).parent / "catalogue_ids.json").read_text())
LM = {"target": "megatron-lm"}
FULL = ("full_iteration",)
UNEVEN = "Et*20|t*20|t*10|t*10|t*5|t*5|t*5|t*5L"
TOLD: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("sp-cleared-bridge", "llama", {}, {"tp": 1}, {"sequence_parallel": False}),
    ("sp-cleared-mlm", "llama", LM, {"tp": 1}, {"sequence_parallel": False}),
    (
        "tp-overlap-disabled",
        "llama",
        {"settings": {"tp_comm_overlap": True}},
        {"sequence_parallel": False},
        {"tp_comm_overlap": False},
    ),
    (
        "rope-fusion-cleared-mlm",
        "llama",
        {**LM, "model": {"rotary": "yarn"}, "settings": {"rope_fusion": True}},
        {},
        {"rope_fusion": False},
    ),
    ("layout-vpp-filled", "llama", {}, {"vpp": 1, "pipeline_layout": UNEVEN}, {"vpp": 2}),
    ("layout-vpp-filled", "llama", LM, {"vpp": 1, "pipeline_layout": UNEVEN}, {"vpp": 2}),
    (
        "flex-clears-shared-overlap",
        "dsv3",
        {"settings": {"shared_expert_overlap": True}},
        {},
        {"shared_expert_overlap": False},
    ),
    (
        "recompute-modules-default",
        "llama",
        LM,
        {"recompute_granularity": "selective"},
        {"recompute_modules": ("core_attn",)},
    ),
    ("cg-scope-cleared-when-none", "llama", {}, {"cuda_graph_scope": ("attn",)}, {"cuda_graph_scope": ()}),
    ("cg-scope-cleared-when-none", "llama", {}, {"cuda_graph_scope": FULL}, {"cuda_graph_scope": ()}),
    (
        "cg-full-iteration-scope-migrated",
        "llama",
        {},
        {"cuda_graph_impl": "local", "cuda_graph_scope": FULL},
        {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": ()},
    ),
    (
        "cg-local-couples-router-preprocess",
        "qwen",
        LM,
        {"cuda_graph_impl": "local", "cuda_graph_scope": ("attn", "moe_preprocess")},
        {"cuda_graph_scope": ("attn", "moe_preprocess", "moe_router")},
    ),
]
REFUSED = [
    ("mlm-vpp-dropped-with-layout", "llama", LM, {"vpp": 4, "pipeline_layout": UNEVEN}, ("vpp", 2)),
    (
        "flex-fallback-to-alltoall",
        "qwen",
        {"machine": "gb200"},
        {"dispatcher": "deepep"},
        ("dispatcher", "alltoall"),
    ),
    (
        "cg-full-iteration-scope-migrated",
        "llama",
        LM,
        {"cuda_graph_scope": FULL},
        ("cuda_graph_impl", "full_iteration"),
    ),
]


def job_of(base: str, changes: dict[str, Any]) -> Job:
    return build_job(base, {**changes, "settings": Settings(**changes.get("settings", {}))})


@pytest.mark.parametrize(("id", "base", "job_changes", "changes", "now"), TOLD)
def test_a_change_is_applied_and_told(
    id: str, base: str, job_changes: dict[str, Any], changes: dict[str, Any], now: dict[str, Any]
) -> None:
    job, plan = job_of(base, job_changes), build_plan(base, changes)
    told = [n for n in normalise(job, plan)[2] if n.rule == id]
    assert {n.field: n.now for n in told} == now
    for n in told:
        assert (
            n.applied and n.because and "{" not in n.because and (id in OURS or str(n.source) in UPSTREAM[id])
        )
    again = normalise(*normalise(job, plan)[:2])
    assert again[2] == ()
    changed = {name: value for name, value in now.items() if name in Plan.model_fields}
    assert again[1] == plan.model_copy(update=changed)
    verdict = check(job, plan, memory=False)
    assert set(told) <= set(verdict.normalised)
    assert verdict.violations == violations(again[0], again[1]) == ()


@pytest.mark.parametrize(("id", "base", "job_changes", "changes", "now"), REFUSED)
def test_a_dangerous_change_is_told_and_refused(
    id: str, base: str, job_changes: dict[str, Any], changes: dict[str, Any], now: tuple[str, Any]
) -> None:
    job, plan = job_of(base, job_changes), build_plan(base, changes)
    verdict = check(job, plan, memory=False)
    (told,) = [n for n in verdict.normalised if n.rule == id]
    assert (told.field, told.now) == now and not told.applied
    assert not verdict.legal
    laws = {law for n in NORMALISATIONS if n.id == id for law in n.refused_by}
    assert {v.rule for v in verdict.violations} & laws


def test_every_declaration_is_tested_and_well_formed() -> None:
    assert {n.id for n in NORMALISATIONS} == {row[0] for row in TOLD} | {row[0] for row in REFUSED}
    laws = {r.id for r in RULES} | {"cg-modules-values"}
    for n in NORMALISATIONS:
        assert n.id in OURS or str(n.source) in UPSTREAM[n.id]
        assert n.field in {**Plan.model_fields, **Settings.model_fields}
        assert set(n.parameters) <= {*FACTS, *DECISIONS, *Plan.model_fields}
        assert set(n.refused_by) <= laws
        assert n.text.endswith(".") and not n.because.endswith(".")
        ast.parse(f"f{n.because!r}")


def random_legal(job: Job, start: Plan, count: int) -> Iterator[Plan]:
    """Plans that every rule and every canonical rule allows, by a walk over the domains from a legal one."""
    rng, space = random.Random(7), domains(job)
    at, found = start.values(), 0
    for _ in range(40 * count):
        name = rng.choice(DECISIONS)
        there = dict(at)
        for one in {name, rng.choice(DECISIONS)}:
            values = splits(job.model, at["pp"], at["vpp"]) if one == "split" else space[one]
            there[one] = rng.choice(list(values))
        plan = plan_of(there)
        if violations(job, plan) or not all(r.holds(job.facts, plan.values()) for r in CANONICAL):
            continue
        at, found = plan.values(), found + 1
        yield plan
        if found == count:
            return
    assert found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("base", bases())
def test_what_the_solver_may_offer_is_changed_by_nothing(base: str, target: str) -> None:
    job = build_job(base, {"target": target})
    start = build_plan(base, {})
    assert normalise(job, start) == (job, start, ())
    for plan in random_legal(job, start, 25):
        assert normalise(job, plan)[1:] == (plan, ())


def test_plans_of_answers_are_changed_by_nothing(job: Job, outcomes: dict[str, Outcome]) -> None:
    plans = [ranked.plan for outcome in outcomes.values() for ranked in outcome.plans]
    assert plans
    for plan in plans:
        assert normalise(job, plan) == (job, plan, ())


@pytest.mark.parametrize(
    ("base", "changes"),
    [("llama", {"tp": 1, "sequence_parallel": False}), ("dsv3-4k", {"dispatcher": "deepep"})],
)
def test_a_setting_that_is_dropped_has_no_price(base: str, changes: dict[str, Any]) -> None:
    wishes = Settings(tp_comm_overlap=True, shared_expert_overlap=True)
    job = build_job(base, {"settings": wishes})
    dropped = 0
    for plan in random_legal(job, build_plan(base, changes), 12):
        run, same, told = normalise(job, plan)
        assert same == plan
        dropped += bool(told)
        assert evaluate(run, plan) == evaluate(job, plan)
    assert dropped


def test_what_reads_an_unknown_decision_is_left_alone() -> None:
    job, plan = build_job("llama", {}), build_plan("llama", {"tp": 1})
    assert normalise(job, plan, unknown=("tp",))[2] == ()


def test_a_scope_that_bridge_refuses_is_not_taken_for_cleared() -> None:
    """Beside delayed weight gradients Bridge looks at the scope before it clears it."""
    job, plan = build_job("qwen", {}), build_plan("qwen", {})
    wished = plan.model_copy(
        update={"cuda_graph_scope": ("attn",), "ep_overlap": True, "delay_wgrad": True, "vpp": 2}
    )
    loose = job.model_copy(
        update={"settings": job.settings.model_copy(update={"grad_accumulation_fusion": False})}
    )
    assert normalise(job, wished)[1].cuda_graph_scope == ()
    assert normalise(loose, wished)[1].cuda_graph_scope == ("attn",)
    assert "cg-delay-wgrad-scope" in {v.rule for v in violations(*normalise(loose, wished)[:2])}
