"""Which of several equal plans stands for all of them.

These are no laws: `check` never reports them. A solver adds them, so that no two of its plans are the same run in
other words, and so that combinations which only repeat themselves stay out of the search. A rule here is left out
when the user has fixed a decision that it forbids.
"""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.placement import PlacementError, virtual_stages
from mbsolve.constraints.rule import Rule, Source, rule
from mbsolve.constraints.rules.upstream import for_each
from mbsolve.constraints.vocabulary import GRAPH_SCOPES, RECOMPUTE_MODULES, Split
from mbsolve.models.card import Model

OURS = Source("mbsolve", "one plan for each run")
PER_LAYER_GRAPHS = ("local", "transformer_engine")


@rule(
    "canonical-dense-experts",
    because="{model.title} has no experts: ETP = {etp} and EP = {ep} are written as 1",
    source=OURS,
)
def dense_models_have_no_expert_grid(etp: int, ep: int, model: Model) -> bool:
    """Without experts, ETP and EP are 1."""
    return model.is_moe or etp == ep == 1


@rule(
    "canonical-dispatcher",
    because="with ETP x EP = {etp} x {ep} nothing is dispatched: the dispatcher is written as alltoall",
    source=OURS,
)
def idle_dispatcher_is_alltoall(dispatcher: str, etp: int, ep: int, model: Model) -> bool:
    """Where no token leaves its rank, the dispatcher is alltoall."""
    return dispatcher == "alltoall" or (model.is_moe and etp * ep > 1)


@rule(
    "canonical-recompute-method",
    because="recompute method {recompute_method} is for full recompute, which is {recompute_granularity}",
    source=OURS,
)
def method_means_full(recompute_granularity: str, recompute_method: str) -> bool:
    """A recompute method is given for full recompute only."""
    return recompute_method == "none" or recompute_granularity == "full"


@rule(
    "canonical-recompute-layers",
    because="a number of recomputed layers, {recompute_num_layers}, goes with a method, which is {recompute_method}",
    source=OURS,
)
def layers_mean_a_method(recompute_method: str, recompute_num_layers: int) -> bool:
    """A number of recomputed layers goes with a method, and uniform recompute is of one layer at a time."""
    if recompute_method == "none":
        return recompute_num_layers == 0
    return recompute_num_layers == 1 if recompute_method == "uniform" else recompute_num_layers >= 1


@rule(
    "canonical-recompute-block",
    because="block recompute of {recompute_num_layers} layers of every chunk is uniform recompute",
    source=OURS,
)
def block_leaves_layers(
    recompute_method: str, recompute_num_layers: int, pp: int, vpp: int, split: Split, model: Model
) -> bool:
    """Block recompute leaves some layer of the longest chunk alone."""
    if recompute_method != "block":
        return True
    try:
        stages = virtual_stages(model, pp, vpp, split)
    except PlacementError:
        return True  # for a law to refuse
    return recompute_num_layers < max(sum(item.what == "layer" for item in stage) for stage in stages)


@for_each(f"recompute_{module}" for module in RECOMPUTE_MODULES)
@rule(
    "canonical-recompute-modules",
    because="module {each} is recomputed in selective recompute only, which is {recompute_granularity}",
    source=OURS,
)
def modules_mean_selective(recompute_granularity: str, each: bool) -> bool:
    """Recomputed modules are given for selective recompute only."""
    return not each or recompute_granularity == "selective"


@rule(
    "canonical-recompute-some",
    because="{recompute_granularity} recompute of no module is no recompute",
    source=OURS,
)
def selective_means_modules(
    recompute_granularity: str,
    recompute_core_attn: bool,
    recompute_mla_up_proj: bool,
    recompute_layernorm: bool,
    recompute_mlp: bool,
    recompute_moe_act: bool,
    recompute_shared_experts: bool,
    recompute_moe: bool,
) -> bool:
    """Selective recompute has a module. (Its scope is wide because "any of all" cannot be cut up.)"""
    return recompute_granularity != "selective" or (
        recompute_core_attn
        or recompute_mla_up_proj
        or recompute_layernorm
        or recompute_mlp
        or recompute_moe_act
        or recompute_shared_experts
        or recompute_moe
    )


