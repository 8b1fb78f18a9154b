"""Options of launchers beside those that a plan, its settings or a model have: what they mean to a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["HARMLESS", "INNOCENT", "INNOCENT_KEYS", "MATTERS", "QUIET", "REPLACES", "matter"]

# What turns an option off, so that nothing need be said of it.
HARMLESS: Final = (None, False, 0, "", "none", "no_shard")

# Memory and time are another thing under these; the laws are judged alone.
REPLACES: Final[Mapping[str, str]] = {
    "use_megatron_fsdp": "it shards weights and gradients too",
    "use_custom_fsdp": "it shards weights and gradients too",
    "use_torch_fsdp2": "it shards weights and gradients too",
    "data_parallel_sharding_strategy": "it shards weights and gradients too",
    "heterogeneous_layers_config_path": "its layers are of many sizes",
    "heterogeneous_layers_config_encoded_json": "its layers are of many sizes",
    "experimental_attention_variant": "its attention is of another kind",
    "use_layer_wise_distributed_optimizer": "it shards whole layers",
    "enable_zero_bubble": "its pipeline schedule is another one",
    "zero_bubble_v_schedule": "its pipeline schedule is another one",
    "enable_dualpipe_v": "its pipeline schedule is another one",
    "use_dualpipev": "its pipeline schedule is another one",
    "fp32": "everything is in 32 bits",
    "lora_rank": "adapters alone are trained",
    "lora_dim": "adapters alone are trained",
    "spec": "its layers are those of a program of its own",
}
# Verdict and price are near, but not of this.
MATTERS: Final[Mapping[str, str]] = {
    "enable_offline_packing": "packed sequences are not modelled",
    "enable_in_batch_packing": "packed sequences are not modelled",
    "packed_sequence": "packed sequences are not modelled",
    "packed_sequence_specs": "packed sequences are not modelled",
    "offline_packing_specs": "packed sequences are not modelled",
    "sft": "fine-tuning is judged as pretraining",
    "hybrid_context_parallel": "sequences of many lengths are not modelled",
    "rampup_batch_size": "the full batch is judged",
    "step_batch_size_schedule": "the full batch is judged",
    "num_distributed_optimizer_instances": "one instance of the optimizer is modelled",
    "distribute_saved_activations": "saved activations are taken as whole",
    "microbatch_group_size_per_vp_stage": "groups of another size than PP are not modelled",
    "overlap_param_gather_with_optimizer_step": "this overlap is not modelled",
    "defer_embedding_wgrad_compute": "deferred embedding gradients are not modelled",
    "moe_expert_capacity_factor": "no token is dropped here",
    "moe_pad_expert_input_to_capacity": "no token is dropped here",
    "moe_paged_stash": "a paged stash of activations is not modelled",
    "cpu_offloading_weights": "activations alone are offloaded here",
    "activation_offload_fraction": "all activations of a module are offloaded here",
    "fine_grained_offloading_max_inflight_offloads": "the number of offloads in flight is not modelled",
    "fp8_dot_product_attention": "attention is in BF16 here",
    "fp8_multi_head_attention": "attention is in BF16 here",
    "fp32_residual_connection": "the residual stream is in BF16 here",
    "mtp_use_repeated_layer": "every MTP block has its own layer here",
    "nccl_ub": "registered buffers are not modelled",
    "yaml_cfg": "the file that it names is not read",
    "config_file": "the file that it names is not read",
    "use_checkpoint_args": "the checkpoint that holds the arguments is not read",
    "use_mp_args_from_checkpoint_args": "the checkpoint that holds the arguments is not read",
    "inference_dynamic_batching": "inference is not modelled",
    "rl_use_sequence_packing": "packed sequences are not modelled",
    "perform_rl_step": "inference is not modelled",
    "optimizer_cuda_graph": "graphs of the optimizer are not modelled",
}
# Values beside `HARMLESS` that say what is modelled anyway.
NEUTRAL: Final[Mapping[str, Any]] = {
    "num_distributed_optimizer_instances": 1,
    "activation_offload_fraction": 1,
    "experimental_attention_variant": "gated_delta_net",
}
# Said by us, or a consequence of what is read: not worth a word.
QUIET: Final = frozenset(
    [
        "model.hierarchical_context_parallel_sizes",
        "model.cpu_offloading_activations",
        "model.moe_router_dtype",
        "model.bf16",
        "model.fp16",
        "mixed_precision.bf16",
        "mixed_precision.params_dtype",
        "mixed_precision.pipeline_dtype",
        "mixed_precision.fp8_amax_history_len",
        "mixed_precision.fp8_amax_compute_algo",
        "mixed_precision.first_last_layers_bf16",
        "mixed_precision.num_layers_at_start_in_bf16",
        "mixed_precision.num_layers_at_end_in_bf16",
        "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
        "rng.te_rng_tracker",
        "rerun_state_machine.check_for_nan_in_loss",
        "ddp.check_for_nan_in_grad",
    ]
)
# Real options that look like one that is modelled.
INNOCENT: Final = frozenset(
    [
        "--no-tp-comm-overlap-ag",
        "--no-tp-comm-overlap-rs",
        "--disable-tp-comm-overlap-ag",
        "--disable-tp-comm-overlap-rs",
        "--mtp-hybrid-override-pattern",
        "--moe-shared-expert-glu-interleave-size",
        "--moe-router-dtype",
        "--moe-router-fusion",
        "--moe-z-loss-coeff",
        "--no-position-embedding",
        "--tp-comm-overlap-cfg",
        "--model-parallel-size",
        "--eval-global-batch-size",
        "--eval-micro-batch-size",
        "--encoder-num-layers",
        "--decoder-num-layers",
        "--moe-router-force-load-balancing",
        "--inference-moe-token-dispatcher-type",
        "--rl-inference-pipeline-model-parallel-size",
        "--no-pad-vocab-size",
        "--vocab-file",
    ]
)
INNOCENT_KEYS: Final = frozenset(
    [
        *(flag.removeprefix("--").replace("-", "_") for flag in INNOCENT),
        "tp_comm_overlap_rs",
        "tp_comm_overlap_ag",
        "original_max_position_embeddings",
        "params_dtype",
        "fp4_param",
    ]
)


def matter(key: str, value: Any) -> bool:
    """Whether an option (its last name) says something that the verdict would have to know."""
    if key not in REPLACES and key not in MATTERS:
        return False
    if isinstance(value, list | dict | str):
        return bool(value) and value not in HARMLESS and value != NEUTRAL.get(key)
    return value not in HARMLESS and value != NEUTRAL.get(key, HARMLESS)
