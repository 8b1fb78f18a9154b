"""Every spelling of a field that job files may use: ours, the launchers', and those of reports and recipes.

A table maps a spelling to the field of the plan, of the settings or of the job that it means. Spellings that mean more
than a rename (switches with a value of their own, nested mappings) are read in `jobfile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mbsolve.constraints.vocabulary import Plan, Settings

PLAN_FIELDS: Final = tuple(Plan.model_fields)
SETTING_FIELDS: Final = tuple(Settings.model_fields)

# Spelling -> field of the plan, of the settings, or of the job.
RENAMED: Final[Mapping[str, str]] = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "seq_length": "seq_len",
    "pipeline_model_parallel_layout": "pipeline_layout",
    "pp_layout": "pipeline_layout",
    "layout": "pipeline_layout",
    "num_layers_in_first_pipeline_stage": "first_stage_layers",
    "num_layers_in_last_pipeline_stage": "last_stage_layers",
    "account_for_embedding_in_pipeline_split": "embedding_in_split",
    "account_for_loss_in_pipeline_split": "loss_in_split",
    "moe_router_padding_for_quantization": "router_padding",
    "moe_router_padding_for_fp8": "router_padding",
    "sp": "sequence_parallel",
    "overlap_moe_expert_parallel_comm": "ep_overlap",
    "delay_wgrad_compute": "delay_wgrad",
    "use_precision_aware_optimizer": "precision_aware_optimizer",
    "cuda_graph_modules": "cuda_graph_scope",
    "cg_impl": "cuda_graph_impl",
    "cg_modules": "cuda_graph_scope",
    "cg_scope": "cuda_graph_scope",
    "mtp_layers": "mtp_num_layers",
    "moe_shared_expert_overlap": "shared_expert_overlap",
    "moe_permute_fusion": "permute_fusion",
    "dist_opt": "distributed_optimizer",
    "use_distributed_optimizer": "distributed_optimizer",
    "gradient_accumulation_fusion": "grad_accumulation_fusion",
    "use_transformer_engine_op_fuser": "op_fuser",
    "moe_expert_rank_capacity_factor": "expert_rank_capacity",
    "apply_rope_fusion": "rope_fusion",
    "fp8_param_gather": "fp8_param",
}

# Switches that turn an amount on: (spellings of the switch, of the amount, field, amount when only the switch is given).
AMOUNTS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], str, float | None], ...]] = (
    (
        ("optimizer_cpu_offload", "opt_offload"),
        ("optimizer_offload_fraction", "opt_offload_fraction"),
        "optimizer_offload_fraction",
        1.0,
    ),
    (
        ("cpu_offloading", "cpu_offload"),
        ("activation_offload_layers", "cpu_offloading_num_layers", "cpu_offload_layers"),
        "activation_offload_layers",
        1,
    ),
    (
        ("fine_grained_activation_offloading",),
        ("fine_grained_offload_modules", "offload_modules", "fg_offload_modules"),
        "fine_grained_offload_modules",
        None,
    ),
)

# Spellings of the parts of a nested ``recompute``.
RECOMPUTE: Final[Mapping[str, str]] = {
    "granularity": "recompute_granularity",
    "method": "recompute_method",
    "num_layers": "recompute_num_layers",
    "modules": "recompute_modules",
}

# Spellings of the parts of ``state_dtypes``.
STATE_DTYPES: Final[Mapping[str, str]] = {
    "param": "param",
    "params": "param",
    "grad": "grad_dtype",
    "main_grad": "grad_dtype",
    "main_grads": "grad_dtype",
    "main_param": "main_param_dtype",
    "main_params": "main_param_dtype",
    "exp_avg": "moment_dtype",
    "exp_avg_sq": "moment_dtype",
    "distributed_optimizer": "distributed_optimizer",
    "precision_aware": "precision_aware_optimizer",
}
DTYPES: Final[Mapping[str, str]] = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp8": "fp8",
}

DISPATCHERS: Final[Mapping[str, str]] = {"flex": "flex", "all_to_all": "alltoall", "a2a": "alltoall"}

PRECISIONS: Final[Mapping[str, str]] = {
    "fp8_ds": "fp8_delayed",
    "fp8_sc": "fp8_block",
    "fp8_mx": "mxfp8",
    "fp8_current": "fp8_cs",
    "fp8_tensorwise": "fp8_cs",
    "fp8_blockwise": "fp8_block",
    "bf16_mixed": "bf16",
    "bfloat16": "bf16",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8_delayed",
    "bf16_with_fp8_current_scaling_mixed": "fp8_cs",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8_block",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
}
# Named without the recipe; current scaling is what the stack's tables mean by it.
LOOSE_PRECISIONS: Final[Mapping[str, str]] = {"fp8": "fp8_cs", "fp4": "nvfp4", "fp16": "bf16"}

# Dimensions of a model in a job file -> field of the card.
DIMENSIONS: Final[Mapping[str, str]] = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "ffn": "ffn_hidden_size",
    "dense_ffn": "ffn_hidden_size",
    "experts": "num_experts",
    "num_moe_experts": "num_experts",
    "topk": "moe_topk",
    "moe_router_topk": "moe_topk",
    "moe_ffn": "moe_ffn_hidden_size",
    "mtp_layers": "mtp_num_layers",
    "vocab": "vocab_size",
    "tied_embeddings": "tie_embeddings",
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "qk_nope": "qk_nope_head_dim",
    "qk_rope": "qk_rope_head_dim",
    "v_head": "v_head_dim",
}
# Of a model, but neither a dimension nor an error.
MODEL_NOTES: Final = frozenset({"dims", "params_b", "source", "note", "notes"})

# Of an entry: what is known about it, beside the job itself.
ENTRY_NOTES: Final = frozenset(
    [
        "id",
        "report",
        "waits_for",
        "source",
        "kind",
        "quality",
        "expect",
        "filled_in_by_us",
        "filled_in",
        "right",
        "further",
        "wrong",
        "why",
        "error_text",
        "note",
        "notes",
        "tags",
        "title",
    ]
)
# Of an entry, for the sizes of the job.
ENTRY_SPELLINGS: Final[Mapping[str, str]] = {
    "world_size": "gpus",
    "num_gpus": "gpus",
    "seq_length": "seq_len",
    "global_batch_size": "gbs",
    "micro_batch_size": "mbs",
}
JOB_KEYS: Final = frozenset(
    [
        "model",
        "hardware",
        "gpus",
        "gpus_per_node",
        "block_gpus",
        "seq_len",
        "gbs",
        "mbs",
        "precision",
        "margin",
        "target",
        "config",
        "state_dtypes",
        "step_seconds",
    ]
)
# Named in reports, but nothing here depends on them.
OUT_OF_SCOPE: Final[Mapping[str, str]] = {
    "packing": "packed sequences are not modelled",
    "cross_entropy_loss_fusion": "the fused loss is what is priced",
    "full_parameter_training": "all parameters are trained",
}


# Options of launchers on which neither a law nor a price here depends.
PASSED_OVER: Final = frozenset(
    [
        "moe_grouped_gemm",
        "moe_router_load_balancing_type",
        "moe_aux_loss_coeff",
        "moe_z_loss_coeff",
        "moe_router_dtype",
        "moe_router_fusion",
        "moe_router_force_load_balancing",
        "moe_router_topk_scaling_factor",
        "moe_router_score_function",
        "moe_router_enable_expert_bias",
        "moe_router_bias_update_rate",
        "moe_router_pre_softmax",
        "moe_deepep_num_sms",
        "moe_hybridep_num_sms",
        "attention_backend",
        "use_flash_attn",
        "transformer_impl",
        "attention_softmax_in_fp32",
        "masked_softmax_fusion",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "persist_layer_norm",
        "deallocate_pipeline_outputs",
        "overlap_p2p_comm",
        "batch_p2p_comm",
        "swiglu",
        "use_mcore_models",
        "bf16",
        "finetune",
        "no_save_optim",
        "no_save_rng",
        "padding_free",
        "train_iters",
        "lr",
        "min_lr",
        "lr_warmup_fraction",
        "max_epochs",
        "num_workers",
        "dataset_num_proc",
        "use_te_rng_tracker",
        "te_rng_tracker",
        "cuda_graph_warmup_steps",
        "calculate_per_token_loss",
        "cross_entropy_fusion_impl",
        "check_for_nan_in_grad",
        "use_cpu_initialization",
        "overlap_cpu_optimizer_d2h_h2d",
        "seed",
        "env",
        "pin_cpu_grads",
        "pin_cpu_params",
        "use_torch_optimizer_for_cpu_offload",
        "save_interval",
        "eval_interval",
    ]
)


def known_spellings() -> tuple[str, ...]:
    """Every word that ``config`` may hold, for a proposal when one is misspelt."""
    switches = [name for names, amounts, *_ in AMOUNTS for name in (*names, *amounts)]
    words = (*PLAN_FIELDS, *SETTING_FIELDS, *RENAMED, *switches, *OUT_OF_SCOPE, *PASSED_OVER)
    return tuple(dict.fromkeys((*words, "recompute", "flex_backend", "moe_token_dispatcher_type", "gbs")))


def plain(value: Any) -> Any:
    """A YAML value with lists as tuples, as plans hold them."""
    return tuple(value) if isinstance(value, list) else value
