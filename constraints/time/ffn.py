"""The dense feed-forward sub-block, and the pieces it shares with shared and routed experts."""

from __future__ import annotations

from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.attention import norm_ops, tp_collectives
from mbsolve.constraints.time.ops import Op, Part
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
    tensor_parallel_launches,
    tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model


def ffn_linears(
    job: Job, model: Model, machine: Machine, m: Any, width: Any, outer: int, groups: Any = 1
) -> Pass:
    """Seconds of the two linear layers of a feed-forward of so many tokens, of this width a rank, from and to ``outer``."""
    gate = 2 if model.gated_mlp else 1
    return gemm(job, machine, m, gate * width, outer, groups=groups).plus(
        gemm(job, machine, m, outer, width, groups=groups)
    )


def ffn_quantise(job: Job, model: Model, machine: Machine, m: Any, width: Any, outer: int) -> Pass:
    """Seconds to quantise the operands of those two linear layers."""
    gate = 2 if model.gated_mlp else 1
    return quantise(job, machine, m, gate * width, outer).plus(quantise(job, machine, m, outer, width))


def ffn_activation(model: Model, machine: Machine, m: Any, width: Any, outer: int, moe: bool = False) -> Pass:
    """Seconds of the activation: SwiGLU moves 6 bytes an element forward and 10 backward, ungated 4 and 6.

    Biases of linear layers add a pass over both outputs forward and their reduction backward.
    """
    gate = 2 if model.gated_mlp else 1
    forward, backward = (6.0, 10.0) if model.gated_mlp else (4.0, 6.0)
    if model.linear_bias:
        return moved(
            machine,
            m * ((forward + 4.0 * gate) * width + 4.0 * outer),
            m * ((backward + 2.0 * gate) * width + 2.0 * outer),
            moe,
        )
    return moved(machine, forward * width * m, backward * width * m, moe)


ACTIVATION_LAUNCHES: Final = Pass(1.0, 1.0)


def linears(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """The two linear layers of the dense feed-forward."""
    width = model.ffn_hidden_size
    if not width:
        return NOTHING
    return ffn_linears(job, model, machine, tokens(job, cp, mbs), width / tp, model.hidden_size)


def quantise_linears(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Quantising the operands of the dense feed-forward."""
    width = model.ffn_hidden_size
    if not width:
        return NOTHING
    return ffn_quantise(job, model, machine, tokens(job, cp, mbs), width / tp, model.hidden_size)


def activation(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Activation of the dense feed-forward."""
    width = model.ffn_hidden_size
    if not width:
        return NOTHING
    return ffn_activation(model, machine, tokens(job, cp, mbs), width / tp, model.hidden_size)


def linear_launches(job: Job, machine: Machine) -> Pass:
    """Framework ops of two linear layers."""
    return gemm_launches(job, machine, 2.0)


_MLP: Final = Part(("mlp",), "mlp", ("mlp",))

DENSE_OPS: Final = (
    *norm_ops("dense", _MLP.graph),
    Op("gemm", "dense", "mlp", linears, linear_launches, FIT, _MLP),
    Op("quantise", "dense", "mlp", quantise_linears, NOTHING, CHOSEN, _MLP),
    Op("elementwise", "dense", "mlp", activation, ACTIVATION_LAUNCHES, BENCH, _MLP),
    Op("tp", "dense", "mlp", tp_collectives, tensor_parallel_launches, FIT, _MLP),
)
