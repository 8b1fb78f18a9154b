"""Rules of activation offload: by layers, and by modules (fine-grained)."""

from __future__ import annotations

from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, for_each, megatron
from mbsolve.constraints.vocabulary import OFFLOAD_MODULES
from mbsolve.models.card import Model

EACH_MODULE = tuple(f"offload_{module}" for module in OFFLOAD_MODULES)
INSIDE_EXPERTS = ("offload_expert_fc1", "offload_moe_act")


@rule(
    "cpu-offload-layer-range",
    because="{activation_offload_layers} offloaded layers are outside 0 to {model.num_layers} - 1",
    source=megatron(f"{CONFIG}:1888"),
)
def fewer_layers_than_the_model(activation_offload_layers: int, model: Model) -> bool:
    """Fewer layers are offloaded than the model has."""
    return 0 <= activation_offload_layers < model.num_layers


@rule(
    "cpu-offload-pp1",
    because="offload of {activation_offload_layers} layers needs PP = 1, not {pp}; optimizer or fine-grained "
    "offload has no such limit",
    source=megatron(f"{CONFIG}:1893"),
)
def layer_offload_needs_one_stage(activation_offload_layers: int, pp: int) -> bool:
    """Layer offload excludes pipeline parallelism."""
    return activation_offload_layers == 0 or pp == 1


@rule(
    "cpu-offload-no-recompute",
    because="offload of {activation_offload_layers} layers excludes recompute, which is {recompute_granularity}",
    source=megatron(f"{CONFIG}:1898"),
)
def layer_offload_or_recompute(activation_offload_layers: int, recompute_granularity: str) -> bool:
    """Layer offload excludes recompute."""
    return activation_offload_layers == 0 or recompute_granularity == "none"


@rule(
    "cpu-offload-cuda-graph",
    because="offload of {activation_offload_layers} layers excludes per-layer CUDA graphs ({cuda_graph_impl})",
    source=megatron(f"{CONFIG}:2801"),
)
def layer_offload_or_layer_graphs(activation_offload_layers: int, cuda_graph_impl: str) -> bool:
    """Layer offload excludes per-layer CUDA graphs."""
    return activation_offload_layers == 0 or cuda_graph_impl in ("none", "full_iteration")


@for_each(EACH_MODULE)
@rule(
    "cpu-offload-excludes-fine-grained",
    because="offload of {activation_offload_layers} layers excludes fine-grained offload of {each}",
    source=megatron(f"{CONFIG}:2130"),
)
def one_kind_of_offload(activation_offload_layers: int, each: bool) -> bool:
    """Layer offload excludes fine-grained offload of every module."""
    return activation_offload_layers == 0 or not each


@rule(
    "fg-offload-attn-proj",
    because="offload of attn_proj needs core_attn too, whose output is the input of attn_proj",
    source=megatron(f"{CONFIG}:2150"),
)
def projection_goes_with_attention(offload_attn_proj: bool, offload_core_attn: bool) -> bool:
    """Offload of the attention projection needs offload of the core attention."""
    return not offload_attn_proj or offload_core_attn


@rule(
    "fg-offload-vs-moe-recompute",
    because="recompute of moe leaves no moe_act or expert_fc1 to offload",
    source=megatron(f"{CONFIG}:2170"),
)
def recomputed_experts_are_not_offloaded(
    recompute_moe: bool, offload_moe_act: bool, offload_expert_fc1: bool
) -> bool:
    """Modules inside a recomputed MoE are not offloaded."""
    return not recompute_moe or not (offload_moe_act or offload_expert_fc1)


@for_each(name for name in EACH_MODULE if name not in INSIDE_EXPERTS)
@rule(
    "fg-offload-local-graph",
    because="graphs of kind {cuda_graph_impl} allow offload of expert_fc1 and moe_act only, not of {each}",
    source=megatron(f"{CONFIG}:2936"),
)
def local_graphs_offload_experts_only(cuda_graph_impl: str, each: bool) -> bool:
    """With local graphs, only modules inside the experts are offloaded, beside some graph scope."""
    return cuda_graph_impl != "local" or not each


@for_each(INSIDE_EXPERTS)
@rule(
    "fg-offload-local-graph",
    because="graphs of kind {cuda_graph_impl} without a scope capture whole layers, which excludes offload of {each}",
    source=megatron(f"{CONFIG}:2942"),
)
def local_graphs_have_a_scope_beside_offload(
    cuda_graph_impl: str,
    each: bool,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe_router: bool,
) -> bool:
    """With local graphs, only modules inside the experts are offloaded, beside some graph scope."""
    # The stack adds moe_router to moe_preprocess, so that one need not be asked for.
    scopes = (graph_attn, graph_mamba, graph_mlp, graph_moe_router)
    return cuda_graph_impl != "local" or not each or any(scopes)


@for_each(EACH_MODULE)
@rule(
    "fg-offload-full-iteration-inflight",
    because="with graphs of kind {cuda_graph_impl}, offload of {each} needs a bound on transfers in flight, which "
    "mbsolve does not set",
    source=megatron(f"{CONFIG}:2972"),
)
def full_graphs_do_not_offload(cuda_graph_impl: str, each: bool) -> bool:
    """Full-iteration graphs exclude fine-grained offload, for want of a bound on transfers in flight."""
    return cuda_graph_impl != "full_iteration" or not each
