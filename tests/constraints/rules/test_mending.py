"""Repairs of plans made at random: what is offered mends, and says what else it would break."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbsolve.constraints.changes import applied, distance, said
from mbsolve.constraints.check import broken_laws, judged
from mbsolve.constraints.examples import bases, build_job, build_plan
from mbsolve.constraints.mending import whole
from mbsolve.constraints.normalise import normalise

SIZES = st.sampled_from((1, 2, 3, 4, 6, 8, 16, 32))
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tp", "cp", "pp", "ep", "etp"), SIZES),
    "vpp": st.sampled_from((1, 2, 3, 4, 5)),
    "mbs": st.sampled_from((1, 2, 3)),
    "sequence_parallel": st.booleans(),
    "first_stage_layers": st.sampled_from((None, 1, 5, 12)),
    "last_stage_layers": st.sampled_from((None, 1, 7, 10)),
    "recompute_granularity": st.sampled_from((None, "full", "selective")),
    "recompute_method": st.sampled_from((None, "uniform", "block")),
    "recompute_num_layers": st.sampled_from((None, 1, 4)),
    "recompute_modules": st.sampled_from(((), ("core_attn",), ("moe",), ("mla_up_proj", "layernorm"))),
    "dispatcher": st.sampled_from(("allgather", "alltoall", "deepep", "hybridep")),
    "ep_overlap": st.booleans(),
    "delay_wgrad": st.booleans(),
    "activation_offload_layers": st.sampled_from((0, 2)),
    "fine_grained_offload_modules": st.sampled_from(((), ("attn_proj",), ("moe_act", "core_attn"))),
    "cuda_graph_impl": st.sampled_from(("none", "local", "transformer_engine", "full_iteration")),
    "cuda_graph_scope": st.sampled_from(((), ("attn",), ("mlp", "moe"), ("moe_preprocess",))),
    "optimizer_offload_fraction": st.sampled_from((0.0, 0.5, 1.5)),
}
SOME = st.fixed_dictionaries({}, optional=CHANGES).map(lambda found: dict(list(found.items())[:4]))
OF_JOB = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from((8, 48, 64, 256)),
        "gbs": st.sampled_from((64, 96, 1024)),
        "seq_len": st.sampled_from((4096, 4112, 8192)),
        "target": st.sampled_from(("bridge", "bridge-0.6", "megatron-lm")),
    },
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.sampled_from(sorted(bases())), changes=SOME, of_job=OF_JOB)
def test_a_repair_mends_its_law_and_names_every_other_that_it_breaks(
    base: str, changes: dict[str, Any], of_job: dict[str, Any]
) -> None:
    job, plan, _ = normalise(build_job(base, of_job), build_plan(base, changes))
    found, _ = judged(job, plan)
    before = set(broken_laws(job, plan))
    assert {v.rule for v in found} == before
    for violation in found:
        for repair in violation.repairs:
            after = set(broken_laws(*normalise(*applied(job, plan, repair.set))[:2]))
            assert violation.rule not in after
            assert after - before == set(repair.breaks)
            assert repair.text.startswith(said(job, plan, repair.set))


@pytest.mark.parametrize(
    ("base", "of_job", "changes", "law", "offered"),
    [
        (
            "llama",
            {"target": "megatron-lm", "model": {"learned_positions": 2048}},
            {},
            "seq-max-position",
            {"seq_len": 2048},
        ),
        (
            "qwen",
            {"settings": {"expert_rank_capacity": 1.5}},
            {},
            "rank-capacity-backend",
            {"dispatcher": "hybridep", "op_fuser": True},
        ),
    ],
)
def test_what_is_offered(
    base: str, of_job: dict[str, Any], changes: dict[str, Any], law: str, offered: dict[str, Any]
) -> None:
    job, plan = build_job(base, of_job), build_plan(base, changes)
    (found,) = [one for one in judged(job, plan)[0] if one.rule == law]
    assert offered in [repair.set for repair in found.repairs]


def test_what_the_plan_does_already_is_no_substitute() -> None:
    """Beside a fine-grained offload, the other kind is not mended by one more."""
    changes = {"activation_offload_layers": 4, "fine_grained_offload_modules": ["core_attn", "qkv_linear"]}
    job, plan = build_job("qwen", {}), build_plan("qwen", changes)
    for violation in judged(job, plan)[0]:
        both = [one.set for one in violation.repairs if "activation_offload_layers" in one.set]
        assert not any("fine_grained_offload_modules" in fields for fields in both)


@pytest.mark.parametrize(
    ("changes", "law", "other", "worse"),
    [
        ({"cp": 6}, "seq-cp-divisible", "world-divisible-by-dense-grid", {"cp": 8}),
        (
            {
                "fine_grained_offload_modules": ["attn_proj", "moe_act"],
                "recompute_granularity": "selective",
                "recompute_modules": ["moe"],
            },
            "fg-offload-vs-moe-recompute",
            "fg-offload-attn-proj",
            {"fine_grained_offload_modules": ("attn_proj",)},
        ),
    ],
)
def test_a_repair_does_not_leave_another_law_on_its_fields_broken(
    changes: dict[str, Any], law: str, other: str, worse: dict[str, Any]
) -> None:
    job, plan = build_job("qwen", {}), build_plan("qwen", changes)
    after = broken_laws(*normalise(*applied(job, plan, worse))[:2])
    assert law not in after and other in after
    violations = {violation.rule: violation for violation in judged(job, plan)[0]}
    fields = {frozenset(repair.set) for repair in violations[other].repairs}
    assert frozenset(worse) in fields and violations[law].repairs
    for repair in violations[law].repairs:
        if frozenset(repair.set) in fields:
            assert other not in broken_laws(*normalise(*applied(job, plan, repair.set))[:2])


def test_the_nearest_repair_comes_first() -> None:
    job, plan = build_job("qwen", {}), build_plan("qwen", {"ep": 24})
    for violation in judged(job, plan)[0]:
        far = [distance(job, plan, repair.set) for repair in violation.repairs]
        assert far == sorted(far)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.sampled_from(sorted(bases())), changes=SOME, of_job=OF_JOB)
def test_a_whole_repair_leaves_no_law_broken(
    base: str, changes: dict[str, Any], of_job: dict[str, Any]
) -> None:
    job, plan, _ = normalise(build_job(base, of_job), build_plan(base, changes))
    found = whole(job, plan)
    if broken_laws(job, plan) and found is not None:
        assert broken_laws(*normalise(*applied(job, plan, found.set))[:2]) == ()
    elif not broken_laws(job, plan):
        assert found is None


def test_many_laws_are_mended_at_once() -> None:
    job, plan = build_job("qwen", {}), build_plan("qwen", {"ep": 24, "ep_overlap": True, "pp": 5})
    assert len(broken_laws(job, plan)) > 2
    found = whole(job, plan)
    assert found is not None and found.text
    assert broken_laws(*normalise(*applied(job, plan, found.set))[:2]) == ()


def test_a_whole_repair_changes_nothing_needlessly() -> None:
    changes: dict[str, Any] = {"cuda_graph_impl": "local", "cuda_graph_scope": (), "tp": 2}
    changes |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    job, plan = build_job("qwen", {}), build_plan("qwen", changes)
    found = whole(job, plan)
    assert found is not None
    for name in found.set:
        fewer = {other: value for other, value in found.set.items() if other != name}
        assert broken_laws(*normalise(*applied(job, plan, fewer))[:2]), name
