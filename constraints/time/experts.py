"""The routed experts: grouped linear layers, their quantising and their activation."""

from __future__ import annotations

from typing import Any

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.dispatch import routed_tokens
from mbsolve.constraints.time.ffn import ffn_activation, ffn_linears, ffn_quantise
from mbsolve.constraints.time.rates import NOTHING, Pass, gemm_launches
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model


def experts(
    job: Job,
    model: Model,
    machine: Machine,
    tp: Any,
    cp: Any,
    ep: Any,
    etp: Any,
    mbs: Any,
    sequence_parallel: Any,
) -> Pass:
    """Grouped linear layers of the local experts; few tokens an expert leave them bound by their weights.

    Expert tensor parallelism divides the width and gathers the tokens of ``etp`` ranks.
    """
    if not model.is_moe:
        return NOTHING
    m = routed_tokens(job, model, tp, cp, mbs, sequence_parallel) * etp
    local = (model.num_experts or 0) / ep
    return ffn_linears(
        job, model, machine, m, (model.moe_ffn_hidden_size or 0) / etp, model.routed_width, local
    )


def quantise_experts(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, etp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Quantising the operands of the experts; the fused expert MLP does it inside its own kernels."""
    if not model.is_moe or job.settings.op_fuser:
        return NOTHING
    m = routed_tokens(job, model, tp, cp, mbs, sequence_parallel) * etp
    return ffn_quantise(job, model, machine, m, (model.moe_ffn_hidden_size or 0) / etp, model.routed_width)


def expert_launches(job: Job, model: Model, machine: Machine, ep: Any) -> Pass:
    """Framework ops of the grouped linear layers, with a share for each local expert unless fused."""
    more = 0.0 if job.settings.op_fuser else machine.calibration["expert_launch_ops"]
    return gemm_launches(job, machine, 2.0 * (1.0 + more * (model.num_experts or 0) / ep))


def expert_activation(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, etp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Activation of the routed experts."""
    if not model.is_moe:
        return NOTHING
    m = routed_tokens(job, model, tp, cp, mbs, sequence_parallel) * etp
    width = (model.moe_ffn_hidden_size or 0) / etp
    return ffn_activation(model, machine, m, width, model.routed_width, moe=True)
