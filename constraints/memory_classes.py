"""Classes of plans by what their memory is hardest to know of: plans and measured rows fall in them alike.

A row counts for the first class that holds it, so each counts once. A plan may have something of several; its error bar
is the widest of theirs (`constraints.error_bars`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan

__all__ = ["CLASSES", "MemoryClass", "class_of", "classes_of", "widers"]

Decides = Literal["peak", "reserved"]


@dataclass(frozen=True)
class MemoryClass:
    """Plans whose memory is predicted as well or as badly as one another's.

    Parameters
    ----------
    name : in the words of a table.
    wider : the nearest wider class, whose error is assumed while no row of this one was measured.
    because : one line, why these plans are apart.
    holds : whether a plan of a job is one of them.
    decides : the figure that runs out first: what is reserved where it is never given back, else what is allocated,
        since the allocator gives back what it only keeps.
    """

    name: str
    wider: str
    because: str
    holds: Callable[[Job, Plan], bool]
    decides: Decides = "peak"


def _runs_in(precision: str) -> Callable[[Job, Plan], bool]:
    return lambda job, plan: job.precision == precision


def _graphs_by(impl: str) -> Callable[[Job, Plan], bool]:
    return lambda job, plan: plan.cuda_graph_impl == impl


def _routes_naturally(job: Job, plan: Plan) -> bool:
    bounded = job.settings.expert_rank_capacity is not None
    return job.model.is_moe and job.settings.routing == "natural" and not bounded


CLASSES: Final = (
    MemoryClass(
        "natural routing",
        "models with experts",
        "the fullest rank holds the tokens that the router happens to send it",
        _routes_naturally,
    ),
    MemoryClass(
        "EP overlap",
        "models with experts",
        "two micro-batches are under way at once",
        lambda job, plan: plan.ep_overlap,
    ),
    MemoryClass(
        "graphs of the iteration",
        "CUDA graphs",
        "one graph of the whole iteration keeps all that a step allocates in its pool",
        _graphs_by("full_iteration"),
        "reserved",
    ),
    MemoryClass(
        "local graphs",
        "CUDA graphs",
        "Megatron-Core captures a graph of each layer and pass, and shares their pool as it sees fit",
        _graphs_by("local"),
        "reserved",
    ),
    MemoryClass(
        "TE graphs",
        "CUDA graphs",
        "Transformer Engine captures a graph of each layer and micro-batch in flight, whose pools last",
        _graphs_by("transformer_engine"),
        "reserved",
    ),
    MemoryClass(
        "fine-grained offload",
        "offload",
        "tensors leave and come back while others are made: the peak depends on when",
        lambda job, plan: bool(plan.fine_grained_offload_modules),
    ),
    MemoryClass(
        "activation offload",
        "offload",
        "whole layers leave and come back while others are made: the peak depends on when",
        lambda job, plan: plan.activation_offload_layers > 0,
    ),
    MemoryClass(
        "optimizer offload",
        "offload",
        "the state is cut by whole tensors, and a step stages its parts on the device",
        lambda job, plan: plan.optimizer_offload_fraction > 0,
    ),
    MemoryClass(
        "hybrid layers",
        "models",
        "scans of recurrent layers save and allocate by the code of their own kernels",
        lambda job, plan: job.model.hybrid,
    ),
    MemoryClass(
        "FP8 tensorwise",
        "short formats",
        "operands are kept in FP8 with one scale a tensor",
        _runs_in("fp8_cs"),
    ),
    MemoryClass(
        "FP8 delayed",
        "short formats",
        "operands are kept in FP8, with a history of scales",
        _runs_in("fp8_delayed"),
    ),
    MemoryClass(
        "FP8 blockwise",
        "short formats",
        "operands are kept in FP8 in both layouts, with a scale for each block",
        _runs_in("fp8_block"),
    ),
    MemoryClass(
        "MXFP8",
        "short formats",
        "operands are kept in FP8 in both layouts, with a scale for every 32 elements",
        _runs_in("mxfp8"),
    ),
    MemoryClass(
        "NVFP4",
        "short formats",
        "operands are kept in 4 bits with scales of two levels",
        _runs_in("nvfp4"),
    ),
    MemoryClass(
        "replicated optimizer",
        "models",
        "every rank holds the whole optimizer state, which the code of the plain optimizer allocates",
        lambda job, plan: not job.settings.distributed_optimizer,
    ),
    MemoryClass(
        "MTP",
        "models",
        "the last stage computes a second set of logits",
        lambda job, plan: bool(job.model.mtp_num_layers),
    ),
    MemoryClass(
        "context parallel",
        "models",
        "exchanged keys and values live beside a rank's own",
        lambda job, plan: plan.cp > 1,
    ),
    MemoryClass(
        "pipeline",
        "models",
        "ranks differ in the micro-batches in flight, and the last one holds the logits",
        lambda job, plan: plan.pp > 1,
    ),
    MemoryClass(
        "MoE BF16",
        "models with experts",
        "expert layers permute tokens through buffers of their own",
        lambda job, plan: job.model.is_moe,
    ),
    MemoryClass("dense BF16", "models", "nothing of the above", lambda job, plan: True),
)
"""Every class, the hardest first; the last one holds any plan."""


def classes_of(job: Job, plan: Plan) -> tuple[MemoryClass, ...]:
    """Return every class that a plan has something of, the hardest first."""
    return tuple(one for one in CLASSES if one.holds(job, plan))


def class_of(job: Job, plan: Plan) -> MemoryClass:
    """Return the class that a measured row of the plan counts for: the first that holds it."""
    return next(one for one in CLASSES if one.holds(job, plan))


def widers() -> dict[str, tuple[MemoryClass, ...]]:
    """Return every wider class with its members."""
    names = dict.fromkeys(one.wider for one in CLASSES)
    return {name: tuple(one for one in CLASSES if one.wider == name) for name in names}
