"""Host memory of one rank: offloaded optimizer state and offloaded activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.declare import Bytes
from mbsolve.constraints.memory.resident import per_shard
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.memory.tensors import (
    whole_attention_bytes,
    whole_dense_bytes,
    whole_gdn_bytes,
    whole_moe_bytes,
)
from mbsolve.constraints.rule import Source, Term

OFFLOAD = Source("NVIDIA/TransformerEngine", "transformer_engine/pytorch/cpu_offload.py")


def _optimizer_each(values: Mapping[str, Any]) -> Value:
    return constant("optimizer_host_bytes") * np.asarray(values["optimizer_offload_fraction"], float)


def _layer(half: str, fn: Bytes) -> Term:
    return Term(
        fn=fn, source=OFFLOAD, name=f"offloaded_layers.{half}", row="host_bytes", per=f"offloaded_{half}"
    )


HOST_TERMS: tuple[Term, ...] = (
    *per_shard(
        "offloaded_optimizer",
        "host_bytes",
        source_of("optimizer_host_bytes"),
        "Optimizer state on the host",
        _optimizer_each,
        "optimizer_offload_fraction",
    ),
    _layer("attention", whole_attention_bytes),
    _layer("gdn", whole_gdn_bytes),
    _layer("dense", whole_dense_bytes),
    _layer("moe", whole_moe_bytes),
)
