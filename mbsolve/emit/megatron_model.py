"""A model card as flags of Megatron-LM: the architecture alone.

What no card holds (base and scaling of the rotary embedding, weights of the router's losses, the activation of an
ungated FFN) is left to whoever launches.
"""

from __future__ import annotations

from itertools import groupby

from mbsolve.emit.hybrid import marked_pattern
from mbsolve.emit.words import Words, put
from mbsolve.models.card import Model

__all__ = ["PROGRAMS", "architecture", "program"]

PROGRAMS = ("pretrain_gpt.py", "pretrain_hybrid.py")


def program(model: Model) -> str:
    """The script that trains a model."""
    return PROGRAMS[model.layer_pattern is not None]


def architecture(model: Model, seq_len: int, layout: str | None = None) -> Words:
    """The flags of a model.

    Parameters
    ----------
    seq_len : tokens of a sequence, which rotary embeddings must reach.
    layout : the pipeline layout, which a layer pattern takes in.
    """
    out: Words = []
    if model.layer_pattern is None:
        put(out, "--num-layers", model.num_layers)
    put(out, "--hidden-size", model.hidden_size)
    put(out, "--ffn-hidden-size", model.ffn_hidden_size or model.moe_ffn_hidden_size)
    put(out, "--num-attention-heads", model.num_attention_heads)
    put(out, "--vocab-size", model.vocab_size)
    put(out, "--swiglu", model.gated_mlp)
    put(out, "--normalization", None if model.norm_bias else "RMSNorm")
    put(out, "--disable-bias-linear", not model.linear_bias)
    put(out, "--add-qkv-bias", model.qkv_bias)
    put(out, "--qk-layernorm", model.qk_layernorm)
    put(out, "--untie-embeddings-and-output-weights", not model.tie_embeddings)
    put(out, "--attention-output-gate", model.attention_output_gate)
    put(out, "--softmax-type", "learnable" if model.attention_sink else None)
    _positions(out, model, seq_len)
    _attention(out, model)
    _experts(out, model)
    _mixers(out, model, layout)
    # A pattern has its MTP blocks in itself.
    put(out, "--mtp-num-layers", None if model.layer_pattern else model.mtp_num_layers or None)
    return out


def _positions(out: Words, model: Model, seq_len: int) -> None:
    if model.learned_positions is not None:
        put(out, "--position-embedding-type", "learned_absolute")
        put(out, "--max-position-embeddings", model.learned_positions)
        return
    # Latent attention has a rotary embedding of its own, whose kind is another flag.
    kind = "rope" if model.mla else model.rotary
    put(out, "--position-embedding-type", kind)
    put(out, "--rope-type", model.rotary if model.mla else None)
    put(out, "--max-position-embeddings", seq_len)


def _attention(out: Words, model: Model) -> None:
    if model.mla:
        put(out, "--multi-latent-attention", True)
        put(out, "--q-lora-rank", model.q_lora_rank)
        put(out, "--kv-lora-rank", model.kv_lora_rank)
        put(out, "--qk-head-dim", model.qk_nope_head_dim)
        put(out, "--qk-pos-emb-head-dim", model.qk_rope_head_dim)
        put(out, "--v-head-dim", model.v_head_dim)
        return
    put(out, "--kv-channels", model.head_dim)
    put(out, "--group-query-attention", True)
    put(out, "--num-query-groups", model.num_query_groups)
    if model.sliding_window is not None:
        # The token itself is seen beside the window.
        put(out, "--window-size", f"({model.sliding_window - 1},0)")
        put(out, "--window-attn-skip-freq", model.window_period)


def _experts(out: Words, model: Model) -> None:
    if not model.is_moe:
        return
    put(out, "--num-experts", model.num_experts)
    put(out, "--moe-router-topk", model.moe_topk)
    put(out, "--moe-ffn-hidden-size", model.moe_ffn_hidden_size)
    put(out, "--moe-latent-size", model.moe_latent_size)
    put(out, "--moe-shared-expert-intermediate-size", model.shared_expert_ffn_hidden_size)
    put(out, "--moe-shared-expert-gate", model.shared_expert_gate)
    put(out, "--moe-router-score-function", model.router_score_function)
    put(out, "--moe-router-num-groups", model.router_num_groups)
    put(out, "--moe-router-group-topk", model.router_group_topk)
    put(out, "--moe-grouped-gemm", True)
    if not model.aux_loss:
        put(out, "--moe-router-load-balancing-type", "none")
    if model.layer_pattern is None:
        kinds = [int(kind.ffn == "moe") for kind in model.layers()]
        runs = [f"[{kind}]*{len(list(run))}" for kind, run in groupby(kinds)]
        put(out, "--moe-layer-freq", f"({'+'.join(runs)})" if 0 in kinds else None)


def _mixers(out: Words, model: Model, layout: str | None) -> None:
    if model.layer_pattern is not None:
        put(out, "--hybrid-layer-pattern", marked_pattern(model.layer_pattern, layout))
        put(out, "--mamba-state-dim", model.mamba_state_dim)
        put(out, "--mamba-num-heads", model.mamba_num_heads)
        put(out, "--mamba-head-dim", model.mamba_head_dim)
        put(out, "--mamba-num-groups", model.mamba_num_groups)
    if model.linear_attention_period is not None:
        put(out, "--experimental-attention-variant", "gated_delta_net")
        put(out, "--linear-attention-freq", model.linear_attention_period)
        put(out, "--linear-conv-kernel-dim", model.linear_conv_kernel)
        put(out, "--linear-key-head-dim", model.linear_key_head_dim)
        put(out, "--linear-value-head-dim", model.linear_value_head_dim)
        put(out, "--linear-num-key-heads", model.linear_num_key_heads)
        put(out, "--linear-num-value-heads", model.linear_num_value_heads)
