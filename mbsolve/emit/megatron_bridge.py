"""A plan as the KEY=VALUE arguments of Megatron-Bridge's ``scripts/training/run_recipe.py``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.environment import context_groups
from mbsolve.emit.hybrid import marked_pattern

__all__ = ["lines", "overrides"]

Value = bool | int | float | str | tuple[str, ...] | None

FLEX_BACKENDS: Final = ("deepep", "hybridep")

# Name of the Bridge recipe and the fields in which it differs from a fresh MixedPrecisionConfig.
PRECISION_RECIPES: Final[Mapping[str, tuple[str, Mapping[str, Value]]]] = {
    "bf16": ("bf16_mixed", {}),
    "fp8_delayed": (
        "bf16_with_fp8_delayed_scaling_mixed",
        {
            "fp8": "hybrid",
            "fp8_recipe": "delayed",
            "fp8_amax_history_len": 1024,
            "fp8_amax_compute_algo": "max",
            "fp8_param_gather": True,
        },
    ),
    "fp8_cs": (
        "bf16_with_fp8_current_scaling_mixed",
        {
            "fp8": "hybrid",
            "fp8_recipe": "tensorwise",
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": 1,
            "num_layers_at_end_in_bf16": 1,
            "fp8_param_gather": True,
        },
    ),
    "fp8_block": (
        "bf16_with_fp8_subchannel_scaling_mixed",
        {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False},
    ),
    "mxfp8": (
        "bf16_with_mxfp8_mixed",
        {
            "fp8": "e4m3",
            "fp8_recipe": "mxfp8",
            "fp8_param_gather": True,
            "reuse_grad_buf_for_mxfp8_param_ag": True,
        },
    ),
    "nvfp4": (
        "bf16_with_nvfp4_mixed",
        {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp8_param_gather": False, "fp4_param_gather": True},
    ),
}


def spell(value: Value) -> str:
    """A value in the Hydra grammar that the launcher's override parser reads."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{','.join(value)}]"
    return str(value)


def _keys(prefix: str, values: Mapping[str, Value]) -> list[str]:
    return [f"{prefix}.{key}={spell(value)}" for key, value in values.items()]


def overrides(job: Job, plan: Plan) -> list[str]:
    """The plan and the settings of the job as launcher arguments, one KEY=VALUE each.

    Every decision is written out, also where it equals a default, because a recipe may have set something else.
    Not quoted for a shell.
    """
    return [
        f"train.micro_batch_size={plan.mbs}",
        f"train.global_batch_size={job.gbs}",
        f"dataset.seq_length={job.seq_len}",
        *_keys("model", _parallelism(job, plan)),
        *_keys("model", _recompute(plan)),
        *(_keys("model", _experts(job, plan)) if job.model.is_moe else []),
        *_keys("model", _kernels(job)),
        *_overlap(job, plan),
        *_precision(job),
        *_optimizer(job, plan),
        *_keys("model", _offload(plan)),
        *_graphs(plan),
    ]


def _parallelism(job: Job, plan: Plan) -> dict[str, Value]:
    layout = f'"{plan.pipeline_layout}"' if plan.pipeline_layout else None
    out: dict[str, Value] = {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "expert_tensor_parallel_size": plan.etp,
        "sequence_parallel": plan.sequence_parallel,
        "pipeline_model_parallel_layout": layout,
        "num_layers_in_first_pipeline_stage": plan.first_stage_layers,
        "num_layers_in_last_pipeline_stage": plan.last_stage_layers,
        "account_for_embedding_in_pipeline_split": plan.embedding_in_split,
        "account_for_loss_in_pipeline_split": plan.loss_in_split,
        "cp_comm_type": job.settings.cp_comm_type,
    }
    if job.model.layer_pattern is not None:
        # Hybrids take their stages in the pattern; a layout of the transformer would be for nothing.
        marked = marked_pattern(job.model.layer_pattern, plan.pipeline_layout)
        out |= {"hybrid_layer_pattern": f'"{marked}"', "pipeline_model_parallel_layout": None}
    if job.settings.cp_comm_type == "a2a+p2p":
        out["hierarchical_context_parallel_sizes"] = context_groups(job, plan)
    return out


def _recompute(plan: Plan) -> dict[str, Value]:
    return {
        "recompute_granularity": plan.recompute_granularity,
        "recompute_method": plan.recompute_method,
        # A plan may say 0 for none, the stack may not.
        "recompute_num_layers": plan.recompute_num_layers or None,
        # Without selective recompute they mean nothing, but EP overlap is refused where moe is among them.
        "recompute_modules": plan.recompute_modules if plan.recompute_granularity == "selective" else (),
    }


def _experts(job: Job, plan: Plan) -> dict[str, Value]:
    flex = plan.dispatcher in FLEX_BACKENDS
    out: dict[str, Value] = {
        "moe_token_dispatcher_type": "flex" if flex else plan.dispatcher,
        "moe_flex_dispatcher_backend": plan.dispatcher if flex else None,
        "moe_shared_expert_overlap": job.settings.shared_expert_overlap and not (flex or plan.ep_overlap),
        "moe_permute_fusion": job.settings.permute_fusion,
        # The second is the former name, which recipes set and which turns the first one on.
        "moe_router_padding_for_quantization": job.settings.router_padding,
        "moe_router_padding_for_fp8": job.settings.router_padding,
    }
    if plan.dispatcher == "deepep":
        # Its kernels take router probabilities in FP32 only.
        out["moe_router_dtype"] = "fp32"
    return out


