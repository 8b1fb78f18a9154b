"""Rules of CUDA graphs."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import BRIDGE_TARGETS, CONFIG, bridge, for_each, megatron
from mbsolve.constraints.rules.useful import has_dense_layers, has_shared_experts
from mbsolve.constraints.vocabulary import GRAPH_IMPLS, GRAPH_SCOPES
from mbsolve.models.card import Model


def _per_layer(cuda_graph_impl: str) -> bool:
    return cuda_graph_impl in ("local", "transformer_engine")


@rule(
    "cg-impl-values",
    because="graph implementation {cuda_graph_impl} is none of: none, local, transformer_engine, full_iteration",
    source=megatron(f"{CONFIG}:2783"),
)
def implementation_is_known(cuda_graph_impl: str) -> bool:
    """The graph implementation is one of the four."""
    return cuda_graph_impl in GRAPH_IMPLS


@rule(
    "cg-local-bridge",
    because="Megatron-Bridge takes no {cuda_graph_impl} graphs; use transformer_engine or full_iteration",
    source=bridge("src/megatron/bridge/utils/cuda_graph.py:149"),
    targets=BRIDGE_TARGETS,
)
def bridge_has_no_local_graphs(cuda_graph_impl: str) -> bool:
    """Megatron-Bridge has no local per-layer graphs."""
    return cuda_graph_impl != "local"


@for_each(f"graph_{scope}" for scope in GRAPH_SCOPES)
@rule(
    "cg-full-iteration-no-modules",
    because="{cuda_graph_impl} graphs capture everything and take no scope, not even {each}",
    source=megatron(f"{CONFIG}:2796"),
)
def full_graphs_have_no_scope(cuda_graph_impl: str, each: bool) -> bool:
    """Full-iteration graphs take no scope."""
    return cuda_graph_impl != "full_iteration" or not each


@rule(
    "cg-full-iteration-moe-sync",
    because="experts of {model.title} read token counts on the host, which {cuda_graph_impl} graphs capture only with "
    "a rank capacity (expert_rank_capacity {job.settings.expert_rank_capacity}); or use transformer_engine with attn, "
    "moe_router and moe_preprocess",
    source=megatron(f"{CONFIG}:1871 (a bound on the tokens of a rank is what would avoid the read)"),
)
def full_graphs_have_bounded_experts(cuda_graph_impl: str, job: Job, model: Model) -> bool:
    """Full-iteration graphs need a model without experts, or a bound on the tokens of an expert rank."""
    bounded = job.settings.expert_rank_capacity is not None
    return cuda_graph_impl != "full_iteration" or not model.is_moe or bounded


@rule(
    "cg-moe-xor-router",
    because="graph scope moe holds the router already; drop moe or moe_router",
    source=megatron(f"{CONFIG}:2820"),
)
def experts_or_router(cuda_graph_impl: str, graph_moe: bool, graph_moe_router: bool) -> bool:
    """Graph scopes moe and moe_router exclude each other."""
    return not (_per_layer(cuda_graph_impl) and graph_moe and graph_moe_router)


@rule(
    "cg-preprocess-needs-router",
    because="graph scope moe_preprocess needs moe_router",
    source=megatron(f"{CONFIG}:2824"),
)
def preprocess_follows_router(
    cuda_graph_impl: str, graph_moe_preprocess: bool, graph_moe_router: bool
) -> bool:
    """Graph scope moe_preprocess needs moe_router (local graphs add it by themselves)."""
    return cuda_graph_impl != "transformer_engine" or not graph_moe_preprocess or graph_moe_router


@rule(
    "cg-moe-needs-moe",
    because="graph scopes moe and moe_router need experts, and {model.title} has none",
    source=megatron(f"{CONFIG}:2829"),
)
def captured_experts_exist(
    cuda_graph_impl: str, graph_moe: bool, graph_moe_router: bool, model: Model
) -> bool:
    """Graph scopes of the experts need experts."""
    return not (_per_layer(cuda_graph_impl) and (graph_moe or graph_moe_router)) or model.is_moe


@rule(
    "cg-mlp-needs-dense",
    because="graph scope mlp needs a dense layer, and all {model.num_layers} layers have experts",
    source=megatron(f"{CONFIG}:2835"),
)
def captured_mlp_exists(cuda_graph_impl: str, graph_mlp: bool, model: Model) -> bool:
    """Graph scope mlp needs a dense layer."""
    return not (_per_layer(cuda_graph_impl) and graph_mlp) or has_dense_layers(model)


@rule(
    "cg-moe-needs-drop-pad",
    because="graph scope moe needs experts that drop and pad tokens to a capacity, which mbsolve does not set; use "
    "moe_router and moe_preprocess",
    source=megatron(f"{CONFIG}:2844"),
)
def captured_experts_are_padded(cuda_graph_impl: str, graph_moe: bool, model: Model) -> bool:
    """Graph scope moe needs padded expert capacity, which is not offered here."""
    return not (_per_layer(cuda_graph_impl) and graph_moe) or not model.is_moe


@rule(
    "cg-preprocess-dtoh",
    because="router_padding reads token counts on the host before {dispatcher}, which graph scope moe_preprocess cannot "
    "capture; drop one",
    source=megatron(f"{CONFIG}:2850"),
)
def captured_preprocess_does_not_read_the_host(
    cuda_graph_impl: str,
    graph_moe_preprocess: bool,
    graph_moe_router: bool,
    dispatcher: str,
    job: Job,
    model: Model,
) -> bool:
    """With a padded routing map, graphs do not capture the preparation of an all-to-all dispatch."""
    if not (job.settings.router_padding and model.is_moe and dispatcher == "alltoall"):
        return True
    # Local graphs capture both if either is asked for.
    held = graph_moe_preprocess or (cuda_graph_impl == "local" and graph_moe_router)
    return not (_per_layer(cuda_graph_impl) and held)


@rule(
    "cg-whole-layer-moe",
    because="{cuda_graph_impl} graphs without a scope capture whole layers, and with them the experts of "
    "{model.title}, whose token counts change from step to step; name a scope, as attn and moe_router",
    source=megatron("megatron/core/transformer/cuda_graph_config.py, validate_moe_cuda_graph_support"),
    since="mcore 0.20",
)
def whole_layers_hold_no_experts(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mlp: bool,
    graph_moe: bool,
    graph_moe_router: bool,
    graph_mamba: bool,
    model: Model,
) -> bool:
    """Per-layer graphs of a model with experts need a scope."""
    # moe_preprocess goes with moe_router, so it need not be asked for.
    scopes = (graph_attn, graph_mlp, graph_moe, graph_moe_router, graph_mamba)
    return not _per_layer(cuda_graph_impl) or any(scopes) or not model.is_moe


@rule(
    "cg-full-recompute",
    because="full recompute works with full_iteration graphs or none, not with {cuda_graph_impl}",
    source=megatron(f"{CONFIG}:2858"),
)
def full_recompute_excludes_layer_graphs(cuda_graph_impl: str, recompute_granularity: str) -> bool:
    """Full recompute excludes per-layer graphs."""
    return recompute_granularity != "full" or not _per_layer(cuda_graph_impl)


@rule(
    "cg-moe-recompute-router",
    because="recompute of moe replays the router, which {cuda_graph_impl} graphs have captured",
    source=megatron(f"{CONFIG}:2868"),
)
def captured_router_is_not_replayed(
    cuda_graph_impl: str, recompute_moe: bool, graph_moe_router: bool
) -> bool:
    """A router captured by a Transformer Engine graph is not recomputed with its MoE."""
    return not (cuda_graph_impl == "transformer_engine" and recompute_moe and graph_moe_router)


@rule(
    "cg-ep-overlap-scopes",
    because="EP overlap runs between the parts of a layer, so {cuda_graph_impl} graphs cannot capture moe or mlp",
    source=megatron(f"{CONFIG}:3069"),
)
def overlap_leaves_experts_uncaptured(
    ep_overlap: bool, cuda_graph_impl: str, graph_moe: bool, graph_mlp: bool
) -> bool:
    """With EP overlap, Transformer Engine graphs capture neither moe nor mlp."""
    return not (ep_overlap and cuda_graph_impl == "transformer_engine") or not (graph_moe or graph_mlp)


@rule(
    "cg-ep-overlap-whole-layer",
    because="EP overlap needs {cuda_graph_impl} graphs with a scope: without one they capture whole layers",
    source=megatron("megatron/core/transformer/transformer_layer.py:1374"),
)
def overlap_needs_a_scope(
    ep_overlap: bool,
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mlp: bool,
    graph_moe: bool,
    graph_moe_router: bool,
) -> bool:
    """With EP overlap, Transformer Engine graphs need a scope."""
    # moe_preprocess needs moe_router, so it need not be asked for.
    scopes = (graph_attn, graph_mlp, graph_moe, graph_moe_router)
    return not (ep_overlap and cuda_graph_impl == "transformer_engine") or any(scopes)


@rule(
    "cg-delay-wgrad-scope",
    because="delayed weight gradients inside a graph need grad_accumulation_fusion "
    "({job.settings.grad_accumulation_fusion}), and in scope attn no biases (linear_bias {model.linear_bias}, "
    "qkv_bias {model.qkv_bias})",
    source=bridge("src/megatron/bridge/training/comm_overlap.py:545"),
)
def captured_wgrad_is_fused(
    delay_wgrad: bool,
    graph_attn: bool,
    graph_moe_router: bool,
    job: Job,
    model: Model,
) -> bool:
    """Delayed weight gradients inside a graph need fused accumulation and, in attention, no biases."""
    # The stack looks at the scopes alone, before it clears those that no graphs go with; Megatron-LM only where
    # gradients are reduced meanwhile.
    if not delay_wgrad or (job.target == "megatron-lm" and not job.settings.overlap_grad_reduce):
        return True
    shared = graph_moe_router and has_shared_experts(model) and not job.settings.shared_expert_overlap
    fused = job.settings.grad_accumulation_fusion
    biased = model.linear_bias or model.qkv_bias
    return (not graph_attn or (fused and not biased)) and (not shared or fused)
