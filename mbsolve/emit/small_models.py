"""Models that a row describes by the launcher flags of its run: those of continuous integration and of releases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mbsolve.emit.habits import Habits

__all__ = ["Flagged", "Unmodelled", "flagged_model"]

# The launcher's own defaults (megatron/training/arguments.py): the vocabulary is that of the tokenizer, and is
# padded to a multiple of 128 x TP.
VOCABULARIES: Final[Mapping[str | None, int]] = {
    None: 50257,
    "nemotron_2_256k.model": 256000,
    "tokenizer.model": 32000,
}
PADDED_TO: Final = 128
NOT_DECODERS: Final = (
    ("T5", "an encoder and a decoder"),
    ("BERT", "an encoder"),
    ("MIMO", "several towers"),
)
FUSED: Final = ("flash", "fused")
PATTERN: Final = re.compile(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)")


class Unmodelled(Exception):
    """A configuration has something that is not modelled; the message names it."""


@dataclass(frozen=True)
class Flagged:
    """What the flags of a run say.

    Parameters
    ----------
    model : dimensions, with a name.
    settings : fields of the job's settings.
    habits : what its memory has that planned runs have not.
    no_peak : why its peak is not modelled; None where it is.
    """

    model: dict[str, Any]
    settings: dict[str, Any]
    habits: Habits
    no_peak: str | None


def flagged_model(row: Mapping[str, Any], arch: Mapping[str, Any]) -> Flagged:
    """Read the launcher flags that a row keeps.

    Raises
    ------
    Unmodelled
        naming the first thing that is not modelled.
    """
    for word, what in NOT_DECODERS:
        if word in str(row["model"]):
            raise Unmodelled(f"the model has {what}")
    if arch.get("hybrid_layer_pattern"):
        raise Unmodelled("a small hybrid model whose state sizes are not recorded")
    if arch.get("optimizer") not in (None, "adam"):
        raise Unmodelled(f"the optimizer {arch['optimizer']} is not modelled")
    for field in ("num_layers", "hidden_size", "num_attention_heads"):
        if not isinstance(arch.get(field), int):
            raise Unmodelled(f"not recorded: {field}")
    wide = arch.get("accumulate_allreduce_grads_in_fp32") or row.get("precision") != "fp16"
    settings = {
        # The launcher's default is fp32 for bf16 weights, and the format of the weights for fp16 ones.
        "grad_dtype": "fp32" if wide and not arch.get("grad_reduce_in_bf16") else "bf16",
        "attention_dropout": _dropout(arch, "attention"),
        "hidden_dropout": _dropout(arch, "hidden"),
    }
    return Flagged(_model(row, arch), settings, _habits(row, arch), _no_peak(arch))


def _dropout(arch: Mapping[str, Any], what: str) -> float:
    value = arch.get(f"{what}_dropout")
    return 0.1 if value is None else float(value)


def _habits(row: Mapping[str, Any], arch: Mapping[str, Any]) -> Habits:
    return Habits(
        deterministic=bool(arch.get("deterministic_mode")),
        local_layers=arch.get("transformer_impl") != "transformer_engine",
        grouped_experts=bool(arch.get("moe_grouped_gemm")),
        optimizer_instances=int(arch.get("num_distributed_optimizer_instances") or 1),
        # The launcher logs memory after the update, and lets the gradients go when the next step begins.
    )


def _no_peak(arch: Mapping[str, Any]) -> str | None:
    """Why the peak is not compared: what is kept for the backward pass depends on kernels that are not modelled."""
    if arch.get("transformer_impl") != "transformer_engine":
        return "layers without Transformer Engine are not modelled"
    if arch.get("attention_backend") not in FUSED and not arch.get("use_flash_attn"):
        # The default backend is not recorded, and an unfused one keeps the score matrices.
        return "attention that is not known to be fused is not modelled"
    if _dropout(arch, "hidden") or _dropout(arch, "attention"):
        return "dropout masks are not modelled"
    if not arch.get("cross_entropy_loss_fusion"):
        return "a loss that is not fused keeps its logits in fp32, which is not modelled"
    return None


def _vocabulary(row: Mapping[str, Any], arch: Mapping[str, Any]) -> int:
    size = arch.get("vocab_size")
    if size is None:
        tokenizer = arch.get("tokenizer_model")
        if tokenizer not in VOCABULARIES:
            raise Unmodelled("not recorded: the vocabulary of a small model")
        size = VOCABULARIES[tokenizer]
    multiple = int(arch.get("make_vocab_size_divisible_by") or PADDED_TO) * int(row.get("tp") or 1)
    return -(-int(size) // multiple) * multiple


def _model(row: Mapping[str, Any], arch: Mapping[str, Any]) -> dict[str, Any]:
    hidden, heads = int(arch["hidden_size"]), int(arch["num_attention_heads"])
    gated, tied = bool(arch.get("swiglu")), not arch.get("untie_embeddings_and_output_weights")
    usual = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    width = int(arch.get("ffn_hidden_size") or usual)
    learned = arch.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    out: dict[str, Any] = {
        "name": str(row["id"]),
        "title": str(row["model"]),
        "num_layers": int(arch["num_layers"]),
        "hidden_size": hidden,
        "ffn_hidden_size": width,
        "num_attention_heads": heads,
        "num_query_groups": int(arch.get("num_query_groups") or heads)
        if arch.get("group_query_attention")
        else heads,
        "head_dim": int(arch.get("kv_channels") or hidden // heads),
        "vocab_size": _vocabulary(row, arch),
        "attention": "mla" if arch.get("multi_latent_attention") else "gqa",
        "tie_embeddings": tied,
        "gated_mlp": gated,
        "qk_layernorm": bool(arch.get("qk_layernorm")),
        "linear_bias": not arch.get("disable_bias_linear"),
        "norm_bias": arch.get("normalization", "LayerNorm") == "LayerNorm",
        "learned_positions": arch.get("max_position_embeddings") if learned else None,
        "mtp_num_layers": int(arch.get("mtp_num_layers") or 0),
    }
    if arch.get("multi_latent_attention"):
        names = {"qk_nope_head_dim": "qk_head_dim", "qk_rope_head_dim": "qk_pos_emb_head_dim"}
        for name in ("q_lora_rank", "kv_lora_rank", "v_head_dim", *names):
            out[name] = arch.get(names.get(name, name))
    return out | (_experts(arch, width) if arch.get("num_experts") else {})


def _experts(arch: Mapping[str, Any], width: int) -> dict[str, Any]:
    where = arch.get("moe_layer_freq")
    match = PATTERN.fullmatch(str(where)) if where is not None else None
    if where not in (None, 1) and match is None:
        raise Unmodelled(f"experts in every layer of {where} are not modelled")
    balancing = str(arch.get("moe_router_load_balancing_type"))
    return {
        "num_experts": int(arch["num_experts"]),
        "moe_topk": int(arch.get("moe_router_topk") or 2),
        "moe_ffn_hidden_size": int(arch.get("moe_ffn_hidden_size") or width),
        "moe_latent_size": arch.get("moe_latent_size"),
        "shared_expert_ffn_hidden_size": arch.get("moe_shared_expert_intermediate_size"),
        "first_k_dense": int(match[1]) if match else 0,
        "aux_loss": balancing.endswith("aux_loss"),
    }
