"""What the target stack changes by itself, without an error: one declaration for each field.

Each function gives the value that the field would get. `mbsolve.constraints.normalise` applies them in this order.
A change that would defeat what was asked for names the law that refuses it (``refused_by``): it is told, not applied.
"""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Normalisation, normalisation
from mbsolve.constraints.rules.dispatcher import GATES, deepep_knows_the_gpu, hybridep_knows_the_gpu
from mbsolve.constraints.rules.graphs import captured_wgrad_is_fused
from mbsolve.constraints.rules.layout import stage_count
from mbsolve.constraints.rules.upstream import BRIDGE_TARGETS, CONFIG, MEGATRON_LM, bridge, megatron
from mbsolve.constraints.rules.useful import has_shared_experts
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

WHOLE: Final = "full_iteration"
"""As a graph scope: the former spelling of the implementation of that name."""
ROUTER: Final = ("moe_router", "moe_preprocess")
OVERLAP: Final = "src/megatron/bridge/training/comm_overlap.py"


@normalisation(
    "sp-cleared-bridge",
    field="sequence_parallel",
    because="TP = {tp}",
    source=bridge("src/megatron/bridge/models/transformer_config.py:175"),
    targets=BRIDGE_TARGETS,
)
def bridge_clears_sequence_parallel(sequence_parallel: bool, tp: int) -> bool:
    """Without tensor parallelism Megatron-Bridge turns sequence parallelism off."""
    return sequence_parallel and tp > 1


@normalisation(
    "sp-cleared-mlm",
    field="sequence_parallel",
    because="TP = {tp}",
    source=megatron("megatron/training/arguments.py:1439"),
    targets=MEGATRON_LM,
)
def megatron_clears_sequence_parallel(sequence_parallel: bool, tp: int) -> bool:
    """Without tensor parallelism Megatron-LM turns sequence parallelism off."""
    return sequence_parallel and tp > 1


@normalisation(
    "tp-overlap-disabled",
    field="tp_comm_overlap",
    because="TP = {tp} and sequence_parallel is {sequence_parallel}; the overlap needs TP above 1 with sequence "
    "parallelism",
    source=bridge(f"{OVERLAP}:444"),
    targets=BRIDGE_TARGETS,
)
def bridge_clears_tp_overlap(job: Job, tp: int, sequence_parallel: bool) -> bool:
    """Without TP or without sequence parallelism Megatron-Bridge turns the overlap of TP communication off."""
    return job.settings.tp_comm_overlap and tp > 1 and sequence_parallel


@normalisation(
    "rope-fusion-cleared-mlm",
    field="rope_fusion",
    because="its positions are not rotary of the plain kind (learnt: {model.learned_positions}, rotary: {model.rotary})",
    source=megatron("megatron/training/arguments.py, validate_args (legacy RoPE arguments)"),
    targets=MEGATRON_LM,
)
def megatron_clears_rope_fusion(job: Job, model: Model) -> bool:
    """Megatron-LM fuses plain rotary positions only; latent attention counts as such."""
    plain = model.learned_positions is None and (model.mla or model.rotary == "rope")
    return job.settings.rope_fusion and plain


@normalisation(
    "layout-vpp-filled",
    field="vpp",
    because="the layout has more stages than PP = {pp}; the overlap of pipeline transfers stays off unless VPP is "
    "stated",
    source=megatron(f"{CONFIG}:2286"),
)
def layout_fills_vpp(
    vpp: int, pp: int, pipeline_layout: str | None, ep_overlap: bool, job: Job, model: Model
) -> int:
    """A layout with several stages for each rank sets VPP when it is not stated."""
    if vpp != 1 or pipeline_layout is None or model.layer_pattern is not None:
        return vpp
    if ep_overlap and job.target in BRIDGE_TARGETS:
        # Bridge looks whether EP overlap has its virtual stages before they are filled in.
        return vpp
    stages = stage_count(pipeline_layout)
    return stages // pp if stages % pp == 0 and pp > 1 else vpp


@normalisation(
    "mlm-vpp-dropped-with-layout",
    field="vpp",
    because="the stages of the layout over PP = {pp} decide, and a stated VPP is dropped",
    source=megatron("megatron/training/arguments.py:950"),
    targets=MEGATRON_LM,
    refused_by=("layout-vpp-match",),
)
def layout_replaces_vpp(vpp: int, pp: int, pipeline_layout: str | None, model: Model) -> int:
    """In Megatron-LM a layout replaces a VPP that contradicts it."""
    if vpp == 1 or pipeline_layout is None or model.layer_pattern is not None:
        return vpp
    stages = stage_count(pipeline_layout)
    return stages // pp if stages % pp == 0 else vpp


@normalisation(
    "flex-fallback-to-alltoall",
    field="dispatcher",
    because="{dispatcher} does not know {machine.device_name}; recipes fall back in silence, overrides are refused",
    source=bridge(f"{GATES}:66"),
    targets=BRIDGE_TARGETS,
    refused_by=("deepep-gpu-gate", "hybridep-gpu-gate"),
)
def unknown_gpu_means_alltoall(dispatcher: str, machine: Machine, model: Model) -> str:
    """On a GPU that the flex dispatcher does not know, recipes of Megatron-Bridge fall back to alltoall."""
    values = {"dispatcher": dispatcher}
    facts = {"machine": machine, "model": model}
    known = all(law.holds(facts, values) for law in (deepep_knows_the_gpu, hybridep_knows_the_gpu))
    return dispatcher if known else "alltoall"


