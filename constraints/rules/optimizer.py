"""Rules of the optimizer, its state and its gradients."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Source, rule
from mbsolve.constraints.rules.precision import keeps_fp8_weights
from mbsolve.constraints.rules.upstream import MEGATRON_LM, bridge, megatron

OPTIMIZER_CONFIG = "megatron/core/optimizer/optimizer_config.py"
ARGUMENTS = "megatron/training/arguments.py"


@rule(
    "optimizer-offload-fraction",
    because="an optimizer offload fraction of {optimizer_offload_fraction} is outside 0 to 1",
    source=megatron(f"{OPTIMIZER_CONFIG}:350"),
)
def fraction_is_a_share(optimizer_offload_fraction: float) -> bool:
    """The offloaded share of the optimizer is between 0 and 1."""
    return 0.0 <= optimizer_offload_fraction <= 1.0


@rule(
    "optimizer-offload-needs-distopt",
    because="offloading {optimizer_offload_fraction} of the optimizer needs the distributed optimizer",
    source=bridge("docs/training/cpu-offloading.md"),
)
def offload_needs_distributed_optimizer(optimizer_offload_fraction: float, job: Job) -> bool:
    """Optimizer offload needs the distributed optimizer."""
    return optimizer_offload_fraction == 0 or job.settings.distributed_optimizer


@rule(
    "optimizer-offload-pao-mlm",
    because="Megatron-LM offloads the optimizer ({optimizer_offload_fraction}) with the precision-aware one only",
    source=megatron(f"{ARGUMENTS}:1886"),
    targets=MEGATRON_LM,
)
def offload_needs_precision_aware(optimizer_offload_fraction: float, precision_aware_optimizer: bool) -> bool:
    """In Megatron-LM, optimizer offload needs the precision-aware optimizer."""
    return optimizer_offload_fraction == 0 or precision_aware_optimizer


@rule(
    "optimizer-offload-fp8-param-mlm",
    because="Megatron-LM offloads the optimizer ({optimizer_offload_fraction}) of FP8 weights with delayed scaling "
    "only, but the precision is {job.precision}",
    source=megatron(f"{ARGUMENTS}:1891"),
    targets=MEGATRON_LM,
)
def offload_of_fp8_weights(optimizer_offload_fraction: float, job: Job) -> bool:
    """In Megatron-LM, optimizer offload with FP8 weights needs delayed scaling."""
    return optimizer_offload_fraction == 0 or not keeps_fp8_weights(job) or job.precision == "fp8_delayed"


@rule(
    "pao-dist-opt",
    because="the precision-aware optimizer needs the distributed optimizer, which is off",
    source=megatron("megatron/core/optimizer/__init__.py:1059"),
)
def precision_aware_needs_distributed(precision_aware_optimizer: bool, job: Job) -> bool:
    """The precision-aware optimizer needs the distributed optimizer."""
    return not precision_aware_optimizer or job.settings.distributed_optimizer


@rule(
    "fp8-delayed-weights-remainders",
    because="with {job.precision} the precision-aware optimizer keeps 2-byte remainders of FP8 weights, which its FP8 Adam "
    "refuses in the first step",
    source=Source(
        "NVIDIA/TransformerEngine",
        "common/multi_tensor/adam.cu:808 in release 2.20.2; H200 one-rank training step, 2026-11-30",
    ),
)
def remainders_need_short_weights(
    precision_aware_optimizer: bool, optimizer_offload_fraction: float, job: Job
) -> bool:
    """With delayed scaling, FP8 weights exclude the precision-aware optimizer on the GPU, unless masters are FP16."""
    remainders = precision_aware_optimizer and optimizer_offload_fraction == 0
    return not remainders or not (
        job.precision == "fp8_delayed" and job.settings.fp8_param and job.settings.main_param_dtype == "fp32"
    )


@rule(
    "pao-dtypes-main-params",
    because="main parameters in {job.settings.main_param_dtype} need the precision-aware optimizer",
    source=megatron(f"{OPTIMIZER_CONFIG}:474"),
)
def short_main_params(precision_aware_optimizer: bool, job: Job) -> bool:
    """Main parameters of less than FP32 need the precision-aware optimizer."""
    return precision_aware_optimizer or job.settings.main_param_dtype == "fp32"


@rule(
    "pao-dtypes-exp-avg",
    because="moments in {job.settings.moment_dtype} need the precision-aware optimizer",
    source=megatron(f"{OPTIMIZER_CONFIG}:477"),
)
def short_moments(precision_aware_optimizer: bool, job: Job) -> bool:
    """Moments of less than FP32 need the precision-aware optimizer."""
    return precision_aware_optimizer or job.settings.moment_dtype == "fp32"


@rule(
    "param-gather-needs-grad-overlap",
    because="overlap_param_gather is on, but overlap_grad_reduce or the distributed optimizer is off",
    source=megatron(f"{ARGUMENTS}:1029"),
    targets=MEGATRON_LM,
)
def gather_overlap_needs_reduce_overlap(job: Job) -> bool:
    """In Megatron-LM, overlapped parameter gathers need overlapped reductions and the distributed optimizer."""
    settings = job.settings
    return not settings.overlap_param_gather or (
        settings.overlap_grad_reduce and settings.distributed_optimizer
    )