def _kernels(job: Job) -> dict[str, Value]:
    out: dict[str, Value] = {
        "make_vocab_size_divisible_by": job.settings.make_vocab_size_divisible_by,
        "gradient_accumulation_fusion": job.settings.grad_accumulation_fusion,
        "apply_rope_fusion": job.settings.rope_fusion,
        "use_transformer_engine_op_fuser": job.settings.op_fuser,
        "attention_dropout": job.settings.attention_dropout,
        "hidden_dropout": job.settings.hidden_dropout,
    }
    if job.settings.expert_rank_capacity is not None:
        out["moe_expert_rank_capacity_factor"] = job.settings.expert_rank_capacity
    if job.quantised:
        out["fp8_output_proj"] = job.settings.fp8_output_proj
    return out


def _overlap(job: Job, plan: Plan) -> list[str]:
    values: dict[str, Value] = {
        "tp_comm_overlap": job.settings.tp_comm_overlap,
        "overlap_grad_reduce": job.settings.overlap_grad_reduce,
        "overlap_param_gather": job.settings.overlap_param_gather,
        "overlap_moe_expert_parallel_comm": plan.ep_overlap,
        "delay_wgrad_compute": plan.delay_wgrad,
    }
    # Many recipes have no comm_overlap, and a key of a missing node is refused: lay down a fresh node first.
    return [
        "comm_overlap=null",
        "comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,"
        + ",".join(f"{key}:{'false' if key == 'tp_comm_overlap' else 'null'}" for key in values)
        + "}",
        *_keys("comm_overlap", values),
    ]


def _precision(job: Job) -> list[str]:
    """The precision recipe; its fields one by one only where the job differs from it."""
    name, fields = PRECISION_RECIPES[job.precision]
    changes: dict[str, Value] = {}
    if job.settings.grad_dtype != "fp32":
        changes["grad_reduce_in_fp32"] = False
    gather = "fp4_param_gather" if job.precision == "nvfp4" else "fp8_param_gather"
    if job.quantised and fields[gather] != job.settings.fp8_param:
        changes[gather] = job.settings.fp8_param
        if job.precision == "mxfp8":
            changes["reuse_grad_buf_for_mxfp8_param_ag"] = job.settings.fp8_param
    lines = [f"mixed_precision={name}"]
    if not changes:
        return lines
    # A field cannot be set on a name, only on an object: build the object that the name stands for.
    bf16 = "{_target_:torch.bfloat16,_call_:false}"
    whole = {
        "bf16": "true",
        "params_dtype": bf16,
        "pipeline_dtype": bf16,
        "grad_reduce_in_fp32": "true",
        **{key: spell(value) for key, value in fields.items()},
    }
    body = ",".join(f"{key}:{value}" for key, value in whole.items())
    target = "_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
    return [*lines, f"mixed_precision={{{target},{body}}}", *_keys("mixed_precision", changes)]


def _optimizer(job: Job, plan: Plan) -> list[str]:
    precise, offloaded = plan.precision_aware_optimizer, plan.optimizer_offload_fraction > 0
    distributed = job.settings.distributed_optimizer
    return [
        f"ddp.use_distributed_optimizer={spell(distributed)}",
        *_keys(
            "optimizer",
            {
                "use_distributed_optimizer": distributed,
                "use_precision_aware_optimizer": precise,
                # Gradients of another format reach the optimizer only through the precision-aware one.
                "main_grads_dtype": job.settings.grad_dtype if precise else "fp32",
                "main_params_dtype": job.settings.main_param_dtype,
                "exp_avg_dtype": job.settings.moment_dtype,
                "exp_avg_sq_dtype": job.settings.moment_dtype,
                "optimizer_cpu_offload": offloaded,
                "optimizer_offload_fraction": float(plan.optimizer_offload_fraction),
            },
        ),
    ]


def _offload(plan: Plan) -> dict[str, Value]:
    out: dict[str, Value] = {
        "cpu_offloading": plan.activation_offload_layers > 0,
        "cpu_offloading_num_layers": plan.activation_offload_layers,
    }
    if plan.activation_offload_layers:
        out |= {"cpu_offloading_activations": True, "cpu_offloading_weights": False}
    out["fine_grained_activation_offloading"] = bool(plan.fine_grained_offload_modules)
    out["offload_modules"] = plan.fine_grained_offload_modules
    return out


def _graphs(plan: Plan) -> list[str]:
    lines = _keys(
        "model",
        {"cuda_graph_impl": plan.cuda_graph_impl, "cuda_graph_modules": plan.cuda_graph_scope},
    )
    if plan.cuda_graph_impl != "none":
        lines.append("rng.te_rng_tracker=true")
    if plan.cuda_graph_impl == "full_iteration":
        # A captured iteration cannot stop to look at a value.
        lines += ["rerun_state_machine.check_for_nan_in_loss=false", "ddp.check_for_nan_in_grad=false"]
    return lines


def lines(job: Job, plan: Plan) -> tuple[str, list[str]]:
    """The call of the launcher, and its arguments quoted for a shell, one line each."""
    call = "torchrun ... scripts/training/run_recipe.py --recipe RECIPE"
    return call, [shlex.quote(text) for text in overrides(job, plan)]
