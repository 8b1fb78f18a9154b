"""What would free memory: every change that is offered is legal, and does what an evaluation says of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mbsolve.constraints.changes import applied
from mbsolve.constraints.check import check
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken_laws
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.relief import Relief, excess, relief
from mbsolve.constraints.vocabulary import Plan
from mbsolve.judge.answers import read_many
from mbsolve.reading import make_job

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
GIB = 2**30


def verify(job: Job, plan: Plan, found: Relief) -> None:
    before = evaluate(job, plan)
    for change in (*found.changes, *found.less):
        changed, altered, _ = normalise(*applied(job, plan, change.set))
        assert not broken_laws(changed, altered), change
        after = evaluate(changed, altered)
        assert change.fits == all(fits(changed, after).values())
        assert change.step_seconds == after.step_seconds
        assert change.added_seconds == pytest.approx(after.step_seconds - before.step_seconds)
        assert change.peak_device_bytes == after.worst_stage.peak_device_bytes
        freed = before.worst_stage.peak_device_bytes - after.worst_stage.peak_device_bytes
        assert change.freed_bytes == freed > 0
        assert changed.gpus == job.gpus
    added = [change.added_seconds for change in found.changes]
    assert added == sorted(added)
    assert all(change.freed_bytes >= found.wanted_bytes for change in found.changes)
    assert not (found.changes and found.less)


@pytest.mark.parametrize("name", ["qwen3-30b.yaml", "llama3-70b-megatron.sh"])
@pytest.mark.parametrize("gib", [1, 8])
def test_changes_are_legal_and_free_what_they_say(name: str, gib: int) -> None:
    (case,) = read_many([JOBS / name])
    found = relief(case.job, case.plan, gib * GIB)
    assert found.changes
    verify(case.job, case.plan, found)
    for change in found.changes[:4]:
        verdict = check(*applied(case.job, case.plan, change.set))
        assert verdict.evaluation is not None
        assert verdict.evaluation.step_seconds == change.step_seconds
        assert verdict.evaluation.worst_stage.peak_device_bytes == change.peak_device_bytes
        assert (verdict.verdict == "feasible") == change.fits


def test_random_legal_plans() -> None:
    pick = random.Random(5)
    done = 0
    while done < 4:
        model = pick.choice(["llama3-8b", "qwen3-30b-a3b", "moonlight-16b"])
        job = make_job(model, "h100", 8, 4096, gbs=64)
        plan = Plan(
            tp=pick.choice((1, 2)),
            pp=pick.choice((1, 2)),
            cp=pick.choice((1, 2)),
            mbs=pick.choice((1, 2)),
            ep=pick.choice((1, 4)) if job.model.is_moe else 1,
            sequence_parallel=pick.random() < 0.5,
            precision_aware_optimizer=pick.random() < 0.5,
            optimizer_offload_fraction=pick.choice((0.0, 0.5)),
        )
        if broken_laws(*normalise(job, plan)[:2]):
            continue
        done += 1
        job, plan, _ = normalise(job, plan)
        verify(job, plan, relief(job, plan, pick.choice((0.5, 3)) * GIB))


def test_short_formats_are_marked() -> None:
    job = make_job("llama3-8b", "h200", 8, 8192, gbs=64)
    found = relief(job, Plan(tp=2, sequence_parallel=True), GIB)
    marked = {change.numerics for change in found.changes if "grad_dtype" in change.set}
    assert marked == {True}
    assert {change.numerics for change in found.changes if "cp" in change.set} == {False}


def test_where_nothing_frees_enough_the_most_is_told() -> None:
    job = make_job("llama3-8b", "h200", 8, 8192, gbs=64)
    found = relief(job, Plan(tp=2, sequence_parallel=True), 1000 * GIB)
    assert found.changes == ()
    freed = [change.freed_bytes for change in found.less]
    assert freed == sorted(freed, reverse=True)
    assert len(freed) == 3


def test_no_change_lets_a_node_pin_more_than_it_may() -> None:
    job = make_job("llama3-8b", "h200", 8, 8192, gbs=64)
    poor = job.model_copy(
        update={"machine": job.machine.model_copy(update={"host_ram_bytes_per_node": 8 * GIB})}
    )
    plan = Plan(tp=2, sequence_parallel=True)
    assert any("optimizer_offload_fraction" in c.set for c in relief(job, plan, GIB).changes)
    found = relief(poor, plan, GIB)
    assert all("optimizer_offload_fraction" not in c.set for c in found.changes)
    verify(poor, plan, found)


def test_excess_is_what_does_not_fit() -> None:
    job = make_job("llama3-8b", "h100", 8, 8192, gbs=64)
    over = evaluate(job, Plan())
    limit = job.machine.hbm_bytes * (1 - job.margin)
    assert excess(job, over) == over.worst_stage.peak_device_bytes - limit > 0
    assert excess(job, evaluate(job, Plan(tp=4, pp=2, sequence_parallel=True))) == 0
