"""What the writer writes for Megatron-Bridge is read back to the same plan, precision and settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import expand_layout
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.emit.formats import Given
from mbsolve.emit.launch import command, write
from mbsolve.emit.megatron_bridge import overrides
from mbsolve.judge.cases import Case, read_cases
from mbsolve.reading import make_job
from mbsolve.solver.outcome import Outcome
from tests.emit.strategies import PLANS, jobs

# What the writer cannot say: facts of the cost model and of the environment.
UNSAID = ("routing", "logits_copies", "expandable_segments")


def said(job: Job, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the settings that the writer says: some hold under conditions only."""
    fields, changed = plan.model_dump(), job.settings.model_dump()
    default = Settings()
    silent = list(UNSAID)
    if not job.quantised:
        silent += ["fp8_param", "fp8_output_proj"]
    if not job.model.is_moe:
        fields["dispatcher"] = "alltoall"
        silent += ["shared_expert_overlap", "permute_fusion", "router_padding"]
    if plan.dispatcher in ("deepep", "hybridep") or plan.ep_overlap:
        changed["shared_expert_overlap"] = False
    return fields, changed | {name: getattr(default, name) for name in silent}


def read(path: Path, text: str, job: Job) -> Case:
    path.write_text(text, encoding="utf-8")
    (case,) = read_cases(path, Given(model=job.model.name, hardware=job.machine.name, gpus=job.gpus))
    return case


def same(case: Case, job: Job, plan: Plan) -> None:
    fields, changed = said(job, plan)
    assert case.plan.model_dump() == fields
    assert case.job.settings.model_dump() == changed
    for name in ("precision", "seq_len", "gbs", "gpus", "model", "machine"):
        assert getattr(case.job, name) == getattr(job, name), name
    assert not any("passed over" in text or "ignored" in text or "not modelled" in text for text in case.told)


@settings(max_examples=150, deadline=None)
@given(job=st.one_of(jobs("dsv3"), jobs("llama3-8b")), plan=PLANS)
def test_any_override_list(job: Job, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = "".join(f"{line}\n" for line in overrides(job, plan))
    case = read(Path(tmp_path_factory.getbasetemp()) / "overrides.txt", text, job)
    same(case, job, plan)
    assert case.told[0] == "read as a Megatron-Bridge override list"


@settings(max_examples=50, deadline=None)
@given(job=jobs("dsv3"), plan=PLANS)
def test_any_command_line(job: Job, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = "\n".join(command(job, plan))
    case = read(Path(tmp_path_factory.getbasetemp()) / "run.sh", text, job)
    same(case, job, plan)
    assert case.told[0] == "read as a Megatron-Bridge command line"


@settings(max_examples=25, deadline=None)
@given(job=jobs("dsv3"), plan=PLANS)
def test_quoted_lines_with_continuations_are_the_same(
    job: Job, plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = " \\\n".join(shlex.quote(line) for line in overrides(job, plan))
    same(read(Path(tmp_path_factory.getbasetemp()) / "quoted.txt", text, job), job, plan)


def test_the_files_of_an_answer(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    job = make_job(model="dsv3", gpus=256, seq_len=131072, gbs=128)
    best = outcomes["optimal"].best
    assert best is not None
    write(job, outcomes["optimal"], tmp_path / "plan")
    known = Given(model="dsv3", hardware="h100", gpus=256)
    (case,) = read_cases(tmp_path / "plan" / "overrides.txt", known)
    (other,) = read_cases(tmp_path / "plan" / "job.yaml", known)
    assert case.plan == other.plan == best.plan
    assert case.job == other.job == job


@pytest.mark.parametrize("layout", [None, "E(t*13|)*3t*13L"])
def test_the_pattern_of_a_hybrid_says_its_stages(layout: str | None, tmp_path: Path) -> None:
    job = make_job(model="nemotron-3-nano", gpus=64, seq_len=8192)
    plan = Plan(pp=4, pipeline_layout=layout)
    text = "\n".join(overrides(job, plan))
    case = read(tmp_path / "overrides.txt", text, job)
    assert case.job.model == job.model
    found = case.plan.pipeline_layout
    assert (found and expand_layout(found)) == (layout and expand_layout(layout))
    assert case.plan.model_copy(update={"pipeline_layout": layout}) == plan