@normalisation(
    "flex-clears-shared-overlap",
    field="shared_expert_overlap",
    because="the dispatcher is {dispatcher}, and a flex dispatcher is set up without the overlap of shared experts",
    source=bridge(f"{GATES}:55"),
    targets=BRIDGE_TARGETS,
)
def flex_clears_shared_overlap(
    dispatcher: str, ep_overlap: bool, recompute_shared_experts: bool, job: Job, model: Model
) -> bool:
    """With DeepEP or HybridEP, recipes of Megatron-Bridge turn the overlap of shared experts off.

    An override would turn it on again, so that it is not cleared where a law refuses it.
    """
    flex = dispatcher in ("deepep", "hybridep") and has_shared_experts(model)
    flex = flex and not (ep_overlap or recompute_shared_experts)
    return job.settings.shared_expert_overlap and not flex


@normalisation(
    "recompute-modules-default",
    field="recompute_modules",
    because="{recompute_granularity} recompute names no module, and an empty list cannot be said there",
    source=megatron(f"{CONFIG}:1941"),
    targets=MEGATRON_LM,
)
def selective_means_core_attention(
    recompute_granularity: str, recompute_modules: tuple[str, ...]
) -> tuple[str, ...]:
    """In Megatron-LM, selective recompute without modules is that of the core attention."""
    return (
        ("core_attn",)
        if recompute_granularity == "selective" and not recompute_modules
        else recompute_modules
    )


@normalisation(
    "cg-scope-cleared-when-none",
    field="cuda_graph_scope",
    because="the graph implementation is {cuda_graph_impl}",
    source=bridge("src/megatron/bridge/utils/cuda_graph.py:138"),
    targets=BRIDGE_TARGETS,
)
def no_graphs_have_no_scope(
    cuda_graph_impl: str,
    cuda_graph_scope: tuple[str, ...],
    delay_wgrad: bool,
    graph_attn: bool,
    graph_moe_router: bool,
    job: Job,
    model: Model,
) -> tuple[str, ...]:
    """Without graphs Megatron-Bridge clears their scope, if it has not refused it beside delayed weight gradients."""
    allowed = captured_wgrad_is_fused.fn(delay_wgrad, graph_attn, graph_moe_router, job, model)
    return () if cuda_graph_impl == "none" and allowed else cuda_graph_scope


@normalisation(
    "cg-full-iteration-scope-migrated",
    field="cuda_graph_impl",
    because="full_iteration in the scope turns graphs of the whole iteration on, though the implementation is "
    "{cuda_graph_impl}",
    source=megatron("megatron/core/transformer/cuda_graph_config.py:109"),
    since="mcore 0.19",
    targets=MEGATRON_LM,
    refused_by=("cg-modules-values",),
)
def whole_scope_turns_graphs_on(cuda_graph_impl: str, cuda_graph_scope: tuple[str, ...]) -> str:
    """In Megatron-LM, scope full_iteration turns graphs on even where none are asked for."""
    return WHOLE if cuda_graph_impl == "none" and WHOLE in cuda_graph_scope else cuda_graph_impl


@normalisation(
    "cg-full-iteration-scope-migrated",
    field="cuda_graph_impl",
    because="full_iteration in the scope is the former spelling of the implementation",
    source=megatron("megatron/core/transformer/cuda_graph_config.py:109"),
    since="mcore 0.19",
)
def whole_scope_is_an_implementation(cuda_graph_impl: str, cuda_graph_scope: tuple[str, ...]) -> str:
    """Local graphs of scope full_iteration are full-iteration graphs."""
    return WHOLE if cuda_graph_impl == "local" and WHOLE in cuda_graph_scope else cuda_graph_impl


@normalisation(
    "cg-full-iteration-scope-migrated",
    field="cuda_graph_scope",
    because="full_iteration is no scope but an implementation",
    source=megatron(f"{CONFIG}:2765"),
    since="mcore 0.19",
)
def whole_scope_is_dropped(cuda_graph_impl: str, cuda_graph_scope: tuple[str, ...]) -> tuple[str, ...]:
    """Full-iteration graphs lose the scope of that name."""
    if cuda_graph_impl != WHOLE:
        return cuda_graph_scope
    return tuple(scope for scope in cuda_graph_scope if scope != WHOLE)


@normalisation(
    "cg-local-couples-router-preprocess",
    field="cuda_graph_scope",
    because="local graphs capture moe_router and moe_preprocess together",
    source=megatron(f"{CONFIG}:2807"),
)
def local_graphs_couple_the_router(
    cuda_graph_impl: str, cuda_graph_scope: tuple[str, ...]
) -> tuple[str, ...]:
    """Local graphs with one of moe_router and moe_preprocess get the other."""
    if cuda_graph_impl != "local" or not set(ROUTER) & set(cuda_graph_scope):
        return cuda_graph_scope
    return (*cuda_graph_scope, *(scope for scope in ROUTER if scope not in cuda_graph_scope))


NORMALISATIONS: tuple[Normalisation, ...] = (
    bridge_clears_sequence_parallel,
    megatron_clears_sequence_parallel,
    bridge_clears_tp_overlap,
    megatron_clears_rope_fusion,
    layout_fills_vpp,
    layout_replaces_vpp,
    unknown_gpu_means_alltoall,
    flex_clears_shared_overlap,
    selective_means_core_attention,
    no_graphs_have_no_scope,
    whole_scope_turns_graphs_on,
    whole_scope_is_an_implementation,
    whole_scope_is_dropped,
    local_graphs_couple_the_router,
)
"""All of them, in the order in which they are applied."""