@rule(
    "canonical-recompute-moe",
    because="recompute of moe covers moe_act and shared_experts already",
    source=OURS,
)
def moe_covers_its_parts(
    recompute_moe: bool, recompute_moe_act: bool, recompute_shared_experts: bool
) -> bool:
    """A recomputed MoE has no recomputed parts."""
    return not recompute_moe or not (recompute_moe_act or recompute_shared_experts)


@rule(
    "canonical-offload-attention",
    because="core_attn is either recomputed or offloaded",
    source=OURS,
)
def attention_does_one_thing(recompute_core_attn: bool, offload_core_attn: bool) -> bool:
    """The core attention is not both recomputed and offloaded."""
    return not (recompute_core_attn and offload_core_attn)


@rule(
    "canonical-offload-expert-activation",
    because="moe_act is either recomputed or offloaded",
    source=OURS,
)
def expert_activation_does_one_thing(recompute_moe_act: bool, offload_moe_act: bool) -> bool:
    """The expert activation is not both recomputed and offloaded."""
    return not (recompute_moe_act and offload_moe_act)


@rule(
    "canonical-offload-norms",
    because="norms are either recomputed or offloaded",
    source=OURS,
)
def norms_do_one_thing(recompute_layernorm: bool, offload_attn_norm: bool, offload_mlp_norm: bool) -> bool:
    """Norms are not both recomputed and offloaded."""
    return not (recompute_layernorm and (offload_attn_norm or offload_mlp_norm))


@for_each(f"graph_{scope}" for scope in GRAPH_SCOPES)
@rule(
    "canonical-graph-scopes",
    because="graph scope {each} is for per-layer graphs, not for {cuda_graph_impl}",
    source=OURS,
)
def scopes_mean_layer_graphs(cuda_graph_impl: str, each: bool) -> bool:
    """Graph scopes are given for per-layer graphs only."""
    return not each or cuda_graph_impl in PER_LAYER_GRAPHS


@rule(
    "canonical-graph-some",
    because="{cuda_graph_impl} graphs name their scopes; none would mean whole layers, which no scope here says",
    source=OURS,
)
def layer_graphs_mean_scopes(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe_router: bool,
    graph_moe_preprocess: bool,
) -> bool:
    """Per-layer graphs have a scope; ``moe`` is refused anyway."""
    scopes = (graph_attn, graph_mamba, graph_mlp, graph_moe_router, graph_moe_preprocess)
    return cuda_graph_impl not in PER_LAYER_GRAPHS or any(scopes)


@rule(
    "canonical-local-router",
    because="{cuda_graph_impl} graphs capture moe_router and moe_preprocess together",
    source=OURS,
)
def local_graphs_couple_the_router(
    cuda_graph_impl: str, graph_moe_router: bool, graph_moe_preprocess: bool
) -> bool:
    """Local graphs have moe_router and moe_preprocess both or neither, as the stack makes it."""
    return cuda_graph_impl != "local" or graph_moe_router == graph_moe_preprocess


@rule(
    "canonical-tp-overlap",
    because="TP = {tp} overlaps its communication with sequence parallelism only",
    source=OURS,
)
def tp_overlap_has_sequence_parallel(tp: int, sequence_parallel: bool, job: Job) -> bool:
    """Where TP communication is to be overlapped, it is with sequence parallelism: the stack drops the wish else."""
    return not job.settings.tp_comm_overlap or tp == 1 or sequence_parallel


CANONICAL: tuple[Rule, ...] = (
    dense_models_have_no_expert_grid,
    idle_dispatcher_is_alltoall,
    method_means_full,
    layers_mean_a_method,
    block_leaves_layers,
    *modules_mean_selective,
    selective_means_modules,
    moe_covers_its_parts,
    attention_does_one_thing,
    expert_activation_does_one_thing,
    norms_do_one_thing,
    *scopes_mean_layer_graphs,
    layer_graphs_mean_scopes,
    local_graphs_couple_the_router,
    tp_overlap_has_sequence_parallel,
)
