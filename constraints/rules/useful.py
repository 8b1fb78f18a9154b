"""Which switches do something on a model: the others are accepted by the stack and change nothing."""

from __future__ import annotations

from mbsolve.models.card import Model


def has_dense_layers(model: Model) -> bool:
    """Return whether some decoder layer has a dense FFN."""
    return any(kind.ffn == "dense" for kind in model.layers())


def has_shared_experts(model: Model) -> bool:
    """Return whether the MoE layers have shared experts."""
    return model.shared_expert_ffn_hidden_size is not None


def useful_recompute_modules(model: Model) -> tuple[str, ...]:
    """Return the modules whose selective recompute frees something.

    Norms are modules of their own before MLA and before routed experts only; elsewhere Transformer Engine fuses
    them into the linear layer that follows.
    """
    useful = {
        "core_attn": True,
        "mla_up_proj": model.mla,
        "layernorm": model.mla or model.is_moe,
        "mlp": has_dense_layers(model),
        "moe_act": model.is_moe,
        "shared_experts": has_shared_experts(model),
        "moe": model.is_moe,
    }
    return tuple(name for name, does in useful.items() if does)


def useful_offload_modules(model: Model) -> tuple[str, ...]:
    """Return the modules whose fine-grained offload moves something; norms as for recompute."""
    useful = {
        "core_attn": True,
        "attn_proj": True,
        "attn_norm": model.mla,
        "qkv_linear": True,
        "mlp_norm": model.is_moe,
        "expert_fc1": model.is_moe,
        "moe_act": model.is_moe,
    }
    return tuple(name for name, does in useful.items() if does)


def useful_graph_scopes(model: Model) -> tuple[str, ...]:
    """Return the scopes that per-layer graphs can capture.

    ``moe`` is never among them: it needs experts with padded capacity, which no setting here turns on.
    """
    useful = {
        "attn": True,
        "mamba": any(kind.mixer == "mamba" for kind in model.layers()),
        "mlp": has_dense_layers(model),
        "moe_router": model.is_moe,
        "moe_preprocess": model.is_moe,
    }
    return tuple(name for name, does in useful.items() if does)
