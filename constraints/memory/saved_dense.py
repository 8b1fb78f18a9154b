"""What the dense FFN half of a layer keeps for its backward pass."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.declare import Undo, saved
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.rule import Source
from mbsolve.models.card import Model

_LM = "NVIDIA/Megatron-LM"
_TE = "NVIDIA/TransformerEngine"
NORM_LINEAR = Source(
    _TE, "transformer_engine/pytorch/module/layernorm_linear.py; H200 one-rank training step, 2026-11-30"
)
MLP = Source(_LM, "megatron/core/transformer/mlp.py; H200 one-rank training step, 2026-11-30")
SWIGLU = Source(_LM, "megatron/core/fusions/fused_bias_swiglu.py; H200 one-rank training step, 2026-11-30")


def _hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved(
    "hidden", "dense", pooled_by=(), source=MLP
)  # the norm is fused into fc1: upstream then ignores mlp_norm
def hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Hidden state after attention: input of the norm and the residual."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("norm_output", "dense", recomputed_by=(Undo("mlp"),), quantised=True, source=NORM_LINEAR)
def norm_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Normalised input of fc1."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved("fc1_output", "dense", recomputed_by=(Undo("mlp"),), source=SWIGLU)
def fc1_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of fc1: gate and up, input of the activation."""
    return sizes.gates(model) * sizes.mlp_width(job, model, mbs, cp, tp)


@saved("activation", "dense", recomputed_by=(Undo("mlp"),), quantised=True, source=MLP)
def activation(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the activation, input of fc2."""
    return sizes.mlp_width(job, model, mbs, cp, tp)


DENSE_TENSORS = (
    hidden,
    norm_output,
    fc1_output,
    activation,
)
