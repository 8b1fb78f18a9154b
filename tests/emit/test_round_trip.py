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
from mbsolve.constraints.vocabulary import (
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    Plan,
    Settings,
)
from mbsolve.emit.formats import Given
from mbsolve.emit.megatron_bridge import command, overrides, write
from mbsolve.judge.cases import Case, read_cases
from mbsolve.reading import make_job
from mbsolve.solver.outcome import Outcome

# What the writer cannot say: facts of the cost model and of the environment.
UNSAID = ("routing", "logits_copies", "expandable_segments")


def some(words: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(words), unique=True, max_size=3).map(tuple)


RECOMPUTE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"recompute_granularity": st.just("selective"), "recompute_modules": some(RECOMPUTE_MODULES)}
    ),
    st.fixed_dictionaries(
        {
            "recompute_granularity": st.just("full"),
            "recompute_method": st.sampled_from(("uniform", "block")),
            "recompute_num_layers": st.integers(1, 9),
        }
    ),
)
SIZE = st.sampled_from((1, 2, 4, 8, 16))
PLANS = st.builds(
    lambda recompute, **fields: Plan(**fields, **recompute),
    RECOMPUTE,
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep", "etp", "mbs"), SIZE),
    sequence_parallel=st.booleans(),
    pipeline_layout=st.sampled_from((None, "Et|(tt|)*30mL", "Et*3|t*58,m|L")),
    first_stage_layers=st.sampled_from((None, 3)),
    last_stage_layers=st.sampled_from((None, 5)),
    dispatcher=st.sampled_from(("allgather", "alltoall", "deepep", "hybridep")),
    ep_overlap=st.booleans(),
    delay_wgrad=st.booleans(),
    precision_aware_optimizer=st.booleans(),
    optimizer_offload_fraction=st.one_of(st.just(0.0), st.floats(0.01, 1.0)),
    activation_offload_layers=st.integers(0, 9),
    fine_grained_offload_modules=some(OFFLOAD_MODULES),
    cuda_graph_impl=st.sampled_from(GRAPH_IMPLS),
    cuda_graph_scope=some(GRAPH_SCOPES),
).filter(
    # No law allows these without a rank capacity, which is completed then.
    lambda plan: plan.cuda_graph_impl != "full_iteration" or plan.dispatcher != "hybridep"
)
SETTINGS = st.builds(
    Settings,
    **dict.fromkeys(
        (
            *("fp8_param", "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap"),
            *("shared_expert_overlap", "permute_fusion", "op_fuser", "rope_fusion", "distributed_optimizer"),
            *("fp8_output_proj", "grad_accumulation_fusion"),
        ),
        st.booleans(),
    ),
    grad_dtype=st.sampled_from(("fp32", "bf16")),
    main_param_dtype=st.sampled_from(("fp32", "fp16")),
    moment_dtype=st.sampled_from(("fp32", "bf16", "fp16")),
    cp_comm_type=st.sampled_from(("p2p", "a2a", "all_gather", "a2a+p2p")),
    make_vocab_size_divisible_by=st.sampled_from((1, 64, 128)),
    expert_rank_capacity=st.sampled_from((None, 1.5)),
)


def jobs(model: str) -> st.SearchStrategy[Job]:
    return st.builds(
        lambda precision, changed, gbs: make_job(
            model=model,
            hardware="gb200",
            gpus=256,
            seq_len=8192,
            gbs=gbs,
            precision=precision,
            settings=changed,
        ),
        st.sampled_from([p for p in PRECISIONS if p != "fp8_block"]),
        SETTINGS,
        st.integers(1, 4096),
    )


def said(job: Job, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the settings that the writer says: some hold under conditions only."""
    fields, changed = plan.model_dump(), job.settings.model_dump()
    default = Settings()
    silent = list(UNSAID)
    if not job.quantised:
        silent += ["fp8_param", "fp8_output_proj"]
    if not job.model.is_moe:
        fields["dispatcher"] = "alltoall"
        silent += ["shared_expert_overlap", "permute_fusion"]
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
