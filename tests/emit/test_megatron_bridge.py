"""Every decision and setting reaches the launcher, in its own spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.emit.environment import environment
from mbsolve.emit.launch import OutputError, command, write
from mbsolve.emit.megatron_bridge import overrides
from mbsolve.reading import make_job
from mbsolve.solver.outcome import Outcome

# For each decision a value that is not its default; None marks that another field must stand beside it.
CHANGES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "cp": {"cp": 2},
    "pp": {"pp": 2},
    "vpp": {"vpp": 2},
    "ep": {"ep": 2},
    "etp": {"etp": 2},
    "mbs": {"mbs": 2},
    "sequence_parallel": {"sequence_parallel": True},
    "pipeline_layout": {"pipeline_layout": "Et*61mL"},
    "first_stage_layers": {"first_stage_layers": 3},
    "last_stage_layers": {"last_stage_layers": 3},
    "embedding_in_split": {"embedding_in_split": True},
    "loss_in_split": {"loss_in_split": True},
    "recompute_granularity": {"recompute_granularity": "selective"},
    "recompute_method": {"recompute_method": "block"},
    "recompute_num_layers": {"recompute_num_layers": 2},
    "recompute_modules": {"recompute_granularity": "selective", "recompute_modules": ("moe_act",)},
    "dispatcher": {"dispatcher": "deepep"},
    "ep_overlap": {"ep_overlap": True},
    "delay_wgrad": {"delay_wgrad": True},
    "precision_aware_optimizer": {"precision_aware_optimizer": True},
    "optimizer_offload_fraction": {"optimizer_offload_fraction": 0.25},
    "activation_offload_layers": {"activation_offload_layers": 4},
    "fine_grained_offload_modules": {"fine_grained_offload_modules": ("core_attn",)},
    "cuda_graph_impl": {"cuda_graph_impl": "transformer_engine"},
    "cuda_graph_scope": {"cuda_graph_scope": ("attn",)},
}
# Settings that are facts of the cost model or of the environment, not launcher keys.
NOT_KEYS = {"routing", "logits_copies", "expandable_segments"}


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job(model="dsv3", gpus=256, seq_len=4096, gbs=512)


def values(job: Job, **plan: Any) -> dict[str, str]:
    return dict(text.split("=", 1) for text in overrides(job, Plan(**plan)))


def test_every_decision_has_a_case() -> None:
    assert set(CHANGES) == set(Plan.model_fields)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_every_decision_changes_the_text(job: Job, name: str) -> None:
    without = {key: value for key, value in CHANGES[name].items() if key != name}
    assert overrides(job, Plan(**CHANGES[name])) != overrides(job, Plan(**without))


def test_recompute_that_a_plan_does_not_mean_is_not_said(job: Job) -> None:
    said = values(job, recompute_modules=("moe",), recompute_num_layers=0)
    assert said["model.recompute_modules"] == "[]"
    assert said["model.recompute_num_layers"] == "null"


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - NOT_KEYS))
def test_every_setting_changes_the_text(name: str) -> None:
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
    changed = Settings(**{name: other.get(name, not default)})
    base = make_job(model="dsv3", gpus=256, seq_len=4096, precision="fp8_cs")
    job = base.model_copy(update={"settings": changed})
    plan = Plan(precision_aware_optimizer=True)
    assert overrides(job, plan) != overrides(base, plan)


def test_what_must_always_be_said_is_said(job: Job) -> None:
    said = values(job)
    assert said["model.expert_tensor_parallel_size"] == "1"
    assert said["model.pipeline_model_parallel_layout"] == "null"
    assert said["model.virtual_pipeline_model_parallel_size"] == "null"
    assert said["model.num_layers_in_first_pipeline_stage"] == "null"
    assert said["model.recompute_granularity"] == "null"
    assert said["model.recompute_modules"] == "[]"
    assert said["train.global_batch_size"] == "512"
    assert said["optimizer.use_precision_aware_optimizer"] == "false"


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_flex_dispatchers_need_three_keys(job: Job, backend: str) -> None:
    overlapping = job.model_copy(update={"settings": Settings(shared_expert_overlap=True)})
    said = values(overlapping, dispatcher=backend)
    assert said["model.moe_token_dispatcher_type"] == "flex"
    assert said["model.moe_flex_dispatcher_backend"] == backend
    assert said["model.moe_shared_expert_overlap"] == "false"
    assert values(overlapping)["model.moe_shared_expert_overlap"] == "true"
    assert values(overlapping)["model.moe_flex_dispatcher_backend"] == "null"


def test_overlap_goes_through_a_fresh_node(job: Job) -> None:
    lines = overrides(job, Plan(ep_overlap=True))
    assert lines.index("comm_overlap=null") + 1 == next(
        i for i, text in enumerate(lines) if text.startswith("comm_overlap={_target_:")
    )
    assert "comm_overlap.overlap_moe_expert_parallel_comm=true" in lines
    assert not any(text.startswith("model.overlap_moe") for text in lines)


def test_offload_layout_and_graphs_are_spelled(job: Job) -> None:
    said = values(
        job,
        optimizer_offload_fraction=0.85,
        pipeline_layout="Et|(tt|)*30mL",
        cuda_graph_impl="full_iteration",
    )
    assert said["optimizer.optimizer_cpu_offload"] == "true"
    assert said["optimizer.optimizer_offload_fraction"] == "0.85"
    assert said["model.pipeline_model_parallel_layout"] == '"Et|(tt|)*30mL"'
    assert said["rng.te_rng_tracker"] == "true"
    assert said["rerun_state_machine.check_for_nan_in_loss"] == "false"
    scoped = values(job, cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn", "moe_router"))
    assert scoped["model.cuda_graph_modules"] == "[attn,moe_router]"
    assert "rerun_state_machine.check_for_nan_in_loss" not in scoped


def test_precision_is_a_name_until_a_field_differs(job: Job) -> None:
    def lines(precision: str, **settings: Any) -> list[str]:
        changed = {"precision": precision, "settings": Settings(**settings)}
        found = overrides(job.model_copy(update=changed), Plan())
        return [text for text in found if text.startswith("mixed_precision")]

    assert lines("bf16") == ["mixed_precision=bf16_mixed"]
    assert lines("fp8_cs", fp8_param=True) == ["mixed_precision=bf16_with_fp8_current_scaling_mixed"]
    whole = lines("fp8_cs", grad_dtype="bf16")
    assert whole[1].startswith(
        "mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,"
    )
    assert whole[2:] == [
        "mixed_precision.grad_reduce_in_fp32=false",
        "mixed_precision.fp8_param_gather=false",
    ]


def test_dense_models_have_no_expert_keys() -> None:
    dense = make_job(model="llama3-8b", gpus=8, seq_len=4096)
    assert not any(text.startswith("model.moe_") for text in overrides(dense, Plan()))


def test_environment(job: Job) -> None:
    assert environment(job, Plan()) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert environment(job, Plan(cp=2))["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert environment(job, Plan(cp=2, ep_overlap=True))["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    graphs = Plan(cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn",))
    assert environment(job, graphs)["NCCL_GRAPH_REGISTER"] == "0"
    assert environment(job, Plan(fine_grained_offload_modules=("core_attn",)))["NVTE_CPU_OFFLOAD_V1"] == "1"
    fixed = job.model_copy(update={"settings": Settings(expandable_segments=False)})
    assert environment(fixed, graphs) == {}
    rack = make_job(model="dsv3", hardware="gb200", gpus=256, seq_len=4096)
    found = environment(rack, Plan(tp=2, ep=128, dispatcher="hybridep"))
    assert found["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "64"
    assert found["NVLINK_DOMAIN_SIZE"] == "72"
    assert found["USE_MNNVL"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in found


def test_command_can_be_pasted(job: Job) -> None:
    lines = command(job, Plan(pipeline_layout="Et|(tt|)*30mL"))
    assert lines[0] == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "  'model.pipeline_model_parallel_layout=\"Et|(tt|)*30mL\"' \\" in lines
    assert not lines[-1].endswith("\\")


def test_write_leaves_all_or_nothing(job: Job, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    target = tmp_path / "new" / "answer"
    write(job, outcomes["optimal"], target, "report\n")
    names = ["env.sh", "job.yaml", "outcome.json", "overrides.txt", "plan.json", "report.txt"]
    assert sorted(path.name for path in target.iterdir()) == names
    assert [path.name for path in target.parent.iterdir()] == ["answer"]
    assert Outcome.model_validate_json((target / "outcome.json").read_text()) == outcomes["optimal"]
    assert json.loads((target / "plan.json").read_text())["cp"] == 32
    write(job, outcomes["optimal"], target, "again\n")
    assert (target / "report.txt").read_text() == "again\n"

    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match="not a directory"):
        write(job, outcomes["optimal"], blocked / "answer")
    empty = tmp_path / "empty"
    write(job, outcomes["infeasible"], empty, "no\n")
    assert sorted(path.name for path in empty.iterdir()) == ["outcome.json", "report.txt"]


def test_failed_write_leaves_nothing(
    job: Job, outcomes: dict[str, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_text

    def full_disk(self: Path, *args: Any, **kwargs: Any) -> int:
        if self.name == "plan.json":
            raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OutputError, match="No space left"):
        write(job, outcomes["optimal"], tmp_path / "answer")
    assert list(tmp_path.iterdir()) == []
