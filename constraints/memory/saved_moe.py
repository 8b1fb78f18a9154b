"""What the MoE half of a layer keeps for its backward pass."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.declare import Away, Undo, nothing, saved
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.rule import Source
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

_LM = "NVIDIA/Megatron-LM"
_TE = "NVIDIA/TransformerEngine"
MOE = Source(_LM, "megatron/core/transformer/moe/moe_layer.py; H200 one-rank training step, 2026-11-30")
EXPERTS = Source(_LM, "megatron/core/transformer/moe/experts.py; H200 one-rank training step, 2026-11-30")
SHARED = Source(
    _LM, "megatron/core/transformer/moe/shared_experts.py; H200 one-rank training step, 2026-11-30"
)
PERMUTE = Source(_TE, "transformer_engine/pytorch/permutation.py; H200 one-rank training step, 2026-11-30")
LATENT = Source(
    _LM, "megatron/core/transformer/moe/moe_layer.py: fc1_latent_proj, fc2_latent_proj, derived, not measured"
)
ROUTER = Source(_LM, "megatron/core/transformer/moe/router.py; H200 one-rank training step, 2026-11-30")


def _hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    return sizes.hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved(
    "hidden",
    "moe",
    offloaded_by=(Away("mlp_norm"),),
    captured_by=("moe_router", "moe"),
    pooled_by=(),
    source=MOE,
)
def hidden(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Hidden state before the MLP norm, and the residual."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved(
    "norm_output",
    "moe",
    recomputed_by=(Undo("moe", kept=_hidden, remade=nothing), Undo("layernorm")),
    captured_by=("moe_router", "moe"),
    source=MOE,
)
def norm_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Normalised input of router and experts; under `moe` it stays, as the checkpoint's input, unless `layernorm`."""
    return _hidden(job, model, mbs, cp, tp, sequence_parallel)


@saved(
    "shared_input",
    "moe",
    recomputed_by=(Undo("shared_experts"), Undo("moe")),
    captured_by=("moe_router", "moe"),
    quantised=True,
    source=SHARED,
)
def shared_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Copy of the shared experts' input under delayed scaling; other recipes save the norm's output itself."""
    own = job.precision == "fp8_delayed" and bool(model.shared_expert_ffn_hidden_size)
    return _hidden(job, model, mbs, cp, tp, sequence_parallel) * float(own)


@saved(
    "shared_fc1_output",
    "moe",
    recomputed_by=(Undo("shared_experts"), Undo("moe")),
    captured_by=("moe_router", "moe"),
    source=SHARED,
)
def shared_fc1_output(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the shared experts' fc1."""
    return sizes.gates(model) * sizes.shared_width(job, model, mbs, cp, tp)


@saved(
    "shared_activation",
    "moe",
    recomputed_by=(Undo("shared_experts"), Undo("moe")),
    captured_by=("moe_router", "moe"),
    quantised=True,
    source=SHARED,
)
def shared_activation(job: Job, model: Model, mbs: Value, cp: Value, tp: Value) -> Value:
    """Output of the shared experts' activation."""
    return sizes.shared_width(job, model, mbs, cp, tp)


@saved(
    "latent_input",
    "moe",
    recomputed_by=(Undo("moe"),),
    captured_by=("moe_preprocess", "moe"),
    quantised=True,
    source=LATENT,
)
def latent_input(job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value) -> Value:
    """Quantised input of the projection into the experts' latent; in bf16 it is the norm's output itself."""
    own = job.quantised and model.moe_latent_size is not None
    return _hidden(job, model, mbs, cp, tp, sequence_parallel) * float(own)


@saved("latent_output", "moe", recomputed_by=(Undo("moe"),), quantised=True, source=LATENT)
def latent_output(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Combined tokens, input of the projection out of the experts' latent."""
    there = float(model.moe_latent_size is not None)
    return sizes.dispatched(job, model, mbs, cp, tp, sequence_parallel) * there


@saved(
    "expert_input",
    "moe",
    recomputed_by=(Undo("moe"),),
    offloaded_by=(Away("expert_fc1", original=True),),
    quantised=True,
    varies=True,
    source=EXPERTS,
)
def expert_input(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Tokens sorted by expert, input of the experts' fc1."""
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    return sizes.expert_hidden(rows, model)


@saved(
    "expert_fc1_output",
    "moe",
    recomputed_by=(Undo("moe"),),
    offloaded_by=(Away("moe_act"),),
    varies=True,
    source=EXPERTS,
)
def expert_fc1_output(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Output of the experts' fc1, input of the weighted activation."""
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    return sizes.gates(model) * sizes.expert_width(rows, model, etp)


def _expert_activation(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Activation times probability, input of the experts' fc2."""
    rows = sizes.expert_rows(job, model, machine, mbs, cp, tp, sequence_parallel, etp)
    return sizes.expert_width(rows, model, etp)


expert_activation = saved(
    "expert_activation",
    "moe",
    recomputed_by=(Undo("moe_act", remade=_expert_activation), Undo("moe")),
    quantised=True,
    source=EXPERTS,
)(_expert_activation)


@saved(
    "permutation_map",
    "moe",
    recomputed_by=(Undo("moe"),),
    captured_by=("moe_preprocess", "moe"),
    source=PERMUTE,
)
def permutation_map(
    job: Job, model: Model, mbs: Value, cp: Value, tp: Value, sequence_parallel: Value
) -> Value:
    """Row map of the token permutation, int32."""
    return sizes.permutation_map(job, model, mbs, cp, tp, sequence_parallel)


@saved("routing", "moe", recomputed_by=(Undo("moe"),), captured_by=("moe_router", "moe"), source=ROUTER)
def routing(
    job: Job,
    model: Model,
    machine: Machine,
    mbs: Value,
    cp: Value,
    tp: Value,
    sequence_parallel: Value,
    etp: Value,
) -> Value:
    """Top-k indices and probabilities, sort maps, and scores over all experts."""
    return sizes.routing_small(job, model, machine, mbs, cp, tp, sequence_parallel, etp)


MOE_TENSORS = (
    hidden,
    norm_output,
    shared_input,
    shared_fc1_output,
    shared_activation,
    latent_input,
    latent_output,
    expert_input,
    expert_fc1_output,
    expert_activation,
    permutation_map,
    routing,
)
