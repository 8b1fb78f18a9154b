"""What graphs would do for a plan, against every way to capture it judged and priced one by one."""

from __future__ import annotations

from itertools import combinations

import pytest

from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.graph_help import GraphHelp, graph_help, waits_for_host
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.memory.device import device_limit
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.time_account import time_account
from mbsolve.constraints.vocabulary import GRAPH_IMPLS, GRAPH_SCOPES, Plan
from mbsolve.reading import make_job

MOE = make_job("qwen3-30b-a3b", "h200", 16, 4096, gbs=256)
EAGER = Plan(ep=8, pp=2, vpp=2)


def helped(job: Job, plan: Plan) -> GraphHelp | None:
    return graph_help(job, plan, time_account(job, plan))


def captured(job: Job, plan: Plan) -> list[Plan]:
    """Every legal plan that differs in its graphs."""
    some = [scope for n in range(len(GRAPH_SCOPES) + 1) for scope in combinations(GRAPH_SCOPES, n)]
    found = (
        plan.model_copy(update={"cuda_graph_impl": kind, "cuda_graph_scope": scope})
        for kind in GRAPH_IMPLS[1:]
        for scope in some
    )
    return [one for one in found if not broken_laws(job, one) and normalise(job, one)[1] == one]


@pytest.mark.parametrize("target", ["bridge", "megatron-lm"])
@pytest.mark.parametrize("memory", ["h200", "h100"])
def test_the_best_graphs_are_the_best_of_all(target: str, memory: str) -> None:
    job = make_job("qwen3-30b-a3b", memory, 16, 4096, gbs=256, target=target)
    plan = EAGER.model_copy(update={"recompute_granularity": "selective", "recompute_modules": ("moe",)})
    now = evaluate(job, plan).step_seconds
    legal = captured(job, plan)
    priced = {one: evaluate(job, one) for one in legal}
    faster = {one: e.step_seconds for one, e in priced.items() if e.step_seconds < now}
    room = {one: s for one, s in faster.items() if all(fits(job, priced[one]).values())}
    said = helped(job, plan)
    assert said is not None
    assert faster
    if room:
        assert said.best is not None
        assert said.best.step_seconds == min(room.values())
        altered = plan.model_copy(update=said.best.set)
        assert not broken_laws(job, altered)
        more = evaluate(job, altered).worst_stage.peak_device_bytes
        assert -said.best.freed_bytes == more - evaluate(job, plan).worst_stage.peak_device_bytes
    else:
        assert said.best is None
    if min(faster.values()) < min(room.values(), default=now):
        assert said.too_large is not None
        assert said.over_bytes == said.too_large.peak_device_bytes - device_limit(job) > 0
    else:
        assert said.too_large is None


def test_what_does_not_fit_is_told() -> None:
    job = make_job("qwen3-30b-a3b", "h100", 16, 4096, gbs=1024)
    said = helped(job, Plan(ep=8, optimizer_offload_fraction=0.2))
    assert said is not None
    assert said.too_large is not None
    assert said.too_large.peak_device_bytes > device_limit(job)
    assert not said.too_large.fits
    assert said.best is not None
    assert said.best.fits
    assert said.best.step_seconds > said.too_large.step_seconds


def test_laws_in_the_way_are_named() -> None:
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    said = helped(MOE, EAGER.model_copy(update=full))
    assert said is not None
    assert said.best is said.too_large is None
    laws = {one.graphs: one.rule for one in said.forbidden}
    assert set(laws) == {"local", "transformer_engine", "full_iteration"}
    assert laws["transformer_engine"] == "cg-full-recompute"
    assert laws["full_iteration"] == "cg-full-iteration-moe-sync"
    for kind, rule in laws.items():
        other = EAGER.model_copy(update={**full, "cuda_graph_impl": kind, "cuda_graph_scope": ("attn",)})
        assert rule in broken_laws(MOE, other)


def test_a_plan_that_waits_for_its_device_is_told_nothing() -> None:
    job = make_job("llama3-70b", "h100", 64, 8192, gbs=128)
    plan = Plan(tp=4, pp=4, vpp=5, sequence_parallel=True)
    account = time_account(job, plan)
    assert not waits_for_host(account)
    assert not account.host_bound
    assert helped(job, plan) is None


def test_the_graphs_that_a_plan_has_are_not_offered() -> None:
    first = helped(MOE, EAGER)
    assert first is not None
    assert first.best is not None
    better = EAGER.model_copy(update=first.best.set)
    again = helped(MOE, better)
    assert again is None or again.best is None
