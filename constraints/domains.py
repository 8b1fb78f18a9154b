"""The values that each decision may take for a job: the space of the search, as a user would read it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mbsolve.constraints.job import Job
from mbsolve.constraints.rules.useful import (
    useful_graph_scopes,
    useful_offload_modules,
    useful_recompute_modules,
)
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import (
    DECISIONS,
    DISPATCHERS,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
)

MAX_TP = 64
MAX_VPP = 16
MICRO_BATCHES = (1, 2, 4, 8)
OFFLOAD_STEPS = 20

Domains = dict[str, tuple[Any, ...]]


def divisors(n: int) -> tuple[int, ...]:
    """All positive divisors of ``n``, ascending."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*low, *(n // d for d in low)}))


def domains(job: Job) -> Domains:
    """The values of every decision but ``split``, whose values depend on the pipeline (`splits`).

    Sizes of the grids are the divisors of the GPU count that could hold; the rules judge the rest. TP stays
    inside an NVLink domain: across it every layer would wait for the scale-out network.
    """
    model, sizes = job.model, divisors(job.gpus)
    domain = min(job.topology.domain_gpus, MAX_TP)
    out: Domains = {
        "tp": tuple(d for d in sizes if d <= domain and model.num_attention_heads % d == 0),
        "cp": tuple(d for d in sizes if d == 1 or job.seq_len % (2 * d) == 0),
        "pp": tuple(d for d in sizes if d <= model.num_layers),
        "ep": tuple(d for d in sizes if model.num_experts and model.num_experts % d == 0) or (1,),
        "etp": tuple(
            d
            for d in (1, 2, 4, 8)
            if d <= domain and d in sizes and (model.moe_ffn_hidden_size or 1) % d == 0
        ),
        "mbs": tuple(m for m in MICRO_BATCHES if job.gbs % m == 0),
        "sequence_parallel": (False, True),
        "vpp": tuple(range(1, MAX_VPP + 1)),
        "recompute_method": ("none", "uniform", "block"),
        "recompute_num_layers": tuple(range(model.num_layers + 1)),
        "activation_offload_layers": tuple(range(model.num_layers)),
        "ep_overlap": (False, True),
        "cuda_graph_impl": GRAPH_IMPLS,
        "recompute_granularity": ("none", "selective", "full"),
        "dispatcher": DISPATCHERS,
        "delay_wgrad": (False, True),
        "precision_aware_optimizer": (False, True),
        "optimizer_offload_fraction": tuple(i / OFFLOAD_STEPS for i in range(OFFLOAD_STEPS + 1)),
    }
    if not model.is_moe:
        out |= {"dispatcher": ("alltoall",), "ep_overlap": (False,), "delay_wgrad": (False,), "etp": (1,)}
    for prefix, names, useful in (
        ("recompute", RECOMPUTE_MODULES, useful_recompute_modules(model)),
        ("offload", OFFLOAD_MODULES, useful_offload_modules(model)),
        ("graph", GRAPH_SCOPES, useful_graph_scopes(model)),
    ):
        out |= {f"{prefix}_{name}": (False, True) if name in useful else (False,) for name in names}
    return out


def raw_size(job: Job, dom: Domains, split_values: Iterable[Any] | None = None) -> float:
    """Number of configurations before any rule: the product of the domains, splits counted for each pipeline."""
    pipelines = 0
    for pp in dom["pp"]:
        for vpp in dom["vpp"]:
            if pp * vpp <= job.model.num_layers + 2:
                pipelines += (
                    len(list(split_values)) if split_values is not None else len(splits(job.model, pp, vpp))
                )
    rest = math.prod(len(v) for name, v in dom.items() if name in DECISIONS and name not in ("pp", "vpp"))
    return float(rest) * max(pipelines, 1)
