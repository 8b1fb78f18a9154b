"""Where a step goes: parts and terms add up, whatever the plan, and say what the evaluation says."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.time.step import soft_max
from mbsolve.constraints.time_account import TimeAccount, time_account
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job

JOBS = tuple(
    make_job(model, hardware, 64, 4096, gbs=256)
    for model, hardware in (
        ("llama3-8b", "h100"),
        ("llama3-70b", "b200"),
        ("qwen3-30b-a3b", "h100"),
        ("dsv3", "h200"),
        ("nemotron-3-nano", "h100"),
    )
)
PLANS = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 4, 8]),
    mbs=st.sampled_from([1, 2]),
    recompute_granularity=st.sampled_from([None, "full"]),
    optimizer_offload_fraction=st.sampled_from([0.0, 0.5]),
    cuda_graph_impl=st.sampled_from(["none", "full_iteration"]),
)


def accounted(job: Job, plan: Plan) -> TimeAccount:
    if plan.recompute_granularity:
        plan = plan.model_copy(update={"recompute_method": "uniform", "recompute_num_layers": 1})
    if not job.model.is_moe:
        plan = plan.model_copy(update={"ep": 1})
    try:
        said = evaluate(job, plan)
    except PlacementError:
        assume(False)
    found = time_account(job, plan)
    assert found.step_seconds == said.step_seconds
    assert (found.flops.tflops_per_gpu, found.flops.mfu) == (said.tflops_per_gpu, said.mfu)
    assert found.flops.per_token == said.flops_per_token
    assert found.error.error_bar == said.error_bar
    of_rank = sum(t.seconds or 0.0 for t in said.terms if t.stage is not None)
    assert of_rank == pytest.approx(found.microbatches * found.stages[found.slowest].seconds)
    return found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(JOBS), PLANS)
def test_everything_adds_up(job: Job, plan: Plan) -> None:
    found = accounted(job, plan)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_seconds, rel=1e-12)
    assert len({part.name for part in found.parts}) == len(found.parts)
    pace = max(stage.seconds for stage in found.stages)
    assert found.stages[found.slowest].seconds == pace
    for stage in found.stages:
        assert sum(t.seconds or 0.0 for t in stage.terms) == pytest.approx(stage.seconds, rel=1e-9)
        assert {t.stage for t in stage.terms} == {stage.stage}
        taken = stage.forward_seconds + stage.backward_seconds + stage.transfer_seconds
        assert stage.seconds == pytest.approx(taken, rel=1e-12)
        assert stage.idle_seconds == pace - stage.seconds >= 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(JOBS), PLANS)
def test_the_host_costs_what_a_pass_takes_beyond_its_device(job: Job, plan: Plan) -> None:
    found = accounted(job, plan)
    for s in found.stages:
        passes = {
            "forward": (s.forward_device_seconds, s.forward_host_seconds, s.forward_seconds),
            "backward": (s.backward_device_seconds, s.backward_host_seconds, s.backward_seconds),
        }
        assert s.host_bound == tuple(name for name, (device, host, _) in passes.items() if host > device)
        cost = 0.0
        for device, host, takes in passes.values():
            assert takes == soft_max(device, host)
            # The tangents lie below the curve by less than a part in 300.
            assert max(device, host) * 0.996 <= takes <= device + host
            cost += takes - soft_max(device, 0.0)
        assert s.host_cost_seconds == pytest.approx(cost, abs=1e-12)
    slowest = found.stages[found.slowest]
    assert found.host_cost_seconds == found.microbatches * slowest.host_cost_seconds


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(JOBS), PLANS)
def test_every_rank_is_among_those_alike_once(job: Job, plan: Plan) -> None:
    found = accounted(job, plan)
    ranks = [rank for group in found.alike for rank in group]
    assert sorted(ranks) == list(range(plan.pp))
    seconds = [found.stages[group[0]].seconds for group in found.alike]
    assert seconds == sorted(seconds, reverse=True)
    for group in found.alike:
        assert len({found.stages[rank].seconds for rank in group}) == 1


def test_offload_has_a_part_for_itself() -> None:
    parts = {p.name: p for p in time_account(JOBS[0], Plan(optimizer_offload_fraction=0.5)).parts}
    terms = {t.name: t.seconds for t in evaluate(JOBS[0], Plan(optimizer_offload_fraction=0.5)).terms}
    assert parts["optimizer offload"].seconds == terms["optimizer.offload"]
    assert parts["optimizer"].seconds == pytest.approx(
        (terms["optimizer.update"] or 0) + (terms["optimizer.gradients"] or 0)
    )
    assert "bubble" not in parts
