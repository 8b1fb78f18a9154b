"""Rules of hybrid models: gated delta nets, Mamba-2, and layers that a pattern places."""

from __future__ import annotations

from mbsolve.constraints.placement import expand_layout
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import BRIDGE_TARGETS, MEGATRON_LM, bridge, megatron
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model

HYBRID = "megatron/core/models/hybrid"


@rule(
    "gdn-heads-tp-cp",
    because="the {model.linear_num_key_heads} key heads and {model.linear_num_value_heads} value heads of the gated "
    "delta nets do not split over TP x CP = {tp} x {cp}",
    source=megatron("megatron/core/transformer/transformer_config.py:1502"),
)
def delta_net_heads_split(tp: int, cp: int, model: Model) -> bool:
    """The heads of a gated delta net split evenly over TP x CP."""
    keys, values = model.linear_num_key_heads, model.linear_num_value_heads
    return keys is None or values is None or (keys % (tp * cp) == 0 and values % (tp * cp) == 0)


@rule(
    "mamba-heads-tp-cp",
    because="the {model.mamba_num_heads} heads and {model.mamba_num_groups} groups of the Mamba-2 layers do not split "
    "over TP = {tp} and CP = {cp}",
    source=megatron("megatron/core/ssm/mamba_mixer.py; megatron/core/ssm/mamba_context_parallel.py"),
)
def mamba_heads_split(tp: int, cp: int, model: Model) -> bool:
    """Mamba-2 heads split over TP x CP and groups over TP; the groups of a rank divide CP or are divided by it."""
    heads, groups = model.mamba_num_heads, model.mamba_num_groups
    if heads is None or groups is None:
        return True
    if heads % tp or groups % tp or heads // tp % cp:
        return False
    own = groups // tp
    return cp % own == 0 if own < cp else own % cp == 0


@rule(
    "hybrid-vpp-bridge",
    because="Megatron-Bridge builds models with a layer pattern, as {model.title}, without virtual stages, but VPP = "
    "{vpp}",
    source=bridge("src/megatron/bridge/models/hybrid/hybrid_provider.py (provide)"),
    targets=BRIDGE_TARGETS,
)
def bridge_does_not_interleave_patterns(vpp: int, model: Model) -> bool:
    """In Megatron-Bridge there are no virtual stages with a layer pattern."""
    return vpp == 1 or model.layer_pattern is None


@rule(
    "hybrid-vpp-needs-layout",
    because="the layer pattern of {model.title} takes VPP = {vpp} with stages that are marked in it, which needs a "
    "layout, not {split}",
    source=megatron(f"{HYBRID}/hybrid_layer_allocation.py (select_pipeline_segment)"),
    targets=MEGATRON_LM,
)
def pattern_stages_are_marked(vpp: int, split: Split, model: Model) -> bool:
    """In Megatron-LM, virtual stages of a layer pattern need a layout."""
    return vpp == 1 or model.layer_pattern is None or split.layout is not None


@rule(
    "hybrid-no-counted-ends",
    because="the layer pattern of {model.title} is cut by its marks or evenly, and never counts the embedding "
    "({split.embedding}) or the loss ({split.loss}) as a layer",
    source=megatron("megatron/training/arguments.py:863"),
)
def patterns_do_not_count_ends(split: Split, model: Model) -> bool:
    """With a layer pattern neither the embedding nor the loss counts as a layer."""
    return not split.counted or model.layer_pattern is None


@rule(
    "hybrid-mtp-last",
    because="{model.title} has its layers by pattern and computes MTP with the loss, but layout {split.layout} has "
    "them apart",
    source=megatron(f"{HYBRID}/hybrid_model.py (mtp_process)"),
)
def pattern_keeps_mtp_last(split: Split, model: Model) -> bool:
    """With a layer pattern, the MTP layers are in the last stage."""
    if model.layer_pattern is None or split.layout is None:
        return True
    return all("m" not in stage for stage in expand_layout(split.layout)[:-1])


@rule(
    "hybrid-no-ep-overlap",
    because="EP overlap pairs the two halves of a layer, and the layer pattern of {model.title} keeps them apart",
    source=megatron(
        f"{HYBRID}/hybrid_model.py (no build_schedule_plan in 0.19.2, groups of layers since; issue 5854)"
    ),
)
def patterns_do_not_overlap(ep_overlap: bool, model: Model) -> bool:
    """With a layer pattern there is no EP overlap."""
    return not ep_overlap or model.layer_pattern is None


@rule(
    "hybrid-no-layer-offload",
    because="the stack that runs the layer pattern of {model.title} offloads no layers, so "
    "activation_offload_layers = {activation_offload_layers} would change nothing",
    source=megatron(f"{HYBRID}/hybrid_block.py"),
)
def patterns_do_not_offload_layers(activation_offload_layers: int, model: Model) -> bool:
    """With a layer pattern no layers are offloaded."""
    return activation_offload_layers == 0 or model.layer_pattern is None
