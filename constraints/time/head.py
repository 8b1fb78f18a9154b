"""The output layer with its loss, and the projection of a multi-token-prediction block."""

from __future__ import annotations

from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.ops import Op
from mbsolve.constraints.time.rates import (
    BENCH,
    CHOSEN,
    FIT,
    NOTHING,
    Pass,
    gemm,
    gemm_launches,
    moved,
    quantise,
    tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model


def logits(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Output layer, in BF16 unless FP8 output is asked for."""
    m, n = tokens(job, cp, mbs), model.vocab_size / tp
    return gemm(job, machine, m, n, model.hidden_size, quantised=job.settings.fp8_output_proj)


def quantise_logits(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Quantising the operands of the output layer, if it is."""
    if not job.settings.fp8_output_proj:
        return NOTHING
    return quantise(job, machine, tokens(job, cp, mbs), model.vocab_size / tp, model.hidden_size)


def logits_launches(job: Job, machine: Machine) -> Pass:
    """Framework ops of the output layer."""
    return gemm_launches(job, machine, 1.0, job.settings.fp8_output_proj)


def loss(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Fused cross entropy: 8 bytes a logit forward, 6 backward."""
    size = tokens(job, cp, mbs) * model.vocab_size / tp
    return moved(machine, 8.0 * size, 6.0 * size)


def mtp_projection(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Projection of a multi-token-prediction block: 2h to h."""
    return gemm(job, machine, tokens(job, cp, mbs), model.hidden_size / tp, 2 * model.hidden_size)


def quantise_mtp(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Quantising the operands of that projection."""
    return quantise(job, machine, tokens(job, cp, mbs), model.hidden_size / tp, 2 * model.hidden_size)


def mtp_launches(job: Job, machine: Machine) -> Pass:
    """Framework ops of that projection."""
    return gemm_launches(job, machine, 1.0)


LOGITS_OPS: Final = (
    Op("gemm", "logits", "output_layer", logits, logits_launches, FIT),
    Op("quantise", "logits", "output_layer", quantise_logits, NOTHING, CHOSEN),
    Op("elementwise", "logits", "loss", loss, Pass(4.0, 3.0), BENCH),
)

MTP_OPS: Final = (
    Op("gemm", "mtp", "projection", mtp_projection, mtp_launches, FIT),
    Op("quantise", "mtp", "projection", quantise_mtp, NOTHING, CHOSEN),
)
