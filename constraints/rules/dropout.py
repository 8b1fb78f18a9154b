"""Rules of dropout."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, megatron

ATTENTION = megatron(f"{CONFIG}:2883")
FFN = megatron(f"{CONFIG}:2899")
AGAIN = "draws random numbers, which {cuda_graph_impl} graphs cannot draw again for the recompute of "


def _captured(own: bool, cuda_graph_impl: str, *others: bool) -> bool:
    """Whether graphs hold a part: by its own scope, by none, which means whole layers, or with everything."""
    # moe_preprocess goes with moe_router, and moe is refused anyway: neither need be asked for.
    whole = cuda_graph_impl == "full_iteration" or not (own or any(others))
    return cuda_graph_impl != "none" and (own or whole)


@rule(
    "cg-dropout-recompute",
    because="an attention dropout of {job.settings.attention_dropout} " + AGAIN + "core_attn",
    source=ATTENTION,
)
def captured_attention_is_not_replayed_with_dropout(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe_router: bool,
    recompute_core_attn: bool,
    job: Job,
) -> bool:
    """With dropout, neither attention nor an FFN inside a graph is recomputed."""
    if not job.settings.attention_dropout or not recompute_core_attn:
        return True
    return not _captured(graph_attn, cuda_graph_impl, graph_mamba, graph_mlp, graph_moe_router)


@rule(
    "cg-dropout-recompute",
    because="a hidden dropout of {job.settings.hidden_dropout} " + AGAIN + "mlp",
    source=FFN,
)
def captured_mlp_is_not_replayed_with_dropout(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe_router: bool,
    recompute_mlp: bool,
    job: Job,
) -> bool:
    """With dropout, neither attention nor an FFN inside a graph is recomputed."""
    if not job.settings.hidden_dropout or not recompute_mlp:
        return True
    return not _captured(graph_mlp, cuda_graph_impl, graph_attn, graph_mamba, graph_moe_router)


@rule(
    "cg-dropout-recompute",
    because="a hidden dropout of {job.settings.hidden_dropout} " + AGAIN + "moe",
    source=FFN,
)
def captured_experts_are_not_replayed_with_dropout(
    cuda_graph_impl: str,
    graph_attn: bool,
    graph_mamba: bool,
    graph_mlp: bool,
    graph_moe_router: bool,
    recompute_moe: bool,
    job: Job,
) -> bool:
    """With dropout, neither attention nor an FFN inside a graph is recomputed."""
    if not job.settings.hidden_dropout or not recompute_moe:
        return True
    return not _captured(False, cuda_graph_impl, graph_attn, graph_mamba, graph_mlp, graph_moe_router)


@rule(
    "dropout-masks-unpriced",
    because="a hidden dropout of {job.settings.hidden_dropout} keeps masks, which are not in the memory of this verdict",
    source=megatron("megatron/core/fusions/fused_bias_dropout.py"),
    kind="warning",
)
def masks_are_not_priced(job: Job) -> bool:
    """Hidden dropout keeps masks that are not priced."""
    return not job.settings.hidden_dropout
