"""Small jobs whose spaces can be enumerated: shrunken models, scaled machines, few free decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import Phase

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.domains import Domains, domains
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import DECISIONS, Settings
from mbsolve.hardware.card import Machine, load_machine
from mbsolve.models.card import Model, load_model
from tests.solver.oracle import Entry, entries

# An example is a seed; a smaller seed is no simpler.
PHASES = (Phase.explicit, Phase.generate)
# At most so many legal plans in a space that is enumerated.
LEGAL = 420

# Decisions that are opened together, with the values to try where their domain is a grid.
GROUPS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "modules": {
        "recompute_granularity": ("none", "selective"),
        "recompute_core_attn": None,
        "recompute_mla_up_proj": None,
        "recompute_layernorm": None,
        "recompute_mlp": None,
        "recompute_moe_act": None,
        "recompute_shared_experts": None,
        "recompute_moe": None,
    },
    "full": {
        "recompute_granularity": ("none", "full"),
        "recompute_method": None,
        "recompute_num_layers": None,
    },
    "modes": {
        "recompute_granularity": ("none", "selective", "full"),
        "recompute_method": None,
        "recompute_num_layers": (0, 1, 2),
        "recompute_core_attn": None,
        "recompute_moe": None,
        "recompute_mlp": None,
    },
    "fine_offload": {
        "offload_core_attn": None,
        "offload_attn_proj": None,
        "offload_attn_norm": None,
        "offload_qkv_linear": None,
        "offload_mlp_norm": None,
        "offload_expert_fc1": None,
        "offload_moe_act": None,
    },
    "layer_offload": {"activation_offload_layers": None},
    "optimizer": {"precision_aware_optimizer": None, "optimizer_offload_fraction": (0.0, 0.5, 1.0)},
    "fractions": {"optimizer_offload_fraction": None},
    "graphs": {
        "cuda_graph_impl": None,
        "graph_attn": None,
        "graph_mamba": None,
        "graph_mlp": None,
        "graph_moe_router": None,
        "graph_moe_preprocess": None,
    },
    "dispatch": {"dispatcher": None},
    "overlap": {"ep_overlap": None, "delay_wgrad": None, "dispatcher": ("alltoall", "deepep")},
}
PLAIN: dict[str, tuple[Any, ...]] = {
    "vpp": (1,),
    "recompute_method": ("none",),
    "recompute_num_layers": (0,),
    "activation_offload_layers": (0,),
    "ep_overlap": (False,),
    "cuda_graph_impl": ("none",),
    "recompute_granularity": ("none",),
    "dispatcher": ("alltoall",),
    "delay_wgrad": (False,),
    "precision_aware_optimizer": (False,),
    "optimizer_offload_fraction": (0.0,),
}


def dense(layers: int) -> Model:
    """A shallow dense model."""
    return load_model("llama3-8b").model_copy(update={"num_layers": layers, "vocab_size": 32000})


def experts(layers: int, number: int = 8) -> Model:
    """A shallow model of grouped-query attention and experts."""
    return load_model("qwen3-30b-a3b").model_copy(
        update={"num_layers": layers, "num_experts": number, "moe_topk": 2, "vocab_size": 32000}
    )


def latent(layers: int, number: int = 8, mtp: int = 1) -> Model:
    """A shallow model of latent attention, shared experts, a dense first layer and an MTP layer."""
    update = {
        "num_layers": layers,
        "first_k_dense": 1,
        "num_experts": number,
        "moe_topk": 2,
        "router_num_groups": None,
        "router_group_topk": None,
        "mtp_num_layers": mtp,
        "vocab_size": 32000,
        "hidden_size": 2048,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 16,
        "num_query_groups": 16,
    }
    return load_model("dsv3").model_copy(update=update)


PATTERNS = {4: "ME*E", 5: "MEM*-", 6: "M-ME*E"}


def mamba(layers: int, number: int = 8, mtp: int = 0) -> Model:
    """A shallow Mamba hybrid with attention, experts and, from five layers, a dense FFN."""
    update = {
        "num_layers": layers,
        "layer_pattern": PATTERNS[layers] + "/*E" * mtp,
        "mtp_num_layers": mtp,
        "ffn_hidden_size": 4096 if "-" in PATTERNS[layers] else None,
        "num_experts": number,
        "moe_topk": 2,
        "vocab_size": 32000,
    }
    return load_model("nemotron-3-nano").model_copy(update=update)


def delta(layers: int, number: int = 8, mtp: int = 0) -> Model:
    """A shallow model of gated delta nets with full attention in every second or third layer, and experts."""
    update = {
        "num_layers": layers,
        "linear_attention_period": 3 if layers % 3 == 0 else 2,
        "num_experts": number,
        "moe_topk": 2,
        "moe_ffn_hidden_size": 1024,
        "mtp_num_layers": mtp,
        "vocab_size": 32000,
    }
    return load_model("qwen3-next-80b").model_copy(update=update)


def machine_with(machine: Machine, **update: Any) -> Machine:
    """A card with some fields replaced."""
    return machine.model_copy(update=update)


def job_with(job: Job, **update: Any) -> Job:
    """A job with some fields replaced; a copy would keep what the old fields were worked out to."""
    return Job(**{**{n: getattr(job, n) for n in Job.model_fields}, **update})


def with_memory(job: Job, device: int | None = None, host: int | None = None) -> Job:
    """A job whose device, and whose host for each rank, holds just so many KiB."""
    update: dict[str, Any] = {}
    if device is not None:
        update["hbm_bytes"] = max(1, math.ceil(device * 1024 / (1 - job.margin)) + 1)
    if host is not None:
        update["host_ram_bytes_per_node"] = max(1, host * 1024 * min(job.gpus_per_node, job.gpus))
    return job_with(job, machine=machine_with(job.machine, **update))


def ample(job: Job) -> Job:
    """The same job on devices and hosts that hold anything."""
    return with_memory(job, device=1 << 35, host=1 << 35)


@dataclass(frozen=True)
class Space:
    """A job with the values that its decisions may take, and all of its legal plans."""

    job: Job
    demands: Demands
    found: tuple[Entry, ...]

    def free(self) -> dict[str, tuple[Any, ...]]:
        """Decisions with more than one value."""
        return {n: v for n, v in self.demands.domains.items() if len(v) > 1}


def base_domains(job: Job) -> Domains:
    """Every decision at its plainest value; grids stay open."""
    full = domains(job)
    out = {**full, **{n: v for n, v in PLAIN.items()}}
    return {
        n: (False,) if set(v) == {False, True} and n != "sequence_parallel" else v for n, v in out.items()
    }


def opened(job: Job, dom: Domains, groups: Sequence[str]) -> Domains:
    """Domains with some groups of decisions opened."""
    full, out = domains(job), dict(dom)
    for group in groups:
        for name, values in GROUPS[group].items():
            chosen = full[name] if values is None else tuple(v for v in full[name] if v in values)
            out[name] = tuple(v for v in full[name] if v in {*out[name], *chosen})
    return out


def thinned(job: Job, demands: Demands, most: int = LEGAL) -> Space:
    """The space, the longest domains cut until at most ``most`` plans are legal."""
    dom = dict(demands.domains)
    while True:
        now = replace(demands, domains=dom)
        found = entries(job, now, most)
        if len(found) <= most:
            return Space(job, now, tuple(found))
        name = max(dom, key=lambda n: (len(dom[n]), -DECISIONS.index(n)))
        dom[name] = dom[name][:-1] if len(dom[name]) % 2 else dom[name][1:]


PLAIN_FAMILIES = ("dense", "experts", "latent")
HYBRIDS = ("mamba", "delta")


def random_job(random: Random, families: Sequence[str] = PLAIN_FAMILIES) -> Job:
    """A job of a few GPUs on an H100 or B200 whose memory holds anything."""
    layers = random.randint(4, 6)
    family = random.choice(families)
    if family == "dense":
        model = dense(layers)
    elif family == "experts":
        model = experts(layers, random.choice((4, 8)))
    elif family in HYBRIDS:
        make = mamba if family == "mamba" else delta
        model = make(layers, random.choice((4, 8)), random.choice((0, 1)))
    else:
        model = latent(layers, random.choice((4, 8)), random.choice((0, 1)))
    machine = load_machine(random.choice(("h100", "b200")))
    overlapped = random.random() < 0.7
    settings = Settings(
        overlap_grad_reduce=overlapped,
        overlap_param_gather=overlapped,
        shared_expert_overlap=random.random() < 0.2,
        tp_comm_overlap=random.random() < 0.2,
        grad_dtype=random.choice(("fp32", "bf16")),
        logits_copies=random.choice((1, 2)),
    )
    job = Job(
        model=model,
        machine=machine,
        gpus=random.choice((2, 4, 6, 8, 8)),
        gpus_per_node=random.choice((1, 2, 8)),
        seq_len=random.choice((512, 2048, 6144)),
        gbs=random.choice((4, 8, 12, 16, 24)),
        precision=random.choice(("bf16", "bf16", *machine.supported_precisions)),
        target=random.choice(("bridge", "bridge", "megatron-lm")),
        margin=random.choice((0.0, 0.03)),
        settings=settings,
    )
    return ample(job)


def random_space(random: Random, most: int = LEGAL, families: Sequence[str] = PLAIN_FAMILIES) -> Space:
    """A small job with a few open decisions, and all of its legal plans."""
    job = random_job(random, families)
    dom = opened(job, base_domains(job), random.sample(sorted(GROUPS), random.choice((1, 2, 2, 3))))
    for name in ("tp", "cp", "pp", "ep", "etp", "mbs"):
        values = domains(job)[name]
        chosen = set(random.sample(values, random.randint(0, min(2, len(values)))))
        dom[name] = tuple(v for v in values if v in chosen or v == 1)
    dom["vpp"] = random.choice(((1,), (1, 2), (1, 2, 3)))
    return thinned(job, Demands(dom), most)


def random_budget(random: Random, space: Space) -> Job:
    """The job of a space with memory that some of its plans just fit, miss by little, or do not need."""
    kind = random.choice(("ample", "device", "device", "device", "host", "both"))
    if kind == "ample" or not space.found:
        return space.job
    device = random.choice(space.found).quanta.peak + random.choice((0, 0, -1, 500))
    host = random.choice(space.found).quanta.host + random.choice((0, 0, -1, 500))
    return with_memory(
        space.job, device=device if kind != "host" else None, host=max(host, 0) if kind != "device" else None
    )
