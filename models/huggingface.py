"""The ``config.json`` of a Hugging Face checkpoint, read as the fields of a model card."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from pathlib import Path

from mbsolve.cards import CardError, did_you_mean
from mbsolve.models.hf_config import Config, Fields
from mbsolve.models.hf_hybrid import nemotron_h

__all__ = ["read_config"]


def _common(config: Config) -> Fields:
    return {
        "num_layers": config.whole("num_hidden_layers"),
        "hidden_size": config.whole("hidden_size"),
        "ffn_hidden_size": config.whole("intermediate_size"),
        "num_attention_heads": config.whole("num_attention_heads"),
        "vocab_size": config.whole("vocab_size"),
        "tie_embeddings": config.flag("tie_word_embeddings"),
        "qk_layernorm": False,
    }


def _grouped(config: Config, head_dim: int | None = None, groups: int | None = None) -> Fields:
    """Grouped-query attention; ``head_dim`` and ``groups`` are what the architecture takes for absent ones."""
    fields = _common(config)
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    if head_dim is None and config.raw.get("head_dim") is None and hidden % heads:
        config.refuse(
            f"hidden_size is {hidden}, but without head_dim num_attention_heads = {heads} must divide it"
        )
    width = config.whole("head_dim", head_dim or max(hidden // heads, 1))
    return {
        **fields,
        "attention": "gqa",
        "head_dim": width,
        "num_query_groups": config.whole("num_key_value_heads", groups),
    }


def _layer_types(config: Config) -> Fields:
    """The window of a model that names the kind of every layer: on all of them, or all but every n-th."""
    kinds, layers = config.items("layer_types"), config.whole("num_hidden_layers")
    if len(kinds) != layers:
        config.refuse(f"layer_types has {len(kinds)} entries, but num_hidden_layers is {layers}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            config.refuse(
                f"layer_types has {reprlib.repr(kind)}, but only full_attention and sliding_attention are supported"
            )
    windowed = [kind == "sliding_attention" for kind in kinds]
    if not any(windowed):
        return {}
    fields: Fields = {"sliding_window": config.whole("sliding_window")}
    if all(windowed):
        return fields
    period = windowed.index(False) + 1
    if period == 1 or windowed != [bool((i + 1) % period) for i in range(layers)]:
        config.refuse(
            "layer_types mixes the kinds, but only a window on all layers or on all but every n-th is supported"
        )
    return {**fields, "window_period": period}


def _qwen_window(config: Config) -> Fields:
    """Qwen's optional window, on the layers from ``max_window_layers`` on."""
    if not config.flag("use_sliding_window"):
        return {}
    if config.items("layer_types"):
        return _layer_types(config)
    first, layers = config.whole("max_window_layers", least=0), config.whole("num_hidden_layers")
    if first >= layers:
        return {}
    if first:
        config.refuse(
            f"use_sliding_window is true from layer {first} on (max_window_layers), but only a window on all layers "
            "is supported"
        )
    return {"sliding_window": config.whole("sliding_window")}


def _experts(config: Config, count: str, width: str, score: str) -> Fields:
    return {
        "num_experts": config.whole(count),
        "moe_topk": config.whole("num_experts_per_tok"),
        "moe_ffn_hidden_size": config.whole(width),
        "router_score_function": score,
        "aux_loss": True,
    }


def _leading_dense_and_shared(config: Config) -> Fields:
    """What DeepSeek and GLM-4.5 have beside routed experts: leading dense layers, shared experts, groups, MTP."""
    width, shared = config.whole("moe_intermediate_size"), config.whole("n_shared_experts", 0, least=0)
    groups = config.whole("n_group", 1)
    config.only("moe_layer_freq", 1)
    fields: Fields = {
        "first_k_dense": config.whole("first_k_dense_replace", 0, least=0),
        "shared_expert_ffn_hidden_size": shared * width or None,
        "mtp_num_layers": config.whole("num_nextn_predict_layers", 0, least=0),
    }
    if groups > 1:
        fields |= {"router_num_groups": groups, "router_group_topk": config.whole("topk_group")}
    return fields


def _llama(config: Config) -> Fields:
    attention, mlp = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention != mlp:
        config.refuse(
            f"attention_bias is {json.dumps(attention)} and mlp_bias is {json.dumps(mlp)}, but only both or neither "
            "are supported"
        )
    window = _layer_types(config) if config.items("layer_types") else {}
    return {
        **_grouped(config, groups=config.whole("num_attention_heads")),
        "linear_bias": attention,
        **window,
    }


def _qwen2(config: Config) -> Fields:
    return {**_grouped(config), "qkv_bias": True, **_qwen_window(config)}


def _qwen3(config: Config) -> Fields:
    config.only("attention_bias", False)
    return {**_grouped(config, head_dim=128), "qk_layernorm": True, **_qwen_window(config)}


