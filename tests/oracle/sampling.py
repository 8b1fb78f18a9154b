"""Random configurations about legal ones: a published plan, then none to four changes, single fields or bundles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import (
    DISPATCHERS,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    Plan,
    Settings,
)
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import Model, load_model
from tests.oracle.bases import BASES, COUNTED

JUDGED: Final = ("bridge-0.6", "megatron-lm")
"""Targets of which the real validators are asked."""


class Sample(NamedTuple):
    """One configuration."""

    job: Job
    plan: Plan


MACHINES: Final = ("a100", "h100", "h100", "h200", "h20", "b200", "b300", "gb200", "gb300")
LAYOUTS: Final = (
    None,
    "Et*16|t*16L",
    "Et*8|t*8|t*8|t*8L",
    "Et*7|t*8|t*8|t*9L",
    "E|t*16|t*16|L",
    "Et*12|t*12|t*12|t*12L",
    "E(t*6|)*7t*6L",
    "Et*24|(t*24)L",
    "Et*14|t*13mL",
    "Et*13|t*14m|L",
    "Et*27mL",
    "Et*23|t*23mL",
    "Et*7|t*8|t*8|t*8|t*8|t*8|t*8|t*6|mL",
    "Et*3|(tt|)*29mL|",
    "Et*3|(tt|)*29|mL",
    "Et*3|(tt|)*28ttm|L",
    "Et*3,|(tt|)*29m|L",
    "Et*3|(tt|)*29x|L",
    "t*48",
    "E|L",
    "Et*26|mtL",
    "E|mt*61L",
)
DEGREES: Final = (1, 1, 2, 2, 3, 4, 5, 6, 8, 12, 16)
VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    **{name: DEGREES for name in ("tp", "pp", "cp", "ep", "etp")},
    "vpp": (1, 1, 2, 3, 4, 6, 8),
    "mbs": (1, 1, 2, 3, 4, 8),
    "sequence_parallel": (False, True),
    "pipeline_layout": LAYOUTS,
    "first_stage_layers": (None, 0, 1, 6, 8, 10, 11, 12, 13, 14, 15, 16, 23),
    "last_stage_layers": (None, 0, 1, 6, 8, 10, 11, 12, 13, 14, 17, 23),
    "embedding_in_split": (False, True),
    "loss_in_split": (False, True),
    "recompute_granularity": (None, "full", "selective", "half"),
    "recompute_method": (None, "uniform", "block", "some"),
    "recompute_num_layers": (None, 0, 1, 2, 100),
    "dispatcher": (*DISPATCHERS, "nccl"),
    "ep_overlap": (False, True),
    "delay_wgrad": (False, True),
    "precision_aware_optimizer": (False, True),
    "optimizer_offload_fraction": (0.0, 0.5, 1.0, 1.0, 1.5),
    "activation_offload_layers": (0, 1, 2, 26, 27, 48),
    "cuda_graph_impl": (*GRAPH_IMPLS, "graphs"),
}
LISTS: Final = {
    "recompute_modules": (*RECOMPUTE_MODULES, "attn"),
    "fine_grained_offload_modules": (*OFFLOAD_MODULES, "mlp"),
    "cuda_graph_scope": (*GRAPH_SCOPES, "experts"),
}
JOB: Final[Mapping[str, tuple[Any, ...]]] = {
    "gpus": (1, 2, 4, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512),
    "seq_len": (1024, 2048, 4096, 4098, 4100, 8192, 12288, 32768),
    "gbs": (1, 7, 16, 32, 48, 64, 96, 128, 256, 512),
    "precision": PRECISIONS,
    "machine": MACHINES,
}
# What makes a list be read.
SWITCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "recompute_modules": {"recompute_granularity": "selective"},
    "fine_grained_offload_modules": {},
    "cuda_graph_scope": {"cuda_graph_impl": "transformer_engine"},
}
# Of the model's card.
CARD: Final[Mapping[str, tuple[Any, ...]]] = {
    "mtp_num_layers": (0, 1, 2),
    "linear_bias": (False, True),
    "tie_embeddings": (False, True),
    "num_query_groups": (2, 4, 8),
    "qkv_bias": (False, True),
    "rotary": ("rope", "yarn"),
}
SETTINGS: Final[Mapping[str, tuple[Any, ...]]] = {
    "grad_dtype": ("fp32", "bf16"),
    "main_param_dtype": ("fp32", "fp16"),
    "moment_dtype": ("fp32", "bf16", "fp16"),
    "cp_comm_type": ("p2p", "a2a", "all_gather", "a2a+p2p"),
    **{
        name: (False, True)
        for name in (
            "fp8_param",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "tp_comm_overlap",
            "shared_expert_overlap",
            "permute_fusion",
            "op_fuser",
            "rope_fusion",
            "distributed_optimizer",
            "fp8_output_proj",
            "expandable_segments",
            "grad_accumulation_fusion",
            "router_padding",
        )
    },
    "make_vocab_size_divisible_by": (1, 128),
    "attention_dropout": (0.0, 0.1),
    "hidden_dropout": (0.0, 0.1),
}
GRAPHED_OVERLAP: Final[Mapping[str, Any]] = {
    "ep_overlap": True,
    "delay_wgrad": True,
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_scope": ("attn",),
}
# Changes that go together; alone most of them would be refused for what lacks.
BUNDLES: Final[tuple[Mapping[str, Any], ...]] = (
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "selective", "recompute_modules": ("moe",)},
    {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
    {"recompute_granularity": "selective", "recompute_modules": ("shared_experts", "mla_up_proj")},
    {"ep_overlap": True},
    {"ep_overlap": True, "delay_wgrad": True},
    {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")},
    {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn",)},
    {"cuda_graph_impl": "full_iteration"},
    GRAPHED_OVERLAP,
    {**GRAPHED_OVERLAP, "settings": {"grad_accumulation_fusion": False}},
    {**GRAPHED_OVERLAP, "linear_bias": True},
    {**GRAPHED_OVERLAP, "cuda_graph_scope": ("moe_router",), "settings": {"grad_accumulation_fusion": False}},
    COUNTED,
    {"settings": {"router_padding": True}, "precision": "fp8_cs"},
    {
        "settings": {"router_padding": True},
        "precision": "fp8_cs",
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ("moe_router", "moe_preprocess"),
    },
    {
        "settings": {"attention_dropout": 0.1, "hidden_dropout": 0.1},
        "recompute_granularity": "selective",
        "recompute_modules": ("core_attn",),
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ("attn",),
    },
    {
        "settings": {"hidden_dropout": 0.1},
        "recompute_granularity": "selective",
        "recompute_modules": ("mlp", "moe"),
        "cuda_graph_impl": "full_iteration",
    },
    {"fine_grained_offload_modules": ("core_attn", "attn_proj")},
    {"fine_grained_offload_modules": ("expert_fc1", "moe_act")},
    {"activation_offload_layers": 4, "pp": 1},
    {"precision_aware_optimizer": True, "settings": {"moment_dtype": "bf16"}},
    {"precision_aware_optimizer": True, "settings": {"grad_dtype": "bf16", "main_param_dtype": "fp16"}},
    {"optimizer_offload_fraction": 1.0, "precision_aware_optimizer": True},
    {"tp": 2, "sequence_parallel": True},
    {"settings": {"tp_comm_overlap": True}, "tp": 2, "sequence_parallel": True},
    {"precision": "mxfp8", "machine": "b200", "settings": {"fp8_param": True}},
    {"precision": "nvfp4", "machine": "gb200"},
    {"precision": "fp8_cs", "settings": {"fp8_param": True}},
    {"precision": "fp8_delayed"},
    {"precision": "fp8_block"},
    {"settings": {"shared_expert_overlap": True}, "ep_overlap": True},
    {"settings": {"shared_expert_overlap": True}, "dispatcher": "allgather"},
    {"settings": {"shared_expert_overlap": True}, "recompute_granularity": "selective"},
    {"settings": {"cp_comm_type": "a2a"}, "cp": 4},
    {"settings": {"distributed_optimizer": False}},
    {"settings": {"distributed_optimizer": False}, "precision_aware_optimizer": True},
    {"mtp_num_layers": 2, "ep_overlap": True, "pp": 1},
    {"dispatcher": "allgather", "ep_overlap": True},
    {"dispatcher": "deepep", "machine": "gb200"},
    {"dispatcher": "hybridep", "machine": "gb300"},
    {"etp": 2, "ep": 2},
    {"dispatcher": "deepep", "ep": 8},
    {"dispatcher": "hybridep", "ep": 8},
)


def samples(seed: int, target: str = "bridge-0.6") -> Iterator[Sample]:
    """Yield configurations without end, the same ones for the same seed, whatever their target."""
    random = Random(seed)
    while True:
        yield sample(random, target)


def sample(random: Random, target: str = "bridge-0.6") -> Sample:
    """One configuration; a good share of them is legal."""
    model, gpus, seq_len, gbs, base = random.choice(BASES)
    job: dict[str, Any] = {
        "gpus": gpus,
        "seq_len": seq_len,
        "gbs": gbs,
        "precision": "bf16",
        "machine": "h100",
    }
    plan, settings, card = dict(base), dict[str, Any](), dict[str, Any]()
    for _ in range(random.choice((0, 1, 1, 2, 2, 3, 3, 4, 5))):
        change = _change(random)
        settings |= change.pop("settings", {})
        card |= {name: change.pop(name) for name in CARD if name in change}
        job |= {name: change.pop(name) for name in JOB if name in change}
        plan |= change
    machine = load_machine(job.pop("machine"))
    # Not validated: what is out of range is for the rules to see.
    asked = Job(
        model=_changed(load_model(model), card),
        machine=machine,
        gpus_per_node=machine.gpus_per_node,
        settings=Settings(**settings),
        **job,
    )
    return Sample(asked.model_copy(update={"target": target}), Plan().model_copy(update=plan))


def _changed(model: Model, card: Mapping[str, Any]) -> Model:
    """The model with what its card may say otherwise."""
    if model.hybrid:
        return model
    refused = ("qkv_bias", "num_query_groups") if model.mla else ()
    return model.model_copy(update={name: value for name, value in card.items() if name not in refused})


def _change(random: Random) -> dict[str, Any]:
    kind = random.random()
    if kind < 0.35:
        return dict(random.choice(BUNDLES))
    if kind < 0.65:
        name = random.choice(tuple(VALUES))
        return {name: random.choice(VALUES[name])}
    if kind < 0.77:
        name, switch = random.choice(tuple(SWITCHES.items()))
        chosen = tuple(random.sample(LISTS[name], random.choice((1, 1, 2, 3))))
        return {name: chosen, **(switch if random.random() < 0.7 else {})}
    if kind < 0.87:
        table = random.choice((JOB, JOB, JOB, CARD))
        name = random.choice(tuple(table))
        return {name: random.choice(table[name])}
    name = random.choice(tuple(SETTINGS))
    return {"settings": {name: random.choice(SETTINGS[name])}}
