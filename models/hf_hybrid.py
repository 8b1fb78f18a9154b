"""Checkpoints of Mamba hybrids, read as the fields of a model card."""

from __future__ import annotations

import reprlib
from typing import Final

from mbsolve.models.hf_config import Config, Fields
from mbsolve.models.kinds import MTP

__all__ = ["nemotron_h"]

BLOCKS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Names of layers where a list says them, as symbols of a pattern."""


def _pattern(config: Config, text: str, listed: str) -> str:
    """A pattern that is said in symbols, or layer by layer."""
    said = config.raw.get(text)
    if isinstance(said, str) and said:
        return said
    if said is not None:
        config.refuse(f"{text} is {reprlib.repr(said)}, but it must be a text of layer symbols")
    names = config.items(listed)
    if not names:
        config.refuse(f"the layers are missing: neither {text} nor {listed} says them")
    for name in names:
        if not isinstance(name, str) or name not in BLOCKS:
            config.refuse(f"{listed} has {reprlib.repr(name)}, but only {', '.join(BLOCKS)} are supported")
    return "".join(BLOCKS[str(name)] for name in names)


def nemotron_h(config: Config) -> Fields:
    """Return the fields of a Nemotron-H: Mamba-2, attention, dense and MoE layers, experts perhaps in a latent."""
    for bias in ("use_bias", "attention_bias", "mlp_bias", "mamba_proj_bias"):
        config.only(bias, False)
    config.only("use_conv_bias", True)
    pattern = _pattern(config, "hybrid_override_pattern", "layers_block_type")
    blocks = config.whole("num_nextn_predict_layers", 0, least=0)
    mtp = _pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if blocks else ""
    said = pattern + mtp
    heads = config.whole("num_attention_heads")
    fields: Fields = {
        "num_layers": config.whole("num_hidden_layers", len(pattern)),
        "hidden_size": config.whole("hidden_size"),
        "ffn_hidden_size": config.whole("intermediate_size") if "-" in said else None,
        "num_attention_heads": heads,
        "num_query_groups": config.whole("num_key_value_heads", heads),
        "head_dim": config.whole("head_dim" if config.raw.get("head_dim") else "attention_head_dim"),
        "vocab_size": config.whole("vocab_size"),
        "attention": "gqa",
        "rotary": "none",
        "tie_embeddings": config.flag("tie_word_embeddings"),
        "gated_mlp": False,
        "qk_layernorm": False,
        "layer_pattern": MTP.join((pattern, *[mtp] * blocks)),
        "mtp_num_layers": blocks,
    }
    return fields | (_mamba(config) if "M" in said else {}) | (_experts(config) if "E" in said else {})


def _mamba(config: Config) -> Fields:
    return {
        "mamba_state_dim": config.whole("ssm_state_size"),
        "mamba_num_heads": config.whole("mamba_num_heads"),
        "mamba_head_dim": config.whole("mamba_head_dim"),
        "mamba_num_groups": config.whole("n_groups"),
        "mamba_conv_kernel": config.whole("conv_kernel"),
    }


def _experts(config: Config) -> Fields:
    latent, groups = config.raw.get("moe_latent_size"), config.whole("n_group", 1)
    shared = config.whole("n_shared_experts", 1, least=0)
    fields: Fields = {
        "num_experts": config.whole("n_routed_experts"),
        "moe_topk": config.whole("num_experts_per_tok"),
        "moe_ffn_hidden_size": config.whole("moe_intermediate_size"),
        "moe_latent_size": None if latent is None else config.whole("moe_latent_size"),
        "shared_expert_ffn_hidden_size": config.whole("moe_shared_expert_intermediate_size")
        if shared
        else None,
        "router_score_function": "sigmoid",
        "aux_loss": True,
    }
    if groups > 1:
        fields |= {"router_num_groups": groups, "router_group_topk": config.whole("topk_group")}
    return fields
