"""Configurations that Megatron-Bridge saved with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mbsolve.emit.formats import Given
from mbsolve.errors import InputError
from mbsolve.judge.answers import verdict
from mbsolve.judge.cases import Case, read_cases

BF16 = {"_call_": False, "_target_": "torch.bfloat16"}
FP32 = {"_call_": False, "_target_": "torch.float32"}
MODEL: dict[str, Any] = {
    "_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
    "activation_func": {"_call_": False, "_target_": "torch.nn.functional.silu"},
    "add_bias_linear": False,
    "attention_backend": {"_args_": [5], "_call_": True, "_name_": "auto", "_target_": "enums.AttnBackend"},
    "context_parallel_size": 1,
    "cp_comm_type": None,
    "cuda_graph_impl": "none",
    "cuda_graph_scope": "full",
    "expert_model_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "ffn_hidden_size": 6144,
    "gated_linear_unit": True,
    "hidden_size": 2048,
    "kv_channels": 128,
    "moe_aux_loss_coeff": 0.001,
    "moe_ffn_hidden_size": 768,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_layer_freq": [1] * 48,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_score_function": "softmax",
    "moe_router_topk": 8,
    "moe_token_dispatcher_type": "alltoall",
    "mtp_num_layers": None,
    "multi_latent_attention": False,
    "normalization": "RMSNorm",
    "num_attention_heads": 32,
    "num_layers": 48,
    "num_moe_experts": 128,
    "num_query_groups": 4,
    "pipeline_model_parallel_layout": [["embedding"] + ["decoder"] * 24, ["decoder"] * 24 + ["loss"]],
    "pipeline_model_parallel_size": 2,
    "position_embedding_type": "rope",
    "qk_layernorm": True,
    "recompute_granularity": "selective",
    "recompute_modules": ["core_attn"],
    "seq_length": 131072,
    "sequence_parallel": True,
    "share_embeddings_and_output_weights": False,
    "tensor_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "vocab_size": 151936,
}
SAVED: dict[str, Any] = {
    "_target_": "megatron.bridge.training.config.ConfigContainer",
    "model": MODEL,
    "train": {"micro_batch_size": 1, "global_batch_size": 512, "train_iters": 10},
    "dataset": {"seq_length": 4096, "split": "1,1,1"},
    "optimizer": {
        "optimizer": "adam",
        "exp_avg_dtype": BF16,
        "exp_avg_sq_dtype": BF16,
        "main_grads_dtype": FP32,
        "use_distributed_optimizer": True,
        "use_precision_aware_optimizer": True,
        "lr": 0.0003,
    },
    "ddp": {"overlap_grad_reduce": True, "overlap_param_gather": False, "use_megatron_fsdp": False},
    "mixed_precision": {"bf16": True, "fp8": None, "fp8_recipe": "tensorwise", "grad_reduce_in_fp32": True},
    "comm_overlap": None,
    "peft": None,
}


def case_of(path: Path, raw: object, given: Given | None = None) -> Case:
    file = path / "run_config.yaml"
    file.write_text(yaml.safe_dump(raw))
    (case,) = read_cases(file, given)
    return case


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**SAVED, section: {**SAVED[section], **values}}


def test_a_whole_configuration(tmp_path: Path) -> None:
    case = case_of(tmp_path, SAVED, Given(gpus=64, hardware="h100"))
    assert case.told[0] == "read as a saved Megatron-Bridge configuration"
    plan = case.plan
    assert (plan.tp, plan.pp, plan.vpp, plan.ep, plan.etp, plan.mbs) == (2, 2, 1, 8, 1, 1)
    assert plan.pipeline_layout == f"E{'t' * 24}|{'t' * 24}L"
    assert (plan.dispatcher, plan.cuda_graph_impl, plan.cuda_graph_scope) == ("alltoall", "none", ())
    assert plan.precision_aware_optimizer and plan.sequence_parallel
    assert (case.job.seq_len, case.job.gbs, case.job.precision) == (4096, 512, "bf16")
    settings = case.job.settings
    assert (settings.moment_dtype, settings.grad_dtype) == ("bf16", "fp32")
    assert settings.overlap_grad_reduce and not settings.overlap_param_gather
    model = case.job.model
    assert (model.num_experts, model.first_k_dense, model.head_dim, model.aux_loss) == (128, 0, 128, True)
    assert verdict(case).verdict == "feasible"


def test_a_card_is_checked_against_the_dimensions(tmp_path: Path) -> None:
    named = case_of(tmp_path, SAVED, Given(model="qwen3-30b-a3b", gpus=64))
    assert named.job.model.name == "qwen3-30b-a3b"
    with pytest.raises(InputError, match="hidden_size is 1024, but 2048 in qwen3-30b-a3b"):
        case_of(tmp_path, changed("model", hidden_size=1024), Given(model="qwen3-30b-a3b", gpus=64))


def test_a_configuration_without_a_model_of_its_own(tmp_path: Path) -> None:
    part = {**SAVED, "model": {"_target_": "x", "tensor_model_parallel_size": 2}}
    with pytest.raises(InputError, match="name it with --model"):
        case_of(tmp_path, part)
    assert case_of(tmp_path, part, Given(model="llama3-8b", gpus=8)).plan.tp == 2


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True}, "fp8_delayed"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "fp8_cs"),
        ({"fp8": "e4m3", "fp8_recipe": "blockwise"}, "fp8_block"),
        ({"_target_": "megatron.bridge.training.mixed_precision.bf16_mixed"}, "bf16"),
    ],
)
def test_precisions(fields: dict[str, Any], precision: str, tmp_path: Path) -> None:
    case = case_of(tmp_path, {**SAVED, "mixed_precision": fields}, Given(gpus=64))
    assert case.job.precision == precision
    assert case.job.settings.fp8_param == fields.get("fp8_param_gather", False)


@pytest.mark.parametrize(
    ("section", "values", "name"),
    [
        ("ddp", {"use_megatron_fsdp": True}, "use_megatron_fsdp"),
        ("optimizer", {"optimizer": "muon"}, "optimizer"),
        ("model", {"moe_layer_freq": [0, 1] * 24}, "moe_layer_freq"),
        ("mixed_precision", {"fp8": "hybrid", "fp8_recipe": "custom"}, "fp8_recipe"),
    ],
)
def test_what_is_not_modelled_is_not_judged(
    section: str, values: dict[str, Any], name: str, tmp_path: Path
) -> None:
    answer = verdict(case_of(tmp_path, changed(section, **values), Given(gpus=64)))
    assert answer.verdict == "undecided"
    assert any(name in text for text in answer.told)


def test_a_job_file_is_no_saved_configuration(tmp_path: Path) -> None:
    job = {"model": {"name": "dsv3", "num_layers": 9}, "gpus": 8, "config": {"tp": 2}}
    assert not any(text.startswith("read as") for text in case_of(tmp_path, job).told)
