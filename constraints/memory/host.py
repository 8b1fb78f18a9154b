"""Host memory of one rank: offloaded optimizer state and offloaded activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.declare import Half
from mbsolve.constraints.memory.resident import handed_over, per_shard
from mbsolve.constraints.memory.sizes import BF16, FP32, Value, pinned
from mbsolve.constraints.memory.tensors import pinned_whole
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.models.card import Model

OFFLOAD = Source("NVIDIA/TransformerEngine", "transformer_engine/pytorch/cpu_offload.py")
HYBRID = Source(
    "NVIDIA/Megatron-LM",
    "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py: _get_sub_optimizer_param_groups, "
    "_set_sub_optimizer_grads; H200 one-rank training step, 2026-11-30",
)


def _optimizer_each(values: Mapping[str, Any]) -> Value:
    """Two fp32 moments in plain memory; the gradient pinned; the parameter pinned, or plain where it is the master.

    Pinned tensors take powers of two: on average ``pinned_rounding`` times their size.
    """
    rounded = FP32 * constant("pinned_rounding")
    parameter = np.where(handed_over(values), FP32, rounded)
    each = 2 * FP32 + rounded + parameter
    return each * np.asarray(values["optimizer_offload_fraction"], float)


@term("offloaded_optimizer.first_copy", row="host_bytes", per="one", source=HYBRID)
def first_copy(job: Job, model: Model, tp: Value, optimizer_offload_fraction: Value) -> Value:
    """Pinned block in which parameters pass to the host at the start, as large as a vocabulary matrix; it stays pooled."""
    largest = pinned(model.vocab_size * model.hidden_size / np.asarray(tp, float) * BF16)
    return largest * (np.asarray(optimizer_offload_fraction) > 0)


def _layer(half: Half) -> Term:
    fn, per = pinned_whole(half), f"offloaded_{half}"
    return Term(fn=fn, source=OFFLOAD, name=f"offloaded_layers.{half}", row="host_bytes", per=per)


HOST_TERMS: tuple[Term, ...] = (
    *per_shard(
        "offloaded_optimizer",
        "host_bytes",
        source_of("pinned_rounding"),
        "Optimizer state on the host",
        _optimizer_each,
        "precision_aware_optimizer",
        "optimizer_offload_fraction",
    ),
    first_copy,
    _layer("attention"),
    _layer("gdn"),
    _layer("dense"),
    _layer("moe"),
)
