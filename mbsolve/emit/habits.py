"""What a published run held beside, or instead of, what a planned run holds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Habits"]


@dataclass(frozen=True)
class Habits:
    """How the memory of a run differs from that of the runs that are planned.

    Parameters
    ----------
    deterministic : torch's deterministic algorithms, which ask for cuBLAS workspaces of a fixed size.
    local_layers : layers of Megatron-Core itself, without Transformer Engine.
    grouped_experts : whether the experts of a rank are one grouped product; else one product after the other.
    optimizer_instances : over how many parts of the data-parallel ranks the optimizer state is repeated.
    transposed_weights : whether quantised weights keep a transposed copy.
    """

    deterministic: bool = False
    local_layers: bool = False
    grouped_experts: bool = True
    optimizer_instances: int = 1
    transposed_weights: bool = True
