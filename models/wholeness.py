"""What the fields of a model owe each other: one check for each part of a card, each error one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mbsolve.models.kinds import pattern_fault

if TYPE_CHECKING:
    from mbsolve.models.card import Model

__all__ = ["CHECKS"]

LINEAR_ATTENTION = (
    "linear_conv_kernel",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
MAMBA = ("mamba_state_dim", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_conv_kernel")


def _attention_is_whole(model: Model) -> None:
    """Latent attention has its widths, grouped attention its groups."""
    latent = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    if model.mla:
        if model.qkv_bias:
            raise ValueError("qkv_bias is true, but it is not allowed with attention 'mla'.")
        for field in latent:
            if getattr(model, field) is None:
                raise ValueError(f"{field} is missing, but attention 'mla' needs it.")
        return
    for field in (*latent, "q_lora_rank"):
        if getattr(model, field) is not None:
            raise ValueError(
                f"{field} is {getattr(model, field)}, but it is allowed with attention 'mla' only."
            )
    if model.num_attention_heads % model.num_query_groups:
        raise ValueError(
            f"num_query_groups is {model.num_query_groups}, but it must divide "
            f"num_attention_heads = {model.num_attention_heads}."
        )


def _ffn_is_whole(model: Model) -> None:
    """Experts come with their sizes, dense layers with theirs."""
    experts = model.num_experts
    if experts is None:
        routed = ("moe_topk", "moe_ffn_hidden_size", "moe_latent_size", "shared_expert_ffn_hidden_size")
        for field in (*routed, "router_num_groups", "router_group_topk", "first_k_dense"):
            if getattr(model, field):
                raise ValueError(
                    f"{field} is {getattr(model, field)}, but it is allowed with num_experts only."
                )
    else:
        for field in ("moe_topk", "moe_ffn_hidden_size"):
            if getattr(model, field) is None:
                raise ValueError(f"{field} is missing, but num_experts = {experts} needs it.")
        if model.moe_topk is not None and model.moe_topk > experts:
            raise ValueError(f"moe_topk is {model.moe_topk}, but at most num_experts = {experts} is allowed.")
    if model.first_k_dense >= model.num_layers:
        raise ValueError(
            f"first_k_dense is {model.first_k_dense}, but it must be less than num_layers = {model.num_layers}."
        )
    dense = experts is None or model.first_k_dense > 0
    if model.layer_pattern is not None:
        dense = "-" in model.layer_pattern
    if model.ffn_hidden_size is None and dense:
        raise ValueError("ffn_hidden_size is missing, but some layers have a dense FFN.")
    if model.shared_expert_gate and model.shared_expert_ffn_hidden_size is None:
        raise ValueError("shared_expert_gate is true, but it needs shared_expert_ffn_hidden_size.")


def _routing_is_whole(model: Model) -> None:
    """Group-limited routing and windows are described in full."""
    groups, chosen = model.router_num_groups, model.router_group_topk
    if (groups is None) != (chosen is None):
        raise ValueError(
            "router_num_groups and router_group_topk must be given together, but one is missing."
        )
    if groups is not None and chosen is not None and model.num_experts is not None:
        if model.num_experts % groups:
            raise ValueError(
                f"router_num_groups is {groups}, but it must divide num_experts = {model.num_experts}."
            )
        if chosen > groups:
            raise ValueError(
                f"router_group_topk is {chosen}, but at most router_num_groups = {groups} is allowed."
            )
    if model.window_period is not None and model.sliding_window is None:
        raise ValueError(f"window_period is {model.window_period}, but it needs sliding_window.")


def _mixers_are_whole(model: Model) -> None:
    """Hybrid layers have the sizes of their mixers, and only those."""
    pattern, period = model.layer_pattern, model.linear_attention_period
    if pattern is not None:
        fault = pattern_fault(pattern, model.num_layers, model.mtp_num_layers)
        if fault is not None:
            raise ValueError(fault)
        if ("E" in pattern) != model.is_moe:
            raise ValueError(f"layer_pattern is {pattern!r}, but E goes with num_experts, and only with it.")
    for fields, there, owner in (
        (MAMBA, pattern is not None and "M" in pattern, "an M in layer_pattern"),
        (LINEAR_ATTENTION, period is not None, "linear_attention_period"),
    ):
        for field in fields:
            if (getattr(model, field) is not None) != there:
                raise ValueError(
                    f"{field} is {getattr(model, field)}, but it goes with {owner}, and only with it."
                )
    for field, divisor in (
        ("mamba_num_heads", "mamba_num_groups"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        whole, part = getattr(model, field), getattr(model, divisor)
        if whole is not None and whole % part:
            raise ValueError(f"{divisor} is {part}, but it must divide {field} = {whole}.")
    if model.hybrid:
        for field in ("mla", "sliding_window", "linear_bias"):
            if getattr(model, field):
                raise ValueError(f"{field} is {getattr(model, field)}, but a hybrid model has none.")
    if pattern is not None and (period is not None or model.first_k_dense):
        raise ValueError(
            "layer_pattern says every layer, so linear_attention_period and first_k_dense must go."
        )
    if model.attention_output_gate and model.mla:
        raise ValueError("attention_output_gate is true, but it is allowed with attention 'gqa' only.")


CHECKS: Final = (_attention_is_whole, _ffn_is_whole, _routing_is_whole, _mixers_are_whole)
