"""A job and a plan as a request to the driver: what mbsolve would launch, and for Bridge the architecture of the card."""

from __future__ import annotations

from typing import Any

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.environment import environment
from mbsolve.emit.megatron_bridge import overrides
from mbsolve.emit.megatron_lm import flags
from mbsolve.models.card import Model


def request(job: Job, plan: Plan, *, direct: bool = True) -> dict[str, Any]:
    """What `tests/oracle/driver.py` reads."""
    major, minor = job.machine.compute_capability
    machine = {
        "device": [job.machine.device_name, major, minor],
        "gpus": job.gpus,
        "environment": environment(job, plan),
    }
    if job.target == "megatron-lm":
        return {**machine, "flags": [*flags(job, plan), *_wished_flags(job)]}
    return {
        **machine,
        "architecture": architecture(job.model),
        "vocabulary": job.model.vocab_size,
        "overrides": [*overrides(job, plan), *_wishes(job)],
        "direct": direct,
    }


def _wishes(job: Job) -> list[str]:
    """Settings that the launch lines leave out beside what excludes them: the rules judge what was asked for."""
    out = [f"model.fp8_output_proj={str(job.settings.fp8_output_proj).lower()}"]
    if job.model.is_moe:
        out.append(f"model.moe_shared_expert_overlap={str(job.settings.shared_expert_overlap).lower()}")
    return out


def _wished_flags(job: Job) -> list[str]:
    """The same for flags, of which a second one of its kind does no harm."""
    out = ["--fp8-output-proj"] if job.settings.fp8_output_proj else []
    if job.model.is_moe and job.settings.shared_expert_overlap:
        out.append("--moe-shared-expert-overlap")
    return out


def architecture(model: Model) -> dict[str, Any]:
    """The card in the fields of Bridge's model providers."""
    out: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size or model.moe_ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "kv_channels": model.head_dim,
        "normalization": "RMSNorm",
        "gated_linear_unit": model.gated_mlp,
        "activation_func": "silu",
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias,
        "qk_layernorm": model.qk_layernorm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": model.tie_embeddings,
        "mtp_num_layers": model.mtp_num_layers or None,
    }
    if not model.mla:
        out["num_query_groups"] = model.num_query_groups
    else:
        out |= {
            "multi_latent_attention": True,
            "q_lora_rank": model.q_lora_rank,
            "kv_lora_rank": model.kv_lora_rank,
            "qk_head_dim": model.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.qk_rope_head_dim,
            "v_head_dim": model.v_head_dim,
            "rope_type": model.rotary,
        }
    if model.is_moe:
        out |= {
            "num_moe_experts": model.num_experts,
            "moe_router_topk": model.moe_topk,
            "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
            "moe_latent_size": model.moe_latent_size,
            "moe_shared_expert_intermediate_size": model.shared_expert_ffn_hidden_size,
            "moe_router_num_groups": model.router_num_groups,
            "moe_router_group_topk": model.router_group_topk,
            "moe_router_score_function": model.router_score_function,
            "moe_router_dtype": "fp32",
            "moe_grouped_gemm": True,
        }
    return out | _mixers(model)


def _mixers(model: Model) -> dict[str, Any]:
    """What says which layer is which."""
    if model.layer_pattern is not None:
        return {
            # The launch lines bring it again, with its stages marked.
            "hybrid_layer_pattern": model.layer_pattern,
            "mamba_state_dim": model.mamba_state_dim,
            "mamba_num_heads": model.mamba_num_heads,
            "mamba_head_dim": model.mamba_head_dim,
            "mamba_num_groups": model.mamba_num_groups,
        }
    out: dict[str, Any] = {}
    if model.is_moe:
        out["moe_layer_freq"] = [int(kind.ffn == "moe") for kind in model.layers()]
    if model.linear_attention_period is not None:
        out |= {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": model.linear_attention_period,
            "linear_conv_kernel_dim": model.linear_conv_kernel,
            "linear_key_head_dim": model.linear_key_head_dim,
            "linear_value_head_dim": model.linear_value_head_dim,
            "linear_num_key_heads": model.linear_num_key_heads,
            "linear_num_value_heads": model.linear_num_value_heads,
            "attention_output_gate": model.attention_output_gate,
        }
    return out
