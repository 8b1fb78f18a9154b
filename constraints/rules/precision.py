"""Rules of number formats."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import BRIDGE_TARGETS, CONFIG, MEGATRON_LM, bridge, megatron
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

TOKEN_MULTIPLE: Final = {
    "bf16": 1,
    "fp8_cs": 16,
    "fp8_delayed": 16,
    "mxfp8": 32,
    "nvfp4": 32,
    "fp8_block": 128,
}
"""Rows that a quantised matrix must be a multiple of."""


def keeps_fp8_weights(job: Job) -> bool:
    """Return whether weights are gathered in FP8: it is asked for, and the precision has FP8."""
    return job.settings.fp8_param and job.precision not in ("bf16", "nvfp4")


@rule(
    "fp8-recipe-arch",
    because="{machine.title} has no kernels for {job.precision}",
    source=bridge("src/megatron/bridge/training/mixed_precision.py:51"),
)
def machine_has_format(job: Job, machine: Machine) -> bool:
    """The GPU has kernels for the precision."""
    return job.precision in machine.supported_precisions


@rule(
    "fp8-token-alignment",
    because="{job.precision} needs the tokens of a rank in multiples of {unit}, but {job.seq_len} x MBS {mbs} / CP {cp}"
    "{share} are {tokens}",
    source=megatron("megatron/core/fp8_utils.py get_fp8_align_size"),
    figures=lambda cp, tp, mbs, sequence_parallel, job: {
        "unit": TOKEN_MULTIPLE[job.precision],
        "share": f" / TP {tp}" if sequence_parallel else "",
        "tokens": job.seq_len // cp * mbs // (tp if sequence_parallel else 1),
    },
)
def tokens_are_aligned(cp: int, tp: int, mbs: int, sequence_parallel: bool, job: Job) -> bool:
    """The tokens of a rank are a multiple of the block of the number format."""
    tokens = job.seq_len // cp * mbs // (tp if sequence_parallel else 1)
    return tokens % TOKEN_MULTIPLE[job.precision] == 0


@rule(
    "fp8-first-last-range",
    because="{job.precision} keeps the first and the last layer in bf16, but {model.num_layers} layers on PP = {pp} "
    "are less than one for each rank",
    source=megatron(f"{CONFIG}:1544"),
    targets=BRIDGE_TARGETS,
)
def ends_keep_their_format(pp: int, job: Job, model: Model) -> bool:
    """The layers that the Bridge recipe of current scaling keeps in BF16 are on one pipeline rank."""
    return job.precision != "fp8_cs" or model.num_layers // pp >= 1


@rule(
    "mxfp8-memory-warning",
    because="{job.precision} without fp8_param keeps BF16 weights beside their quantised copies; fp8_param saves them",
    source=megatron("megatron/core/optimizer/optimizer_config.py:421"),
    kind="warning",
)
def mxfp8_weights_are_kept_once(job: Job) -> bool:
    """MXFP8 saves memory when its weights are gathered in FP8."""
    return job.precision != "mxfp8" or job.settings.fp8_param or not job.settings.distributed_optimizer


@rule(
    "fp8-param-needs-fp8",
    because="fp8_param is on, but the precision is {job.precision}",
    source=megatron(f"{CONFIG}:1567"),
)
def fp8_weights_need_fp8(job: Job) -> bool:
    """FP8 weights need an FP8 precision."""
    return not job.settings.fp8_param or keeps_fp8_weights(job)


@rule(
    "fp8-param-gather-needs-dist-opt",
    because="fp8_param is on, but the distributed optimizer is off",
    source=megatron("megatron/training/arguments.py:1097"),
    targets=MEGATRON_LM,
)
def fp8_weights_need_distributed_optimizer(job: Job) -> bool:
    """In Megatron-LM, FP8 weights need the distributed optimizer."""
    return not keeps_fp8_weights(job) or job.settings.distributed_optimizer


@rule(
    "fp8-output-proj",
    because="fp8_output_proj needs precision mxfp8 and an output layer of its own, but the precision is "
    "{job.precision} and tie_embeddings is {model.tie_embeddings}",
    source=megatron(f"{CONFIG}:1574"),
)
def fp8_output_needs_mxfp8(job: Job, model: Model) -> bool:
    """An FP8 output layer needs MXFP8 and untied embeddings."""
    return not job.settings.fp8_output_proj or (job.precision == "mxfp8" and not model.tie_embeddings)
