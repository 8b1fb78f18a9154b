"""What a plan holds: terms add up at every moment, nodes are those of a slow count, and changes do what they say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.account import account
from mbsolve.constraints.changes import applied
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.holding import fullest_node
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.relief import excess, relief
from mbsolve.constraints.vocabulary import Plan
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

GIB = 2**30


def job_of(model: str, gpus: int, seq_len: int, **more: Any) -> Job:
    fields = {"model": load_model(model), "machine": load_machine("h100"), "gpus": gpus, "seq_len": seq_len}
    return Job.model_validate(fields | {"gbs": 128} | more)


DENSE = job_of("llama3-70b", 64, 8192), Plan(tp=4, pp=4, sequence_parallel=True)
MOE = (
    job_of("qwen3-30b-a3b", 32, 4096),
    Plan(
        pp=2,
        ep=8,
        vpp=2,
        optimizer_offload_fraction=0.5,
        cuda_graph_impl="transformer_engine",
        cuda_graph_scope=("attn",),
    ),
)
WHOLE = job_of("llama3-8b", 8, 8192), Plan(cuda_graph_impl="full_iteration")
CASES = [DENSE, MOE, WHOLE]


@pytest.mark.parametrize(("job", "plan"), CASES)
def test_terms_add_up_at_every_moment(job: Job, plan: Plan) -> None:
    found, whole = account(job, plan), evaluate(job, plan)
    assert len(found.stages) == plan.pp
    for stage, again in zip(found.stages, whole.stages, strict=True):
        assert {m.kind for m in stage.moments} == {"between", "pass", "optimizer"}
        for moment in stage.moments:
            held = sum(t.bytes or 0.0 for t in moment.terms)
            assert held == pytest.approx(moment.allocated_bytes + moment.pool_bytes, rel=1e-9)
        by_kind = {m.kind: m.allocated_bytes for m in stage.moments}
        assert by_kind["between"] == again.between_bytes
        assert by_kind["pass"] == again.pass_peak_bytes
        assert by_kind["optimizer"] == again.optimizer_peak_bytes
        peak = next(m for m in stage.moments if m.moment == stage.peak_moment)
        beside = sum(t.bytes or 0.0 for t in stage.beyond)
        held = peak.allocated_bytes + peak.pool_bytes + beside
        assert (
            held == pytest.approx(stage.peak_device_bytes, rel=1e-9) == pytest.approx(again.peak_device_bytes)
        )
    assert sorted(rank for group in found.alike for rank in group) == list(range(plan.pp))


def test_what_a_node_pins_is_that_of_its_ranks() -> None:
    job, plan = MOE
    found = account(job, plan)
    assert 0 < found.host.fullest_node_bytes <= found.host.bytes_per_node
    assert sum(t.bytes or 0.0 for t in found.host.terms) == pytest.approx(found.host.fullest_node_bytes)
    assert sum(found.host.ranks.values()) == job.gpus_per_node
    assert {one.part for one in found.formats} == {"weights", "gradients", "masters", "moments"}


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 9), st.data())
def test_the_fullest_node_is_that_of_a_slow_count(
    pp: int, size: int, per_node: int, data: st.DataObject
) -> None:
    stages = data.draw(st.lists(st.floats(0, 100), min_size=pp, max_size=pp))
    gpus = pp * size
    nodes = [range(start, min(start + per_node, gpus)) for start in range(0, gpus, per_node)]
    slow = max(sum(stages[rank // size] for rank in node) for node in nodes)
    found = fullest_node(stages, gpus, per_node)
    assert found.bytes == pytest.approx(slow)
    assert sum(stages[s] * n for s, n in found.ranks.items()) == pytest.approx(slow)


@pytest.mark.parametrize(("job", "plan"), CASES)
def test_changes_are_legal_and_free_what_they_say(job: Job, plan: Plan) -> None:
    before = evaluate(job, plan)
    found = relief(job, plan, 2 * GIB)
    assert found.changes
    for change in found.changes:
        altered = normalise(*applied(job, plan, change.set))[:2]
        assert not broken_laws(*altered)
        after = evaluate(*altered)
        freed = before.worst_stage.peak_device_bytes - after.worst_stage.peak_device_bytes
        assert change.freed_bytes == freed >= 2 * GIB
        assert change.added_seconds == after.step_seconds - before.step_seconds
        assert change.fits is (excess(altered[0], after) == 0.0)
    added = [change.added_seconds for change in found.changes]
    assert added == sorted(added)


def test_where_nothing_frees_enough_the_largest_are_told() -> None:
    job, plan = DENSE
    found = relief(job, plan, 500 * GIB)
    freed = [change.freed_bytes for change in found.less]
    assert not found.changes and freed == sorted(freed, reverse=True) and freed[0] > 20 * GIB
    assert excess(job, evaluate(job, plan)) == pytest.approx(8.6 * GIB, abs=GIB)
