"""Rules of activation recompute."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import PlacementError, virtual_stages
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, MEGATRON_LM, megatron
from mbsolve.constraints.rules.useful import has_shared_experts, useful_recompute_modules
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model


@rule(
    "recompute-granularity-values",
    because="recompute granularity {recompute_granularity} is none of: none, selective, full",
    source=megatron(f"{CONFIG}:1902"),
)
def granularity_is_known(recompute_granularity: str) -> bool:
    """The recompute granularity is none, selective or full."""
    return recompute_granularity in ("none", "selective", "full")


@rule(
    "recompute-method-values",
    because="recompute method {recompute_method} is none of: none, uniform, block",
    source=megatron(f"{CONFIG}:1911"),
)
def method_is_known(recompute_method: str) -> bool:
    """The recompute method is none, uniform or block."""
    return recompute_method in ("none", "uniform", "block")


@rule(
    "recompute-full-needs-method",
    because="{recompute_granularity} recompute needs a method, uniform or block, but it is {recompute_method}",
    source=megatron(f"{CONFIG}:1916"),
)
def full_has_a_method(recompute_granularity: str, recompute_method: str) -> bool:
    """Full recompute needs a method."""
    return recompute_granularity != "full" or recompute_method != "none"


@rule(
    "recompute-full-needs-layers",
    because="{recompute_granularity} recompute needs a number of layers of at least 1, not {recompute_num_layers}",
    source=megatron(f"{CONFIG}:1922"),
)
def full_has_layers(recompute_granularity: str, recompute_num_layers: int) -> bool:
    """Full recompute needs the number of layers."""
    return recompute_granularity != "full" or recompute_num_layers >= 1


@rule(
    "recompute-layers-range",
    because="{recompute_num_layers} recomputed layers are more than any of PP = {pp} pipeline ranks has",
    source=megatron(f"{CONFIG}:1922 (its message names the range, its code tests for none given)"),
)
def layers_are_there(
    recompute_method: str, recompute_num_layers: int, pp: int, vpp: int, split: Split, model: Model
) -> bool:
    """A recompute method is of no more layers than a pipeline rank has."""
    if recompute_method == "none" or recompute_num_layers <= 1:
        return True
    try:
        stages = virtual_stages(model, pp, vpp, split)
    except PlacementError:
        return True  # for another law to refuse
    layers = [sum(item.what == "layer" for item in stage) for stage in stages]
    return recompute_num_layers <= max(sum(layers[rank::pp]) for rank in range(pp))


@rule(
    "recompute-selective-no-layers",
    because="{recompute_granularity} recompute takes no number of layers, but it is {recompute_num_layers}",
    source=megatron(f"{CONFIG}:1931"),
)
def selective_has_no_layers(recompute_granularity: str, recompute_num_layers: int) -> bool:
    """Selective recompute takes no number of layers."""
    return recompute_granularity != "selective" or recompute_num_layers == 0


@rule(
    "recompute-selective-no-method-mlm",
    because="Megatron-LM takes no method with {recompute_granularity} recompute, but it is {recompute_method}",
    source=megatron("megatron/training/arguments.py:1427"),
    targets=MEGATRON_LM,
)
def selective_has_no_method(recompute_granularity: str, recompute_method: str) -> bool:
    """In Megatron-LM, selective recompute takes no method."""
    return recompute_granularity != "selective" or recompute_method == "none"


@rule(
    "recompute-moe-act-grouped",
    because="recompute of moe_act needs grouped experts, and {model.title} has no experts",
    source=megatron(f"{CONFIG}:1966"),
)
def expert_activation_exists(recompute_moe_act: bool, model: Model) -> bool:
    """Recompute of the expert activation needs experts."""
    return not recompute_moe_act or model.is_moe


@rule(
    "recompute-mla-up-proj",
    because="recompute of mla_up_proj needs multi-head latent attention, but {model.title} has {model.attention}",
    source=megatron(f"{CONFIG}:1971"),
)
def up_projection_exists(recompute_mla_up_proj: bool, model: Model) -> bool:
    """Recompute of the up-projection needs multi-head latent attention."""
    return not recompute_mla_up_proj or model.mla


@rule(
    "recompute-shared-overlap",
    because="shared experts cannot be both recomputed and overlapped (shared_expert_overlap is on)",
    source=megatron(f"{CONFIG}:1997"),
)
def shared_experts_do_one_thing(recompute_shared_experts: bool, job: Job, model: Model) -> bool:
    """Shared experts that are recomputed are not overlapped."""
    return not (recompute_shared_experts and has_shared_experts(model) and job.settings.shared_expert_overlap)


@rule(
    "recompute-fp8-delayed",
    because="delayed FP8 scaling forbids recompute of moe_act and layernorm",
    source=megatron(f"{CONFIG}:2004"),
)
def delayed_scaling_keeps_outputs(recompute_moe_act: bool, recompute_layernorm: bool, job: Job) -> bool:
    """Recompute of the expert activation or of norms needs another FP8 recipe than delayed scaling."""
    return job.precision != "fp8_delayed" or not (recompute_moe_act or recompute_layernorm)


@rule(
    "recompute-mtp-uniform",
    because="the MTP block of {model.title} recomputes one layer at a time, but recompute_num_layers is "
    "{recompute_num_layers}",
    source=megatron("megatron/core/transformer/multi_token_prediction.py:1627"),
)
def mtp_replays_single_layers(
    recompute_granularity: str, recompute_method: str, recompute_num_layers: int, model: Model
) -> bool:
    """With MTP, uniform full recompute is of one layer at a time."""
    if recompute_granularity != "full" or recompute_method != "uniform" or not model.mtp_num_layers:
        return True
    return recompute_num_layers <= 1


@rule(
    "recompute-modules-dense-noop",
    because="on {model.title} some of these recomputed modules do not exist and change nothing: moe "
    "{recompute_moe}, moe_act {recompute_moe_act}, shared_experts {recompute_shared_experts}, mlp {recompute_mlp}",
    source=megatron("megatron/core/transformer/transformer_layer.py:474"),
    kind="warning",
)
def recompute_does_something(
    recompute_moe: bool,
    recompute_moe_act: bool,
    recompute_shared_experts: bool,
    recompute_mlp: bool,
    model: Model,
) -> bool:
    """Recomputed modules exist in some layer."""
    useful = useful_recompute_modules(model)
    asked = {
        "moe": recompute_moe,
        "moe_act": recompute_moe_act,
        "shared_experts": recompute_shared_experts,
        "mlp": recompute_mlp,
    }
    return all(name in useful for name, on in asked.items() if on)
