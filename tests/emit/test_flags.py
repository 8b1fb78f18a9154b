"""Flags of Megatron-LM: every decision and setting reaches them, and they are read back to the same plan and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import expand_layout
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.emit.formats import Given
from mbsolve.emit.launch import arguments, command, write
from mbsolve.emit.megatron_lm import flags
from mbsolve.judge.cases import Case, read_cases
from mbsolve.models.card import Model, model_names
from mbsolve.reading import make_job
from mbsolve.solver.outcome import Outcome
from tests.emit.strategies import PLANS, jobs
from tests.emit.test_megatron_bridge import CHANGES, NOT_KEYS

UNSAID = ("routing", "logits_copies", "expandable_segments")
# Of a card: its names and sources, and what no flag says.
APART = {
    "name",
    "title",
    "aliases",
    "sources",
    "published_params",
    "tokens_per_batch",
    "pretrain_seq_len",
    "aux_loss",
}


def expected(job: Job, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the settings that the flags say."""
    fields, changed = plan.model_dump(), job.settings.model_dump()
    default, silent = Settings(), list(UNSAID)
    if plan.tp == 1:
        fields["sequence_parallel"] = False
    if plan.pipeline_layout is not None:
        stages = len(expand_layout(plan.pipeline_layout))
        # The program takes the virtual stages of a layout, whatever else is wished.
        fields["vpp"] = stages // plan.pp if plan.pp > 1 and stages % plan.pp == 0 else 1
    if plan.recompute_granularity == "selective" and not plan.recompute_modules:
        fields["recompute_modules"] = ("core_attn",)
    if not job.quantised:
        silent += ["fp8_param", "fp8_output_proj"]
    if not job.model.is_moe:
        fields["dispatcher"] = "alltoall"
        changed["permute_fusion"] = False
        silent += ["shared_expert_overlap", "router_padding"]
    if plan.dispatcher in ("deepep", "hybridep") or plan.ep_overlap:
        changed["shared_expert_overlap"] = False
    return fields, changed | {name: getattr(default, name) for name in silent}


def read(path: Path, text: str, given: Given) -> Case:
    path.write_text(text, encoding="utf-8")
    (case,) = read_cases(path, given)
    return case


def same(case: Case, job: Job, plan: Plan) -> None:
    fields, changed = expected(job, plan)
    assert case.plan.model_dump() == fields
    assert case.job.settings.model_dump() == changed
    for name in ("precision", "seq_len", "gbs", "gpus", "model", "machine", "target"):
        assert getattr(case.job, name) == getattr(job, name), name
    assert not any("ignored" in text or "not modelled" in text for text in case.told)


def given_of(job: Job) -> Given:
    return Given(model=job.model.name, hardware=job.machine.name, gpus=job.gpus)


@settings(max_examples=150, deadline=None)
@given(job=st.one_of(jobs("dsv3", "megatron-lm"), jobs("llama3-8b", "megatron-lm")), plan=PLANS)
def test_any_flags(job: Job, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    name, text = arguments(job, plan)
    assert name == "flags.txt"
    case = read(Path(tmp_path_factory.getbasetemp()) / name, text, given_of(job))
    same(case, job, plan)
    assert case.told[0] == "read as a Megatron-LM command line"


@settings(max_examples=50, deadline=None)
@given(job=jobs("dsv3", "megatron-lm"), plan=PLANS)
def test_any_command_line(job: Job, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    case = read(Path(tmp_path_factory.getbasetemp()) / "run.sh", "\n".join(command(job, plan)), given_of(job))
    expandable = job.settings.expandable_segments
    assert case.job.settings.expandable_segments == expandable
    same(case, job, plan)


@pytest.mark.parametrize("name", model_names())
def test_the_model_is_in_the_flags(name: str, tmp_path: Path) -> None:
    job = make_job(model=name, gpus=64, seq_len=2048, target="megatron-lm")
    case = read(tmp_path / "flags.txt", arguments(job, Plan())[1], Given(gpus=64))
    assert case.skipped is None and not case.unmodelled
    theirs = case.job.model
    differing = {field for field in Model.model_fields if getattr(job.model, field) != getattr(theirs, field)}
    if job.model.mla:
        # Latent attention reads neither.
        differing -= {"head_dim", "num_query_groups"}
    if not any(kind.ffn == "dense" for kind in job.model.layers()):
        differing.discard("ffn_hidden_size")
    assert differing <= APART


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_every_decision_changes_the_flags(name: str) -> None:
    job = make_job(model="dsv3", gpus=256, seq_len=4096, gbs=512, target="megatron-lm")
    without = {key: value for key, value in CHANGES[name].items() if key != name}
    assert flags(job, Plan(**CHANGES[name])) != flags(job, Plan(**without))


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - NOT_KEYS))
def test_every_setting_changes_the_flags(name: str) -> None:
    other: dict[str, Any] = {
        "grad_dtype": "bf16",
        "main_param_dtype": "fp16",
        "moment_dtype": "bf16",
        "cp_comm_type": "a2a",
        "make_vocab_size_divisible_by": 64,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
    }
    default = getattr(Settings(), name)
    base = make_job(model="dsv3", gpus=256, seq_len=4096, precision="fp8_cs", target="megatron-lm")
    job = base.model_copy(update={"settings": Settings(**{name: other.get(name, not default)})})
    plan = Plan(precision_aware_optimizer=True)
    assert flags(job, plan) != flags(base, plan)


def test_virtual_stages_have_one_source() -> None:
    job = make_job(model="llama3-8b", gpus=64, seq_len=4096, target="megatron-lm")
    assert "--num-virtual-stages-per-pipeline-rank" in flags(job, Plan(pp=2, vpp=4))
    laid = flags(job, Plan(pp=2, vpp=2, pipeline_layout="Et*8|t*8|t*8|t*8L"))
    assert "--num-virtual-stages-per-pipeline-rank" not in laid


def test_patterns_go_to_the_program_of_hybrids() -> None:
    job = make_job(model="nemotron-3-nano", gpus=64, seq_len=8192, target="megatron-lm")
    plan = Plan(pp=4, pipeline_layout="E(t*13|)*3t*13L")
    assert any("pretrain_hybrid.py" in line for line in command(job, plan))
    words = flags(job, plan)
    assert words[words.index("--hybrid-layer-pattern") + 1].count("|") == 3
    assert not {"--pipeline-model-parallel-layout", "--num-layers"} & set(words)


def test_the_files_of_an_answer(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    job = make_job(model="dsv3", gpus=256, seq_len=131072, gbs=128, target="megatron-lm")
    best = outcomes["optimal"].best
    assert best is not None
    write(job, outcomes["optimal"], tmp_path / "plan")
    names = sorted(path.name for path in (tmp_path / "plan").iterdir())
    assert names == ["env.sh", "flags.txt", "job.yaml", "outcome.json", "plan.json"]
    (case,) = read_cases(tmp_path / "plan" / "flags.txt", Given(model="dsv3", hardware="h100", gpus=256))
    (other,) = read_cases(tmp_path / "plan" / "job.yaml")
    assert case.plan == other.plan == best.plan
    assert case.job == other.job == job
