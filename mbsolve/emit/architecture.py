"""The architecture in a launcher's model section, as dimensions of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mbsolve.errors import InputError
from mbsolve.models.kinds import MTP, SYMBOLS

__all__ = ["ARCHITECTURE", "NotModelledError", "dimensions", "first_dense"]

# Key of the section -> field of a model card, where the value is the same.
SAME: Final[Mapping[str, str]] = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "kv_channels": "head_dim",
    "vocab_size": "vocab_size",
    "gated_linear_unit": "gated_mlp",
    "add_bias_linear": "linear_bias",
    "add_qkv_bias": "qkv_bias",
    "qk_layernorm": "qk_layernorm",
    "attention_output_gate": "attention_output_gate",
    "share_embeddings_and_output_weights": "tie_embeddings",
    "mtp_num_layers": "mtp_num_layers",
}
MLA: Final[Mapping[str, str]] = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
EXPERTS: Final[Mapping[str, str]] = {
    "num_moe_experts": "num_experts",
    "moe_router_topk": "moe_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_latent_size": "moe_latent_size",
    "moe_shared_expert_intermediate_size": "shared_expert_ffn_hidden_size",
    "moe_shared_expert_gate": "shared_expert_gate",
    "moe_router_score_function": "router_score_function",
    "moe_router_num_groups": "router_num_groups",
    "moe_router_group_topk": "router_group_topk",
}
DELTA_NETS: Final[Mapping[str, str]] = {
    "linear_attention_freq": "linear_attention_period",
    "linear_conv_kernel_dim": "linear_conv_kernel",
    "linear_key_head_dim": "linear_key_head_dim",
    "linear_value_head_dim": "linear_value_head_dim",
    "linear_num_key_heads": "linear_num_key_heads",
    "linear_num_value_heads": "linear_num_value_heads",
}
MAMBA: Final[Mapping[str, str]] = {
    name: name for name in ("mamba_state_dim", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups")
}
MAMBA_TAPS: Final = 4
# Keys that are read together with others.
OTHERS: Final = (
    "multi_latent_attention",
    "group_query_attention",
    "moe_layer_freq",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "normalization",
    "position_embedding_type",
    "rope_type",
    "max_position_embeddings",
    "padded_vocab_size",
    "window_size",
    "window_attn_skip_freq",
    "softmax_type",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
)
ARCHITECTURE: Final = (*SAME, *MLA, *EXPERTS, *DELTA_NETS, *MAMBA, *OTHERS)

ROTARY: Final = ("rope", "yarn", "none")

RUN: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
MOST_LAYERS: Final = 10_000


class NotModelledError(ValueError):
    """An architecture that a model card cannot say; the message names the key and what is missing."""


def dimensions(model: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """Fields of a model card.

    Parameters
    ----------
    model
        The section; a key that is None says nothing.
    whole
        Whether the section says everything, so that groups of keys count only where their switch is on.

    Raises
    ------
    NotModelledError
        for layers that no card can say.
    InputError
        for a value that makes no sense.
    """
    said = {key: value for key, value in model.items() if value is not None}
    tables: list[Mapping[str, str]] = [SAME]
    mla = bool(said.get("multi_latent_attention"))
    for table, on in (
        (MLA, mla),
        (EXPERTS, bool(said.get("num_moe_experts"))),
        (DELTA_NETS, bool(said.get("linear_attention_freq"))),
        (MAMBA, bool(said.get("mamba_num_heads"))),
    ):
        if on or not whole:
            tables.append(table)
    out = {field: said[key] for table in tables for key, field in table.items() if key in said}
    if whole and "mamba_num_heads" in out:
        # The mixer has no option for it.
        out["mamba_conv_kernel"] = MAMBA_TAPS
    if whole and mla:
        out["q_lora_rank"] = said.get("q_lora_rank")
    if "multi_latent_attention" in said or whole:
        out["attention"] = "mla" if mla else "gqa"
    if "normalization" in said:
        out["norm_bias"] = said["normalization"] == "LayerNorm"
    if said.get("padded_vocab_size") and "vocab_size" not in out:
        out["vocab_size"] = said["padded_vocab_size"]
    if said.get("position_embedding_type") == "learned_absolute" and said.get("max_position_embeddings"):
        out["learned_positions"] = said["max_position_embeddings"]
    rotary = said.get("position_embedding_type")
    if mla:
        rotary = said.get("rope_type", "yarn" if whole else None)
    elif not whole:
        # Of a model that is known by its name.
        rotary = said.get("rope_type", rotary)
    if rotary in ROTARY:
        out["rotary"] = rotary
    if said.get("softmax_type") == "learnable":
        out["attention_sink"] = True
    if whole:
        _settle(out, mla)
    _experts(said, out, whole)
    _windows(said, out)
    pattern = said.get("hybrid_layer_pattern") or said.get("hybrid_override_pattern")
    if pattern is not None:
        main, *blocks = str(pattern).split(MTP)
        if not set(main + "".join(blocks)) <= {*SYMBOLS, "|"} or any(len(block) != 2 for block in blocks):
            raise NotModelledError("the layer pattern has other symbols than " + " ".join(SYMBOLS))
        out["layer_pattern"] = str(pattern).replace("|", "")
        if whole:
            out.pop("num_layers", None)
            out["num_layers"] = len(str(pattern).replace("|", "").partition("/")[0])
            # The pattern decides, whatever else is said.
            out["mtp_num_layers"] = len(blocks)
    return out


def _settle(out: dict[str, Any], mla: bool) -> None:
    """What one key makes of another where all are said."""
    heads, hidden = out.get("num_attention_heads"), out.get("hidden_size")
    if "ffn_hidden_size" not in out and isinstance(hidden, int):
        out["ffn_hidden_size"] = 4 * hidden
    if mla:
        out.pop("num_query_groups", None)
        out.pop("head_dim", None)
    elif out.get("num_query_groups") is None and heads is not None:
        out["num_query_groups"] = heads
    if out.get("linear_bias"):
        out["qkv_bias"] = False


def _experts(said: Mapping[str, Any], out: dict[str, Any], whole: bool) -> None:
    experts = out.get("num_experts")
    if whole and not experts:
        return
    kind, weight = said.get("moe_router_load_balancing_type"), said.get("moe_aux_loss_coeff")
    if kind is not None and weight is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        weights = weight if isinstance(weight, list) else [weight]
        out["aux_loss"] = any("aux_loss" in str(one) for one in kinds) and any(
            isinstance(one, int | float) and one > 0 for one in weights
        )
    if whole and "moe_ffn_hidden_size" not in out and out.get("ffn_hidden_size") is not None:
        out["moe_ffn_hidden_size"] = out["ffn_hidden_size"]
    frequency = said.get("moe_layer_freq")
    if frequency is not None:
        out["first_k_dense"] = first_dense(frequency)


def first_dense(frequency: Any) -> int:
    """How many leading layers are dense, from the frequency or the list of MoE layers.

    Raises
    ------
    NotModelledError
        if dense and MoE layers take turns.
    """
    layers = frequency
    if isinstance(layers, str):
        layers = _pattern(layers)
    if layers == 1 and not isinstance(layers, bool):
        return 0
    if isinstance(layers, list) and layers and all(one in (0, 1) for one in layers):
        dense = layers.index(1) if 1 in layers else len(layers)
        if all(layers[dense:]):
            return dense
    raise NotModelledError("moe_layer_freq makes dense and MoE layers take turns")


def _pattern(text: str) -> Any:
    """``([0]*3+[1]*58)`` as a list, ``2`` as a number."""
    flat = re.sub(r"\s", "", text)
    while flat[:1] == "(" and flat[-1:] == ")":
        flat = flat[1:-1]
    if re.fullmatch(r"\d{1,4}", flat):
        return int(flat)
    out: list[int] = []
    for term in flat.split("+"):
        found = RUN.fullmatch(term.strip("()"))
        if not found:
            raise InputError(
                f"moe_layer_freq is {text!r}, but it must be a number, or like '([0]*3+[1]*58)'."
            )
        out += [int(one) for one in found[1].split(",")] * int(found[2] or 1)
        if len(out) > MOST_LAYERS:
            raise InputError(f"moe_layer_freq is {text!r}, which is more than {MOST_LAYERS} layers.")
    return out


def _windows(said: Mapping[str, Any], out: dict[str, Any]) -> None:
    size = said.get("window_size")
    if isinstance(size, str):
        found = re.match(r"\(?\s*(\d{1,9})", size)
        size = int(found[1]) if found else None
    if isinstance(size, list):
        size = size[0] if size else None
    if size is None:
        return
    # The token itself is seen beside the window.
    out["sliding_window"] = size + 1 if isinstance(size, int) and not isinstance(size, bool) else size
    period = said.get("window_attn_skip_freq")
    if isinstance(period, str) and period.isdecimal():
        period = int(period[:9])
    if period is not None:
        if isinstance(period, bool) or not isinstance(period, int):
            raise NotModelledError("window_attn_skip_freq lists the windowed layers one by one")
        out["window_period"] = period
