"""The recurrent mixers, Mamba-2 and gated delta net: projections, convolution, scan, gated norm and collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.attention import norm_ops, tp_collectives
from mbsolve.constraints.time.ops import Op, Part
from mbsolve.constraints.time.rates import (
    CHOSEN,
    FIT,
    NOTHING,
    Pass,
    collective_rate,
    gemm,
    gemm_launches,
    moved,
    quantise,
    tensor_parallel_launches,
    tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model
from mbsolve.models.recurrent import recurrent

Which = Literal["gdn", "mamba"]
Seconds = Callable[..., Pass]

SCAN_FLOPS: Final = 6.0
"""FLOPs of the scan for each token, inner channel and element of its state."""

SCAN_BACKWARD: Final = 2.5
"""Time of the backward scan, relative to the forward one."""


def _projections(
    job: Job, model: Model, which: Which, tp: Any, cp: Any, mbs: Any
) -> list[tuple[Any, Any, Any]]:
    """(tokens, outputs, inputs) of the projection into the mixer and the one out of it."""
    every, widths = tokens(job, cp, mbs), recurrent(model, which)
    return [
        (every, widths.projected / tp, model.hidden_size),
        (every, model.hidden_size, widths.inner / tp),
    ]


def _linears(which: Which) -> Seconds:
    def linears(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
        """Linear layers into and out of the recurrent mixer."""
        if not recurrent(model, which).inner:
            return NOTHING
        return NOTHING.plus(*(gemm(job, machine, *s) for s in _projections(job, model, which, tp, cp, mbs)))

    return linears


def _quantise(which: Which) -> Seconds:
    def quantise_linears(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
        """Quantising the operands of those linear layers."""
        if not recurrent(model, which).inner:
            return NOTHING
        return NOTHING.plus(
            *(quantise(job, machine, *s) for s in _projections(job, model, which, tp, cp, mbs))
        )

    return quantise_linears


def _convolution(which: Which) -> Seconds:
    def convolution(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
        """Causal convolution with its activation: a read and a write forward, twice that backward."""
        size = 4.0 * tokens(job, cp, mbs) * recurrent(model, which).convolved / tp
        return moved(machine, size, 2.0 * size)

    return convolution


def _scan(which: Which) -> Seconds:
    def scan(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
        """Chunked scan over the sequence, at a fitted share of the matrix rate."""
        widths = recurrent(model, which)
        flops = SCAN_FLOPS * tokens(job, cp, mbs) * widths.inner * widths.state / tp
        forward = flops / (machine.matrix_flops["bf16"] * machine.calibration["scan_fraction"])
        return Pass(forward, SCAN_BACKWARD * forward)

    return scan


def _gated_norm(which: Which) -> Seconds:
    def gated_norm(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
        """Norm of the output and its gate: 8 bytes a channel forward, 14 backward."""
        size = tokens(job, cp, mbs) * recurrent(model, which).inner / tp
        return moved(machine, 8.0 * size, 14.0 * size)

    return gated_norm


def _exchange(which: Which) -> Seconds:
    def exchange(
        job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any
    ) -> Pass:
        """All-to-alls over context parallelism, tokens for heads before the convolution and back after the scan.

        Ours, whatever the exchange of attention is: the published rows hardly have any.
        """
        widths = recurrent(model, which)
        moves = 2.0 * tokens(job, cp, mbs) * (widths.projected + widths.inner) / tp * (cp - 1) / cp
        one = moves / collective_rate(machine, topology, cp, tp)
        return Pass(one, one).where(np.asarray(cp) > 1)

    return exchange


def exchange_launches(cp: Any) -> Pass:
    """Framework ops of those exchanges."""
    return Pass(2.0, 2.0).where(np.asarray(cp) > 1)


def projection_launches(job: Job, machine: Machine) -> Pass:
    """Framework ops of the two linear layers."""
    return gemm_launches(job, machine, 2.0)


def _ops(which: Which, graph: str) -> tuple[Op, ...]:
    part = Part((graph,))
    return (
        *norm_ops(which, part.graph),
        Op("gemm", which, "in_and_out_proj", _linears(which), projection_launches, FIT, part),
        Op("quantise", which, "in_and_out_proj", _quantise(which), NOTHING, CHOSEN, part),
        Op("elementwise", which, "convolution", _convolution(which), Pass(2.0, 4.0), CHOSEN, part),
        Op("scan", which, "scan", _scan(which), Pass(6.0, 12.0), FIT, part),
        Op("elementwise", which, "gated_norm", _gated_norm(which), Pass(2.0, 3.0), CHOSEN, part),
        Op("cp", which, "exchange", _exchange(which), exchange_launches, CHOSEN, part),
        Op("tp", which, "collectives", tp_collectives, tensor_parallel_launches, FIT, part),
    )


GDN_OPS: Final = _ops("gdn", "attn")
MAMBA_OPS: Final = _ops("mamba", "mamba")
