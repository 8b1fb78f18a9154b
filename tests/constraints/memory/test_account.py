"""The account of a plan's memory adds up at every moment, and the fullest node is found rank by rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mbsolve.constraints.account import account
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.holding import KINDS, fullest_node
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.judge.answers import read_many
from mbsolve.reading import make_job

JOBS = Path(__file__).parents[3] / "examples" / "jobs"
OFFLOAD = Plan(tp=1, pp=4, optimizer_offload_fraction=0.5, fine_grained_offload_modules=("core_attn",))


def of_file(name: str) -> tuple[Job, Plan]:
    (case,) = read_many([JOBS / name])
    return case.job, case.plan


CASES: dict[str, Callable[[], tuple[Job, Plan]]] = {
    "dense": lambda: of_file("llama3-70b-megatron.sh"),
    "moe": lambda: of_file("qwen3-30b.yaml"),
    "offload": lambda: (make_job("llama3-8b", "h100", 8, 8192, gbs=64), OFFLOAD),
    "layers": lambda: (
        make_job("llama3-8b", "h200", 8, 8192, gbs=64),
        Plan(tp=2, sequence_parallel=True, activation_offload_layers=9),
    ),
    "whole graph": lambda: (
        make_job("llama3-8b", "h100", 8, 8192, gbs=128),
        Plan(cuda_graph_impl="full_iteration"),
    ),
    "hybrid": lambda: (make_job("qwen3-next-80b", "h200", 64, 4096, gbs=64), Plan(ep=32, pp=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_of_each_moment_add_up_and_totals_are_those_of_the_evaluation(name: str) -> None:
    job, plan = CASES[name]()
    whole, found = account(job, plan), evaluate(job, plan)
    assert [s.stage for s in whole.stages] == list(range(plan.pp))
    for stage, said in zip(whole.stages, found.stages, strict=True):
        assert {f: getattr(stage, f) for f in type(said).model_fields} == dict(said)
        by_kind = {m.kind: m for m in stage.moments}
        assert tuple(by_kind) == KINDS
        for moment in stage.moments:
            whole_moment = moment.allocated_bytes + moment.pool_bytes
            assert sum(t.bytes or 0 for t in moment.terms) == pytest.approx(whole_moment)
        assert by_kind["between"].allocated_bytes == said.between_bytes
        assert by_kind["pass"].allocated_bytes == said.pass_peak_bytes
        assert by_kind["pass"].moment == said.pass_peak_moment
        assert by_kind["optimizer"].allocated_bytes == said.optimizer_peak_bytes
        peak = max(stage.moments, key=lambda m: m.allocated_bytes + m.pool_bytes)
        assert peak.allocated_bytes == said.peak_allocated_bytes
        assert peak.pool_bytes == said.pool_bytes
        assert peak.moment == said.peak_moment
        beyond = sum(t.bytes or 0 for t in stage.beyond)
        assert peak.allocated_bytes + peak.pool_bytes + beyond == pytest.approx(said.peak_device_bytes)
        assert said.between_bytes <= said.optimizer_peak_bytes
    pinned = sum(t.bytes or 0 for t in whole.host.terms)
    assert pinned == pytest.approx(found.host_fullest_node_bytes)
    assert found.host_fullest_node_bytes <= found.host_bytes_per_node * (1 + 1e-12)


def test_equal_stages_are_folded_and_each_is_in_one_fold() -> None:
    job = make_job("llama3-70b", "h200", 64, 8192, gbs=64)
    whole = account(job, Plan(tp=8, pp=8, recompute_granularity="full", recompute_num_layers=1))
    assert sorted(rank for group in whole.alike for rank in group) == list(range(8))
    one = account(make_job("qwen3-30b-a3b", "h200", 16, 4096), Plan(ep=8))
    assert one.alike == ((0,),)


@pytest.mark.parametrize(
    ("settings", "plan", "each"),
    [
        ({}, Plan(), {"weights": 2, "gradients": 4, "masters": 4, "moments": 8}),
        ({"grad_dtype": "bf16"}, Plan(), {"weights": 2, "gradients": 2, "masters": 4, "moments": 8}),
        (
            {"moment_dtype": "bf16", "main_param_dtype": "fp16"},
            Plan(precision_aware_optimizer=True),
            {"weights": 2, "gradients": 4, "masters": 2, "moments": 4},
        ),
        (
            {},
            Plan(optimizer_offload_fraction=0.75),
            {"weights": 2, "gradients": 4, "masters": 4, "moments": 2},
        ),
    ],
)
def test_formats_say_the_bytes_of_an_element(
    settings: dict[str, str], plan: Plan, each: dict[str, float]
) -> None:
    job = make_job("llama3-8b", "h200", 8, 4096, gbs=64, settings=settings)
    found = account(job, plan, defaults=("grad_dtype",)).formats
    assert {f.part: f.bytes_each for f in found} == pytest.approx(each)
    assert [f.part for f in found if f.default] == ["weights", "gradients"]


@given(
    held=st.lists(st.integers(0, 50), min_size=1, max_size=7),
    per_stage=st.integers(1, 12),
    per_node=st.integers(1, 10),
)
# The fullest node is one that a pipeline rank begins or ends in, or lies wholly inside of one.
@example(held=[0, 10, 0], per_stage=7, per_node=3)
@example(held=[9, 10, 0], per_stage=7, per_node=3)
@example(held=[0, 10, 9], per_stage=7, per_node=3)
@example(held=[0, 10], per_stage=7, per_node=3)
def test_fullest_node_is_that_of_a_walk_over_all_ranks(
    held: list[int], per_stage: int, per_node: int
) -> None:
    pp = len(held)
    ranks = [held[rank // per_stage] for rank in range(pp * per_stage)]
    sums = [sum(ranks[i : i + per_node]) for i in range(0, len(ranks), per_node)]
    found = fullest_node([float(h) for h in held], len(ranks), per_node)
    assert found.bytes == max(sums) == sums[found.number]
    mine = range(found.number * per_node, min((found.number + 1) * per_node, len(ranks)))
    assert sum(found.ranks.values()) == len(mine)
    assert found.bytes == sum(held[stage] * n for stage, n in found.ranks.items())


def test_a_node_with_several_stages_pins_less_than_with_all_ranks_on_the_fullest() -> None:
    job = make_job("llama3-8b", "h100", 8, 8192, gbs=64)
    found = evaluate(job, OFFLOAD)
    whole = account(job, OFFLOAD)
    assert whole.host.ranks == {0: 2, 1: 2, 2: 2, 3: 2}
    assert found.host_fullest_node_bytes < found.host_bytes_per_node
    assert whole.host.bytes_per_node == found.host_bytes_per_node
