"""The words: every decision of a plan, the settings of a job, and the sizes that follow from both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

RECOMPUTE_MODULES: Final = (
    "core_attn",
    "mla_up_proj",
    "layernorm",
    "mlp",
    "moe_act",
    "shared_experts",
    "moe",
)
OFFLOAD_MODULES: Final = (
    "core_attn",
    "attn_proj",
    "attn_norm",
    "qkv_linear",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
GRAPH_SCOPES: Final = ("attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess")
DISPATCHERS: Final = ("allgather", "alltoall", "deepep", "hybridep")
GRAPH_IMPLS: Final = ("none", "local", "transformer_engine", "full_iteration")
PRECISIONS: Final = ("bf16", "fp8_cs", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4")
TARGETS: Final = ("bridge", "bridge-0.6", "megatron-lm")

# Decisions that fix the shape of a job: how many layers, micro-batches and copies there are of everything.
# Any other decision only changes what one of those costs.
SHAPE: Final = (
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "mbs",
    "sequence_parallel",
    "vpp",
    "split",
    "recompute_method",
    "recompute_num_layers",
    "activation_offload_layers",
    "ep_overlap",
    "cuda_graph_impl",
)
FEATURES: Final = (
    "recompute_granularity",
    *(f"recompute_{m}" for m in RECOMPUTE_MODULES),
    "dispatcher",
    "delay_wgrad",
    "precision_aware_optimizer",
    "optimizer_offload_fraction",
    *(f"offload_{m}" for m in OFFLOAD_MODULES),
    *(f"graph_{s}" for s in GRAPH_SCOPES),
)
DECISIONS: Final = SHAPE + FEATURES
DERIVED: Final = ("dp", "edp", "microbatches")


class Settings(BaseModel, frozen=True, extra="forbid"):
    """Fields of a job with the target's default: not decided by the solver, open to ``--set``.

    ``logits_copies`` is 2 for Transformer Engine 2.20 and 1 for earlier releases. ``expert_rank_capacity`` bounds the token
    rows of an expert rank to that many times the balanced number, with buffers of that size; None for no bound.
    ``router_padding`` pads the routing map to the multiples that quantised products need.
    """

    fp8_param: bool = False
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    main_param_dtype: Literal["fp32", "fp16"] = "fp32"
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    cp_comm_type: Literal["p2p", "a2a", "all_gather", "a2a+p2p"] = "p2p"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    tp_comm_overlap: bool = False
    shared_expert_overlap: bool = False
    permute_fusion: bool = True
    op_fuser: bool = False
    expert_rank_capacity: float | None = Field(default=None, gt=0)
    rope_fusion: bool = False
    distributed_optimizer: bool = True
    routing: Literal["balanced", "natural"] = "balanced"
    logits_copies: int = Field(default=2, ge=1, le=3)
    fp8_output_proj: bool = False
    router_padding: bool = False
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    hidden_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    expandable_segments: bool = True
    grad_accumulation_fusion: bool = True
    make_vocab_size_divisible_by: int = Field(default=128, ge=1)


class Split(BaseModel, frozen=True, extra="forbid"):
    """How the layers are laid over the virtual pipeline stages.

    Either even (nothing set), even with the ``embedding`` or the ``loss`` counted as a layer, uneven ends (``first`` /
    ``last`` layers on the first and last pipeline rank), or an explicit ``layout`` string over the symbols ``E t m L |``
    with ``x*n`` and ``(..)*n`` repeats.
    """

    first: int | None = None
    last: int | None = None
    layout: str | None = None
    embedding: bool = False
    loss: bool = False

    @property
    def counted(self) -> int:
        """How many of the embedding and the loss count as a layer."""
        return self.embedding + self.loss

    def __str__(self) -> str:
        if self.layout:
            return self.layout
        if self.first or self.last:
            return f"ends {self.first or '-'}/{self.last or '-'}"
        ends = [name for name in ("embedding", "loss") if getattr(self, name)]
        return f"even with {' and '.join(ends)}" if ends else "even"


SPLIT_FIELDS: Final = {
    "first_stage_layers": "first",
    "last_stage_layers": "last",
    "pipeline_layout": "layout",
    "embedding_in_split": "embedding",
    "loss_in_split": "loss",
}
"""Field of a plan -> the part of its split that it says."""


class Plan(BaseModel, frozen=True, extra="forbid"):
    """One configuration: a value for every decision."""

    tp: int = Field(default=1, ge=1)
    cp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    vpp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    etp: int = Field(default=1, ge=1)
    mbs: int = Field(default=1, ge=1)
    sequence_parallel: bool = False
    pipeline_layout: str | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    embedding_in_split: bool = False
    loss_in_split: bool = False
    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    dispatcher: str = "alltoall"
    ep_overlap: bool = False
    delay_wgrad: bool = False
    precision_aware_optimizer: bool = False
    optimizer_offload_fraction: float = Field(default=0.0)
    activation_offload_layers: int = 0
    fine_grained_offload_modules: tuple[str, ...] = ()
    cuda_graph_impl: str = "none"
    cuda_graph_scope: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """The plan as one value for each name in ``DECISIONS``."""
        flat: dict[str, Any] = {
            name: getattr(self, name) for name in DECISIONS if name in type(self).model_fields
        }
        flat["split"] = Split(**{part: getattr(self, name) for name, part in SPLIT_FIELDS.items()})
        flat["recompute_granularity"] = self.recompute_granularity or "none"
        flat["recompute_method"] = self.recompute_method or "none"
        flat["recompute_num_layers"] = self.recompute_num_layers or 0
        selective = self.recompute_granularity == "selective"
        flat |= {f"recompute_{m}": selective and m in self.recompute_modules for m in RECOMPUTE_MODULES}
        flat |= {f"offload_{m}": m in self.fine_grained_offload_modules for m in OFFLOAD_MODULES}
        flat |= {f"graph_{s}": s in self.cuda_graph_scope for s in GRAPH_SCOPES}
        return flat


def plan_of(values: Mapping[str, Any]) -> Plan:
    """The plan with the given value for each name in ``DECISIONS``; the inverse of `Plan.values`."""
    split: Split = values["split"]
    modules = tuple(m for m in RECOMPUTE_MODULES if values[f"recompute_{m}"])
    granularity = values["recompute_granularity"]
    return Plan(
        **{
            name: values[name]
            for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "mbs", "activation_offload_layers")
        },
        sequence_parallel=bool(values["sequence_parallel"]),
        **{name: getattr(split, part) for name, part in SPLIT_FIELDS.items()},
        recompute_granularity=None if granularity == "none" else granularity,
        recompute_method=None if values["recompute_method"] == "none" else values["recompute_method"],
        recompute_num_layers=values["recompute_num_layers"] or None,
        recompute_modules=modules,
        dispatcher=str(values["dispatcher"]),
        ep_overlap=bool(values["ep_overlap"]),
        delay_wgrad=bool(values["delay_wgrad"]),
        precision_aware_optimizer=bool(values["precision_aware_optimizer"]),
        optimizer_offload_fraction=float(values["optimizer_offload_fraction"]),
        fine_grained_offload_modules=tuple(m for m in OFFLOAD_MODULES if values[f"offload_{m}"]),
        cuda_graph_impl=str(values["cuda_graph_impl"]),
        cuda_graph_scope=tuple(s for s in GRAPH_SCOPES if values[f"graph_{s}"]),
    )
