"""Rules of dropout."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, megatron


def _whole(cuda_graph_impl: str, *scopes: bool) -> bool:
    """Whether graphs capture whole layers, or everything."""
    return cuda_graph_impl == "full_iteration" or (cuda_graph_impl != "none" and not any(scopes))


@rule(
    "cg-dropout-recompute",
    because="an attention dropout of {job.settings.attention_dropout} draws random numbers, which {cuda_graph_impl} graphs "
    "that hold the attention cannot draw again for the recompute of core_attn",
    source=megatron(f"{CONFIG}:2883"),
)
def captured_attention_is_not_replayed_with_dropout(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe: bool,
    graph_moe_router: bool,
    graph_moe_preprocess: bool,
    recompute_core_attn: bool,
    job: Job,
) -> bool:
    """With dropout, attention inside a graph is not recomputed, and neither is a captured FFN."""
    if not job.settings.attention_dropout or cuda_graph_impl == "none" or not recompute_core_attn:
        return True
    others = (graph_mamba, graph_mlp, graph_moe, graph_moe_router, graph_moe_preprocess)
    return not (graph_attn or _whole(cuda_graph_impl, graph_attn, *others))


@rule(
    "cg-dropout-recompute",
    because="a hidden dropout of {job.settings.hidden_dropout} draws random numbers, which {cuda_graph_impl} graphs that "
    "hold the FFN cannot draw again for the recompute of mlp ({recompute_mlp}) or moe ({recompute_moe})",
    source=megatron(f"{CONFIG}:2899"),
)
def captured_ffn_is_not_replayed_with_dropout(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe: bool,
    graph_moe_router: bool,
    graph_moe_preprocess: bool,
    recompute_mlp: bool,
    recompute_moe: bool,
    job: Job,
) -> bool:
    """With dropout, attention inside a graph is not recomputed, and neither is a captured FFN."""
    if not job.settings.hidden_dropout or cuda_graph_impl == "none":
        return True
    scopes = (graph_attn, graph_mamba, graph_mlp, graph_moe, graph_moe_router, graph_moe_preprocess)
    whole = _whole(cuda_graph_impl, *scopes)
    return not ((recompute_mlp and (whole or graph_mlp)) or (recompute_moe and (whole or graph_moe)))


@rule(
    "dropout-masks-unpriced",
    because="a hidden dropout of {job.settings.hidden_dropout} keeps masks, which are not in the memory of this verdict",
    source=megatron("megatron/core/fusions/fused_bias_dropout.py"),
    kind="warning",
)
def masks_are_not_priced(job: Job) -> bool:
    """Hidden dropout keeps masks that are not priced."""
    return not job.settings.hidden_dropout