def _qwen3_moe(config: Config) -> Fields:
    config.only("attention_bias", False)
    config.only("decoder_sparse_step", 1)
    dense = config.items("mlp_only_layers")
    if dense != list(range(len(dense))) or any(isinstance(layer, bool) for layer in dense):
        config.refuse(
            f"mlp_only_layers is {reprlib.repr(dense)}, but only the leading layers [0, 1, ...] are supported"
        )
    return {
        **_grouped(config),
        **_experts(config, "num_experts", "moe_intermediate_size", "softmax"),
        **_qwen_window(config),
        "first_k_dense": len(dense),
        "qk_layernorm": True,
    }


def _mixtral(config: Config) -> Fields:
    window = config.raw.get("sliding_window") is not None
    return {
        **_grouped(config),
        **_experts(config, "num_local_experts", "intermediate_size", "softmax"),
        **({"sliding_window": config.whole("sliding_window")} if window else {}),
    }


def _gpt_oss(config: Config) -> Fields:
    config.only("attention_bias", True)
    if config.items("layer_types"):
        window = _layer_types(config)
    else:
        window = {"sliding_window": config.whole("sliding_window", 128), "window_period": 2}
    return {
        **_grouped(config, head_dim=64),
        **_experts(config, "num_local_experts", "intermediate_size", "softmax"),
        **window,
        "rotary": "yarn",
        "linear_bias": True,
        "attention_sink": True,
        # Megatron-Bridge trains it without load balancing, whatever the coefficient in the file.
        "aux_loss": False,
    }


def _glm4_moe(config: Config) -> Fields:
    return {
        **_grouped(config),
        **_experts(config, "n_routed_experts", "moe_intermediate_size", "sigmoid"),
        **_leading_dense_and_shared(config),
        "qk_layernorm": config.flag("use_qk_norm"),
        "qkv_bias": config.flag("attention_bias"),
    }


def _deepseek(config: Config, score: str) -> Fields:
    config.only("attention_bias", False)
    heads, value = config.whole("num_attention_heads"), config.whole("v_head_dim")
    query = config.raw.get("q_lora_rank")
    return {
        **_common(config),
        **_experts(
            config,
            "n_routed_experts",
            "moe_intermediate_size",
            config.choice("scoring_func", ("softmax", "sigmoid"), score),
        ),
        **_leading_dense_and_shared(config),
        "attention": "mla",
        # Megatron's latent attention takes this kind also where nothing is scaled.
        "rotary": "yarn",
        "num_query_groups": heads,
        "head_dim": value,
        "q_lora_rank": None if query is None else config.whole("q_lora_rank"),
        "kv_lora_rank": config.whole("kv_lora_rank"),
        "qk_nope_head_dim": config.whole("qk_nope_head_dim"),
        "qk_rope_head_dim": config.whole("qk_rope_head_dim"),
        "v_head_dim": value,
        "qk_layernorm": True,
    }


ARCHITECTURES: dict[str, Callable[[Config], Fields]] = {
    "deepseek_v2": lambda config: _deepseek(config, "softmax"),
    "deepseek_v3": lambda config: _deepseek(config, "sigmoid"),
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "kimi_k2": lambda config: _deepseek(config, "sigmoid"),
    "llama": _llama,
    "mixtral": _mixtral,
    "nemotron_h": nemotron_h,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}


def _read_json(path: Path, where: str) -> dict[str, object]:
    try:
        raw = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise CardError(f"{where} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CardError(f"{where} is not text in UTF-8.") from error
    except json.JSONDecodeError as error:
        raise CardError(f"{where} is not valid JSON at line {error.lineno}: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise CardError(f"{where} holds a value that cannot be read: {error}.") from error
    if not isinstance(raw, dict):
        raise CardError(f"{where} must be a mapping from field names to values.")
    return raw


def read_config(path: Path) -> dict[str, object]:
    """Read the ``config.json`` of a Hugging Face checkpoint as the fields of a model card.

    Parameters
    ----------
    path
        The file. The model is named after it, or after its folder if it is called ``config.json``.

    Returns
    -------
    dict
        What `mbsolve.models.card.parse_model` takes. Fields that change no size and no cost are not looked at.

    Raises
    ------
    CardError
        One sentence: the file is no JSON mapping, its ``model_type`` is not supported, a field is missing or of a
        wrong type, or the architecture has a variant that a card cannot say.
    """
    where = f"The config {path}"
    config = Config(_read_json(path, where), where)
    kind = config.present("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        near = did_you_mean(kind, ARCHITECTURES) if isinstance(kind, str) else ""
        raise CardError(
            f"{where}: model_type is {reprlib.repr(kind)}, but supported are {', '.join(ARCHITECTURES)}{near or '.'}"
        )
    name = (path.resolve().parent.name if path.name == "config.json" else path.stem) or kind
    source = f"config.json of a Hugging Face checkpoint, model_type {kind}"
    return {"name": name, "title": name, "source": source, **ARCHITECTURES[kind](config)}
