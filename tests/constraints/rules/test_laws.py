"""Every law is broken by some plan, alone, and says so in a sentence; its repairs mend it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mbsolve.constraints import docs
from mbsolve.constraints.changes import applied
from mbsolve.constraints.check import SPELLINGS, Violation, check, judged, violations, warnings
from mbsolve.constraints.examples import bases, breaks, build_job, build_plan
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.placement import virtual_stages
from mbsolve.constraints.rule import FACTS, Rule, sentence
from mbsolve.constraints.rules import catalogue, useful
from mbsolve.constraints.rules.catalogue import CANONICAL, OURS, RULES
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import DECISIONS, DERIVED, Plan, Settings
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model, model_names

HERE = Path(__file__).parent
BREAKS = breaks()
UPSTREAM: dict[str, list[str]] = json.loads((HERE / "catalogue_ids.json").read_text())
PLANS = {name: build_plan(name, {}) for name in bases()}


def broken(job: Job, plan: Plan) -> list[Violation]:
    return list(violations(job, plan))


def row_id(row: Mapping[str, Any]) -> str:
    return str(row["id"])


@pytest.mark.parametrize("row", BREAKS, ids=row_id)
def test_a_law_is_broken_alone_and_its_repairs_mend_it(row: dict[str, Any]) -> None:
    job, plan = build_job(row["base"], row.get("job", {})), build_plan(row["base"], row.get("plan", {}))
    found = broken(job, plan)
    assert {v.rule for v in found} == {row["id"], *row.get("also", ())}
    for violation in found:
        assert violation.because and "{" not in violation.because
        assert violation.source
        for repair in violation.repairs:
            mended = broken(*normalise(*applied(job, plan, repair.set))[:2])
            assert violation.because not in {v.because for v in mended}
            left = {v.rule for v in mended}
            assert violation.rule not in left, repair
            assert left - {v.rule for v in found} == set(repair.breaks), repair
            assert repair.text and not repair.text.endswith(".")


def test_every_law_has_a_row() -> None:
    laws = {rule.id for rule in RULES if rule.kind == "hard"} | {id for id, _, _ in SPELLINGS.values()}
    assert {row["id"] for row in BREAKS} == laws


@pytest.mark.parametrize("base", PLANS)
def test_base_plans_are_legal_for_every_target(base: str) -> None:
    for target in ("bridge", "bridge-0.6", "megatron-lm"):
        assert broken(build_job(base, {"target": target}), PLANS[base]) == []
        assert warnings(build_job(base, {"target": target}), PLANS[base]) == ()


def test_ids_are_upstream_ids_with_their_source_or_ours() -> None:
    for rule in RULES:
        if rule.id in OURS:
            assert rule.id not in UPSTREAM
        else:
            assert str(rule.source) in UPSTREAM[rule.id], rule.id
    for id, _, source in SPELLINGS.values():
        assert str(source) in UPSTREAM[id]
    assert all(rule.id.startswith("canonical-") for rule in CANONICAL)


def test_ids_are_unique_but_for_families() -> None:
    for rules in (RULES, CANONICAL):
        members: dict[str, list[Rule]] = {}
        for rule in rules:
            members.setdefault(rule.id, []).append(rule)
        for family in members.values():
            assert len({rule.scope for rule in family}) == len(family)
            assert len({rule.fn.__doc__ for rule in family}) == 1


def test_every_rule_of_a_topic_is_listed_once() -> None:
    topics = [value for value in vars(catalogue).values() if isinstance(value, ModuleType)]
    defined = [
        rule
        for topic in topics
        for value in vars(topic).values()
        for rule in (value if isinstance(value, tuple) else (value,))
        if isinstance(rule, Rule)
    ]
    assert len(topics) == 15
    assert sorted(map(id, defined)) == sorted(map(id, RULES))


@pytest.mark.parametrize("rule", [*RULES, *CANONICAL], ids=lambda rule: rule.id)
def test_rules_read_known_names_and_few_of_them(rule: Rule) -> None:
    assert set(rule.parameters) <= {*FACTS, *DECISIONS, *DERIVED}
    assert len(rule.scope) <= (8 if rule.id == "canonical-recompute-some" else 6)
    assert rule.text.endswith(".") or rule.text.endswith(".)")
    assert not rule.because.endswith(".")
    ast.parse(f"f{rule.because!r}")


@pytest.mark.parametrize("base", PLANS)
def test_every_reason_formats(base: str) -> None:
    job = build_job(base, {})
    values = PLANS[base].values()
    values |= derive(job, values)
    for rule in (*RULES, *CANONICAL):
        assert rule.clause(job.facts, values)
        assert isinstance(rule.holds(job.facts, values), bool)


def test_canonical_rules_accept_the_published_plans() -> None:
    for base, plan in PLANS.items():
        job, values = build_job(base, {}), plan.values()
        assert [r.id for r in CANONICAL if not r.holds(job.facts, values)] == []


@pytest.mark.parametrize(
    ("id", "base", "changes"),
    [
        ("canonical-dense-experts", "llama", {"etp": 4}),
        ("canonical-dispatcher", "llama", {"dispatcher": "allgather"}),
        ("canonical-dispatcher", "qwen", {"ep": 1, "dispatcher": "hybridep"}),
        ("canonical-recompute-method", "llama", {"recompute_method": "uniform", "recompute_num_layers": 1}),
        ("canonical-recompute-layers", "llama", {"recompute_num_layers": 3}),
        (
            "canonical-recompute-layers",
            "llama",
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
        ),
        (
            "canonical-recompute-block",
            "llama",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4},
        ),
        ("canonical-recompute-some", "llama", {"recompute_granularity": "selective"}),
        (
            "canonical-recompute-moe",
            "qwen",
            {"recompute_granularity": "selective", "recompute_modules": ("moe", "moe_act")},
        ),
        (
            "canonical-offload-attention",
            "llama",
            {
                "recompute_granularity": "selective",
                "recompute_modules": ("core_attn",),
                "fine_grained_offload_modules": ("core_attn",),
            },
        ),
        (
            "canonical-offload-expert-activation",
            "qwen",
            {
                "recompute_granularity": "selective",
                "recompute_modules": ("moe_act",),
                "fine_grained_offload_modules": ("moe_act",),
            },
        ),
        ("canonical-offload-norms", "dsv3", {"fine_grained_offload_modules": ("attn_norm",)}),
        ("canonical-graph-scopes", "llama", {"cuda_graph_scope": ("attn",)}),
        ("canonical-graph-some", "llama", {"cuda_graph_impl": "transformer_engine"}),
    ],
)
def test_a_canonical_rule_refuses_a_legal_plan(id: str, base: str, changes: dict[str, Any]) -> None:
    job, plan = build_job(base, {}), build_plan(base, changes)
    assert broken(job, plan) == []
    assert {r.id for r in CANONICAL if not r.holds(job.facts, plan.values())} == {id}


@pytest.mark.parametrize(
    ("id", "base", "job_changes", "changes"),
    [
        (
            "canonical-local-router",
            "qwen",
            {"target": "megatron-lm"},
            {"cuda_graph_impl": "local", "cuda_graph_scope": ("moe_router",)},
        ),
        (
            "canonical-tp-overlap",
            "llama",
            {"settings": Settings(tp_comm_overlap=True)},
            {"sequence_parallel": False},
        ),
    ],
)
def test_a_canonical_rule_refuses_what_the_stack_would_change(
    id: str, base: str, job_changes: dict[str, Any], changes: dict[str, Any]
) -> None:
    job, plan = build_job(base, job_changes), build_plan(base, changes)
    assert broken(job, plan) == []
    assert {r.id for r in CANONICAL if not r.holds(job.facts, plan.values())} == {id}


def test_mxfp8_without_its_weights_is_a_warning() -> None:
    job = build_job("qwen", {"machine": "gb200", "precision": "mxfp8"})
    assert broken(job, PLANS["qwen"]) == []
    assert [w.rule for w in warnings(job, PLANS["qwen"])] == ["mxfp8-memory-warning"]


def test_recompute_of_missing_modules_is_a_warning() -> None:
    plan = build_plan(
        "llama", {"recompute_granularity": "selective", "recompute_modules": ["shared_experts"]}
    )
    job = build_job("llama", {})
    assert broken(job, plan) == []
    assert [w.rule for w in warnings(job, plan)] == ["recompute-modules-dense-noop"]


def test_useful_switches() -> None:
    dsv3, llama, qwen = (load_model(name) for name in ("dsv3", "llama3-70b", "qwen3-30b-a3b"))
    assert useful.useful_recompute_modules(llama) == ("core_attn", "mlp")
    assert useful.useful_recompute_modules(qwen) == ("core_attn", "layernorm", "moe_act", "moe")
    assert len(useful.useful_recompute_modules(dsv3)) == 7
    assert useful.useful_offload_modules(llama) == ("core_attn", "attn_proj", "qkv_linear")
    assert "attn_norm" not in useful.useful_offload_modules(qwen)
    assert len(useful.useful_offload_modules(dsv3)) == 7
    assert useful.useful_graph_scopes(llama) == ("attn", "mlp")
    assert useful.useful_graph_scopes(qwen) == ("attn", "moe_router", "moe_preprocess")


@pytest.mark.parametrize("name", model_names())
def test_candidate_splits_that_are_legal_place_every_layer(name: str) -> None:
    model = load_model(name)
    names = {"pp", "vpp", "split"}
    laws = [r for r in RULES if "split" in r.scope and set(r.scope) <= names and r.kind == "hard"]
    for pp in (2, 3, 4, 8, 16):
        for vpp in (1, 2, 4):
            for split in splits(model, pp, vpp):
                values = {"pp": pp, "vpp": vpp, "split": split}
                facts = {"model": model}
                if all(law.holds(facts, values) for law in laws):
                    placed = virtual_stages(model, pp, vpp, split)
                    assert sum(i.what == "layer" for stage in placed for i in stage) == model.num_layers


def test_what_is_unknown_is_not_judged() -> None:
    job, plan = build_job("llama", {"gpus": 7}), PLANS["llama"]
    assert "world-divisible-by-dense-grid" in {v.rule for v in violations(job, plan)}
    assert violations(job, plan, unknown=("gpus",)) == ()
    open_ids = judged(job, plan, unknown=("gpus",))[1]
    assert {"world-divisible-by-dense-grid", "gbs-divisible", "interleaved-group-size"} <= set(open_ids)
    assert "tp-divides-attention-heads" not in open_ids


def test_the_documentation_is_fresh() -> None:
    assert docs.PAGE.read_text(encoding="utf-8") == docs.rules_table()


def test_a_layout_with_unknown_symbols_is_refused_whatever_else_is_asked() -> None:
    """Laws that place the layers must not fall over what another law refuses."""
    job = Job(
        model=load_model("dsv3"),
        machine=load_machine("h100"),
        gpus=256,
        gpus_per_node=8,
        seq_len=4096,
        gbs=256,
    )
    plan = Plan(
        pp=2,
        ep=32,
        pipeline_layout="Et*30x|t*31mL",
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=2,
    )
    assert "layout-chars" in broken_laws(job, plan)


@pytest.mark.parametrize("row", BREAKS, ids=row_id)
def test_reasons_are_sentences(row: dict[str, Any]) -> None:
    """Whatever the value, a reason has no word of the programming language."""
    job, plan = build_job(row["base"], row.get("job", {})), build_plan(row["base"], row.get("plan", {}))
    answer = check(job, plan, memory=False)
    reasons = [found.because for found in (*answer.violations, *answer.warnings)]
    for because in reasons + [change.because for change in answer.normalised]:
        assert not re.search(r"\b(None|True|False)\b|\(\)|\[\]|\('", because), because


def test_a_reason_says_on_off_and_none() -> None:
    known = {"a": True, "b": False, "c": None, "d": ("x", "y"), "e": (), "f": 0.125}
    assert sentence("{a} {b} {c} {d} {e} {f:.1%}", known) == "on off none x, y none 12.5%"
