"""Launchers' formats: recognised by what is in them, read into the same words, refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mbsolve.constraints.check import violations
from mbsolve.emit.formats import Given, read_entries
from mbsolve.errors import InputError
from mbsolve.judge.cases import Case, read_cases

ROOT = Path(__file__).parents[2]
KNOWN = Given(model="qwen3-30b-a3b", hardware="h100", gpus=64, seq_len=4096)
SMALL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --vocab-size 32000 --bf16 --seq-length 2048"
)


def case_of(path: Path, text: str, given: Given | None = None, name: str = "file.txt") -> Case:
    file = path / name
    file.write_text(text, encoding="utf-8")
    (case,) = read_cases(file, given)
    return case


def refusal(path: Path, text: str, given: Given | None = None, name: str = "file.txt") -> str:
    with pytest.raises(InputError) as caught:
        case_of(path, text, given, name)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith((".", "?"))
    assert name in said
    return said


def fields(case: Case, *names: str) -> dict[str, Any]:
    return {name: getattr(case.plan, name) for name in names}


OVERRIDES: list[tuple[str, dict[str, Any]]] = [
    ("model.tensor_model_parallel_size=4", {"tp": 4}),
    ("+model.tensor_model_parallel_size=4", {"tp": 4}),
    ("++model.tensor_model_parallel_size = 4".replace(" ", ""), {"tp": 4}),
    ("model.tensor_model_parallel_size=2 model.tensor_model_parallel_size=4", {"tp": 4}),
    ("model.tensor_model_parallel_size=4 # as before", {"tp": 4}),
    ("model.virtual_pipeline_model_parallel_size=null", {"vpp": 1}),
    ("model.recompute_granularity=full", {"recompute_granularity": "full", "recompute_num_layers": 1}),
    ("model.recompute_modules=[moe, layernorm]", {"recompute_modules": ("moe", "layernorm")}),
    ("model.moe_token_dispatcher_type=flex", {"dispatcher": "deepep"}),
    (
        "model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend=hybridep",
        {"dispatcher": "hybridep"},
    ),
    (
        "model.moe_token_dispatcher_type=alltoall model.moe_flex_dispatcher_backend=deepep",
        {"dispatcher": "alltoall"},
    ),
    ("model.overlap_moe_expert_parallel_comm=true", {"ep_overlap": True}),
    ("comm_overlap=null", {"ep_overlap": False}),
    (
        "model.cuda_graph_impl=local model.cuda_graph_scope=full_iteration",
        {"cuda_graph_impl": "full_iteration"},
    ),
    ("model.external_cuda_graph=true", {"cuda_graph_impl": "transformer_engine"}),
    ("optimizer.optimizer_cpu_offload=true", {"optimizer_offload_fraction": 0.0}),
    (
        "optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=0.5",
        {"optimizer_offload_fraction": 0.5},
    ),
    ("model.cpu_offloading=true model.cpu_offloading_num_layers=3", {"activation_offload_layers": 3}),
    ("model.cpu_offloading=false model.cpu_offloading_num_layers=3", {"activation_offload_layers": 0}),
    ('model.pipeline_model_parallel_layout="Et*24|t*24L"', {"pipeline_layout": "Et*24|t*24L"}),
    ("'model.pipeline_model_parallel_layout=\"Et*24|t*24L\"'", {"pipeline_layout": "Et*24|t*24L"}),
]


@pytest.mark.parametrize(("text", "plan"), OVERRIDES)
def test_overrides(text: str, plan: dict[str, Any], tmp_path: Path) -> None:
    case = case_of(tmp_path, f"# tuned\n\n{text}\n", KNOWN)
    assert fields(case, *plan) == plan
    assert case.told[0] == "read as a Megatron-Bridge override list"


@pytest.mark.parametrize(
    ("text", "precision", "settings"),
    [
        ("mixed_precision=bf16_mixed", "bf16", {}),
        ("mixed_precision=bf16_with_fp8_current_scaling_mixed", "fp8_cs", {"fp8_param": True}),
        ("mixed_precision=nemotron_h_bf16_with_fp8_current_scaling_mixed", "fp8_cs", {"fp8_param": True}),
        ("mixed_precision=bf16_with_fp8_subchannel_scaling_mixed", "fp8_block", {"fp8_param": False}),
        ("mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=tensorwise", "fp8_cs", {}),
        ("mixed_precision.grad_reduce_in_fp32=false", "bf16", {"grad_dtype": "bf16"}),
        ("optimizer.main_grads_dtype=torch.bfloat16", "bf16", {"grad_dtype": "bf16"}),
        (
            "optimizer.exp_avg_dtype=bf16 optimizer.exp_avg_sq_dtype=bfloat16",
            "bf16",
            {"moment_dtype": "bf16"},
        ),
        ("ddp.use_distributed_optimizer=false", "bf16", {"distributed_optimizer": False}),
        ("ddp.overlap_grad_reduce=false", "bf16", {"overlap_grad_reduce": False}),
    ],
)
def test_number_formats(text: str, precision: str, settings: dict[str, Any], tmp_path: Path) -> None:
    job = case_of(tmp_path, text, KNOWN).job
    assert job.precision == precision
    assert {name: getattr(job.settings, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.tensor_parallel_size=4", "did you mean 'model.tensor_model_parallel_size'?"),
        ("tensor_model_parallel_size=4\nmodel.x=1", "did you mean 'model.tensor_model_parallel_size'?"),
        ("model.micro_batch_size=4", "did you mean 'train.micro_batch_size'?"),
        ("modle.recompute_modules=[]", "did you mean 'model.recompute_modules'?"),
        ("mixed_precision=bf16_mixd", "did you mean 'bf16_mixed'?"),
        ("comm_overlap=null\ncomm_overlap.tp_comm_overlap=true", "comm_overlap is null"),
        ("model.recompute_modules=[moe", "a bracket is not closed"),
        ('model.pipeline_model_parallel_layout="Et', "a quote is not closed"),
        ("model.tensor_model_parallel_size=many", "tp is 'many'"),
        ("model.tensor_model_parallel_size=1000000000", "at most"),
        ("model.sequence_parallel=7", "it must be true or false"),
        ("model.cpu_offloading=7", "must be true or false"),
        ("model.recompute_modules={a:1}", "must be a list of words"),
        ("model.tensor_model_parallel_size=2\nand so on", "must be KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, text, KNOWN)


def test_a_command_line_of_a_recipe(tmp_path: Path) -> None:
    text = """
    # two nodes
    export TP=2
    torchrun --nproc-per-node=8 --nnodes 2 scripts/training/run_recipe.py \\
        --recipe qwen3_30b_a3b_pretrain_16gpu_gb200_fp8mx_config -tp 8 -ep 4 --max_steps 10 \\
        model.tensor_model_parallel_size=$TP model.recompute_modules=[moe,layernorm] \\
        'model.pipeline_model_parallel_layout="Et*48L"' logger.log_interval=$EVERY $MORE > log 2>&1 &
    """
    case = case_of(tmp_path, text, Given(seq_len=4096))
    assert case.job.model.name == "qwen3-30b-a3b"
    assert (case.job.gpus, case.job.gpus_per_node) == (16, 8)
    assert (case.job.machine.name, case.job.precision) == ("gb200", "mxfp8")
    assert fields(case, "tp", "ep", "pipeline_layout") == {"tp": 2, "ep": 4, "pipeline_layout": "Et*48L"}
    assert case.plan.recompute_modules == ("moe", "layernorm")
    assert "$MORE was ignored: what it holds is not in the file" in case.told
    assert "2 other options were passed over" in case.told


def test_a_recipe_that_is_no_card_asks_for_the_model(tmp_path: Path) -> None:
    text = "torchrun run_recipe.py --recipe exaone4_1p2b_sft_config model.tensor_model_parallel_size=2"
    assert "name it with --model" in refusal(tmp_path, text)
    case = case_of(tmp_path, text, KNOWN)
    assert "sft was ignored: fine-tuning is judged as pretraining" in case.told


def test_options_fill_and_contradict(tmp_path: Path) -> None:
    text = "dataset.seq_length=4096\nmodel.tensor_model_parallel_size=2"
    assert case_of(tmp_path, text, KNOWN).job.seq_len == 4096
    other = Given(model="dsv3", seq_len=8192)
    assert "--seq is 8192, but the file says 4096" in refusal(tmp_path, text, other)
    job = yaml.safe_dump({"model": "llama3-8b", "hardware": "h100", "seq_len": 8192})
    assert case_of(tmp_path, job, Given(model="llama3.1-8b", hardware="h100", gpus=8)).job.gpus == 8
    assert "--model is dsv3, but the file says llama3-8b" in refusal(tmp_path, job, Given(model="dsv3"))
    assert "--hardware is b200, but the file says h100" in refusal(tmp_path, job, Given(hardware="b200"))
    with pytest.raises(InputError, match="There is no model 'lama3-8'"):
        read_entries(ROOT / "examples/jobs/qwen3-30b.yaml", Given(model="lama3-8"))


@pytest.mark.parametrize(
    ("text", "name", "judged"),
    [
        ("dist.use_megatron_fsdp=true", "use_megatron_fsdp", False),
        ("peft={_target_:megatron.bridge.peft.lora.LoRA,dim:8}", "peft", False),
        ("optimizer.optimizer=muon", "optimizer", False),
        ("optimizer.exp_avg_dtype=fp8 optimizer.exp_avg_sq_dtype=fp8", "exp_avg_dtype", False),
        ("model.num_moe_experts=8 model.moe_layer_freq=2", "moe_layer_freq", False),
        ("dataset.enable_in_batch_packing=true", "enable_in_batch_packing", True),
        ("model.moe_expert_capacity_factor=1.0", "moe_expert_capacity_factor", True),
        ("train.rampup_batch_size=[16,16,100]", "rampup_batch_size", True),
        ("model.seq_length=2048 dataset.seq_length=4096", "model.seq_length", True),
    ],
)
def test_what_is_not_modelled_is_told(text: str, name: str, judged: bool, tmp_path: Path) -> None:
    from mbsolve.judge.answers import evaluate_case, verdict

    case = case_of(tmp_path, f"{text}\ntrain.global_batch_size=64\nmodel.expert_model_parallel_size=8", KNOWN)
    answer = verdict(case)
    assert any(name in one for one in answer.told)
    assert (answer.verdict == "undecided") != judged
    assert (evaluate_case(case).evaluation is None) != judged


def test_what_is_off_is_not_told(tmp_path: Path) -> None:
    text = "dist.use_megatron_fsdp=false dataset.enable_in_batch_packing=false model.moe_expert_capacity_factor=null"
    told = case_of(tmp_path, text, KNOWN).told
    assert told == ("read as a Megatron-Bridge override list",)


def test_shipped_examples() -> None:
    (bridge,) = read_cases(ROOT / "examples/jobs/qwen3-30b-overrides.txt", KNOWN)
    assert bridge.plan.dispatcher == "hybridep"
    (script,) = read_cases(ROOT / "examples/jobs/llama3-70b-megatron.sh")
    assert (script.job.gpus, script.job.seq_len, script.job.gbs) == (64, 8192, 128)
    assert fields(script, "tp", "pp", "vpp", "etp") == {"tp": 4, "pp": 4, "vpp": 4, "etp": 4}


@pytest.mark.parametrize("text", ["", "hello", "A=1\nB=2\n", "#!/bin/bash\npython other.py --num-layers 3\n"])
def test_what_is_no_format_at_all(text: str, tmp_path: Path) -> None:
    refusal(tmp_path, text)


def test_ends_that_count_and_dropout_and_padding_are_read(tmp_path: Path) -> None:
    text = (
        "model.account_for_embedding_in_pipeline_split=true model.account_for_loss_in_pipeline_split=true "
        "model.hidden_dropout=0.1 model.moe_router_padding_for_fp8=true"
    )
    case = case_of(tmp_path, text, KNOWN)
    assert case.plan.embedding_in_split and case.plan.loss_in_split
    assert case.job.settings.hidden_dropout == 0.1 and case.job.settings.attention_dropout == 0.0
    assert case.job.settings.router_padding


@pytest.mark.parametrize("kind", ["rope", "yarn"])
def test_the_kind_of_rotary_embedding_changes_a_known_model(kind: str, tmp_path: Path) -> None:
    case = case_of(
        tmp_path, f"model.rope_type={kind} model.apply_rope_fusion=true", Given("dsv3", "h100", 256, 4096)
    )
    assert case.job.model.rotary == kind
    broken = [one.rule for one in violations(case.job, case.plan)]
    assert ("mla-rope-fusion" in broken) == (kind == "rope")
