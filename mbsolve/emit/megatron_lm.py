"""A plan as the flags of Megatron-LM's ``pretrain_gpt.py`` (``pretrain_hybrid.py`` for a layer pattern)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.environment import context_groups
from mbsolve.emit.megatron_model import architecture, program
from mbsolve.emit.words import Value, Words, lines_of, put

__all__ = ["flags", "lines"]

FLEX_BACKENDS: Final = ("deepep", "hybridep")
# What the flags of a number format are, beside --bf16.
PRECISIONS: Final[Mapping[str, Mapping[str, Value]]] = {
    "bf16": {},
    "fp8_delayed": {
        "--fp8-format": "hybrid",
        "--fp8-recipe": "delayed",
        "--fp8-amax-history-len": 1024,
        "--fp8-amax-compute-algo": "max",
    },
    "fp8_cs": {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "fp8_block": {"--fp8-format": "hybrid", "--fp8-recipe": "blockwise"},
    "mxfp8": {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "nvfp4": {"--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}


def flags(job: Job, plan: Plan) -> list[str]:
    """The model, the plan and the settings of the job as words of a command line, not quoted for a shell.

    Switches that are off in the program by itself are not written; every size is.
    """
    hybrid = job.model.layer_pattern is not None
    out: Words = architecture(job.model, job.seq_len, plan.pipeline_layout)
    put(out, "--seq-length", job.seq_len)
    put(out, "--micro-batch-size", plan.mbs)
    put(out, "--global-batch-size", job.gbs)
    _parallelism(out, job, plan, hybrid)
    _recompute(out, plan)
    if job.model.is_moe:
        _experts(out, job, plan)
    _kernels(out, job)
    put(out, "--tp-comm-overlap", job.settings.tp_comm_overlap)
    put(out, "--overlap-grad-reduce", job.settings.overlap_grad_reduce)
    put(out, "--overlap-param-gather", job.settings.overlap_param_gather)
    put(out, "--overlap-moe-expert-parallel-comm", plan.ep_overlap)
    put(out, "--delay-wgrad-compute", plan.delay_wgrad)
    _precision(out, job)
    _optimizer(out, job, plan)
    _offload(out, plan)
    _graphs(out, plan)
    return out


def _parallelism(out: Words, job: Job, plan: Plan, hybrid: bool) -> None:
    put(out, "--tensor-model-parallel-size", plan.tp)
    put(out, "--sequence-parallel", plan.sequence_parallel)
    put(out, "--pipeline-model-parallel-size", plan.pp)
    # A layout, also as marks of a pattern, says the virtual stages; the program takes one source only.
    stated = plan.pipeline_layout is None and plan.vpp > 1
    put(out, "--num-virtual-stages-per-pipeline-rank", plan.vpp if stated else None)
    put(out, "--pipeline-model-parallel-layout", None if hybrid else plan.pipeline_layout)
    put(out, "--decoder-first-pipeline-num-layers", plan.first_stage_layers)
    put(out, "--decoder-last-pipeline-num-layers", plan.last_stage_layers)
    put(out, "--account-for-embedding-in-pipeline-split", plan.embedding_in_split)
    put(out, "--account-for-loss-in-pipeline-split", plan.loss_in_split)
    put(out, "--context-parallel-size", plan.cp)
    put(out, "--cp-comm-type", job.settings.cp_comm_type)
    if job.settings.cp_comm_type == "a2a+p2p":
        put(out, "--hierarchical-context-parallel-sizes", context_groups(job, plan))
    put(out, "--expert-model-parallel-size", plan.ep)
    put(out, "--expert-tensor-parallel-size", plan.etp)


def _recompute(out: Words, plan: Plan) -> None:
    put(out, "--recompute-granularity", plan.recompute_granularity)
    put(out, "--recompute-method", plan.recompute_method)
    # A plan may say 0 for none, the stack may not.
    put(out, "--recompute-num-layers", plan.recompute_num_layers or None)
    if plan.recompute_granularity == "selective":
        put(out, "--recompute-modules", plan.recompute_modules)


def _experts(out: Words, job: Job, plan: Plan) -> None:
    flex = plan.dispatcher in FLEX_BACKENDS
    put(out, "--moe-token-dispatcher-type", "flex" if flex else plan.dispatcher)
    put(out, "--moe-flex-dispatcher-backend", plan.dispatcher if flex else None)
    # Its kernels take router probabilities in FP32 only.
    put(out, "--moe-router-dtype", "fp32" if plan.dispatcher == "deepep" else None)
    put(
        out,
        "--moe-shared-expert-overlap",
        job.settings.shared_expert_overlap and not (flex or plan.ep_overlap),
    )
    put(out, "--moe-permute-fusion", job.settings.permute_fusion)
    # The validators look at the former name too, which turns the other one on.
    put(out, "--moe-router-padding-for-quantization", job.settings.router_padding)
    put(out, "--moe-router-padding-for-fp8", job.settings.router_padding)


def _kernels(out: Words, job: Job) -> None:
    put(out, "--transformer-impl", "transformer_engine")
    put(out, "--make-vocab-size-divisible-by", job.settings.make_vocab_size_divisible_by)
    put(out, "--no-gradient-accumulation-fusion", not job.settings.grad_accumulation_fusion)
    put(out, "--no-rope-fusion", not job.settings.rope_fusion)
    put(out, "--use-transformer-engine-op-fuser", job.settings.op_fuser)
    put(out, "--moe-expert-rank-capacity-factor", job.settings.expert_rank_capacity)
    put(out, "--fp8-output-proj", job.settings.fp8_output_proj and job.quantised)
    put(out, "--attention-dropout", job.settings.attention_dropout)
    put(out, "--hidden-dropout", job.settings.hidden_dropout)


def _precision(out: Words, job: Job) -> None:
    put(out, "--bf16", True)
    for flag, value in PRECISIONS[job.precision].items():
        put(out, flag, value)
    if job.quantised and job.settings.fp8_param:
        put(out, "--fp4-param-gather" if job.precision == "nvfp4" else "--fp8-param-gather", True)
        put(out, "--reuse-grad-buf-for-mxfp8-param-ag", job.precision == "mxfp8")
    short = job.settings.grad_dtype != "fp32"
    put(out, "--grad-reduce-in-bf16" if short else "--accumulate-allreduce-grads-in-fp32", True)


def _optimizer(out: Words, job: Job, plan: Plan) -> None:
    settings, precise = job.settings, plan.precision_aware_optimizer
    put(out, "--use-distributed-optimizer", settings.distributed_optimizer)
    put(out, "--use-precision-aware-optimizer", precise)
    # Gradients of another format reach the optimizer only through the precision-aware one.
    put(out, "--main-grads-dtype", settings.grad_dtype if precise else "fp32")
    put(out, "--main-params-dtype", settings.main_param_dtype)
    put(out, "--exp-avg-dtype", settings.moment_dtype)
    put(out, "--exp-avg-sq-dtype", settings.moment_dtype)
    if plan.optimizer_offload_fraction:
        put(out, "--optimizer-cpu-offload", True)
        put(out, "--optimizer-offload-fraction", float(plan.optimizer_offload_fraction))


def _offload(out: Words, plan: Plan) -> None:
    put(out, "--cpu-offloading-num-layers", plan.activation_offload_layers or None)
    put(out, "--fine-grained-activation-offloading", bool(plan.fine_grained_offload_modules))
    put(out, "--offload-modules", plan.fine_grained_offload_modules)


def _graphs(out: Words, plan: Plan) -> None:
    put(out, "--cuda-graph-impl", plan.cuda_graph_impl)
    put(out, "--cuda-graph-modules", plan.cuda_graph_scope)
    put(out, "--te-rng-tracker", plan.cuda_graph_impl != "none")
    # A captured iteration cannot stop to look at a value.
    put(out, "--no-check-for-nan-in-loss-and-grad", plan.cuda_graph_impl == "full_iteration")


def lines(job: Job, plan: Plan) -> tuple[str, list[str]]:
    """The call of the program, and its flags quoted for a shell, one line each."""
    call = f"torchrun ... {program(job.model)} DATA_TOKENIZER_AND_SCHEDULE"
    return call, [shlex.join(line) for line in lines_of(flags(job, plan))]
