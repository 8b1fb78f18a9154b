"""What a plan costs, as data: the shape of every evaluation that leaves the library."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TermValue(_Data):
    """One named cost. Exactly one of ``seconds`` and ``bytes`` is set.

    ``stage`` is the pipeline rank it was taken on; absent for costs of the whole step.
    """

    name: str
    seconds: float | None = None
    bytes: float | None = None
    stage: int | None = None
    source: str = ""


class StageMemory(_Data):
    """Device memory of one pipeline rank, in bytes.

    Parameters
    ----------
    between_bytes : allocated between two steps.
    pass_peak_bytes, pass_peak_moment : the most that a forward or backward pass has allocated, and where in it.
    optimizer_peak_bytes : allocated in the step of the optimizer.
    peak_allocated_bytes, peak_moment : the largest of these, and when it is.
    peak_reserved_bytes : what the allocator is expected to have reserved by then.
    peak_device_bytes : what the driver sees: the reserved estimate, the context and the communicators.
    terms : what is held at the peak; they add up to ``peak_allocated_bytes``. See `account` for the other moments.
    """

    stage: int
    between_bytes: float
    pass_peak_bytes: float
    pass_peak_moment: str
    optimizer_peak_bytes: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    peak_device_bytes: float
    peak_moment: str
    terms: tuple[TermValue, ...]


class Grids(_Data):
    """Sizes of the two rank grids, innermost first."""

    dense: tuple[int, int, int, int]
    expert: tuple[int, int, int, int]


class Evaluation(_Data):
    """Time and memory of one plan, in floating point.

    Parameters
    ----------
    step_seconds : one optimizer step.
    tflops_per_gpu, mfu : model FLOPs in the stack's own counting (3 x forward, recompute never counted).
    error_bar : relative error of ``step_seconds`` to expect, from the accuracy tables.
    terms : time terms; they add up to ``step_seconds``.
    host_bytes_per_node : pinned host memory that the plan's offloads need, every rank of the node taken to be on the
        fullest pipeline rank: what the budget and the solver compare.
    host_fullest_node_bytes : the same on the fullest node with the ranks that it really has; never more.
    headroom_bytes : device memory left on the fullest rank after its peak (the margin not subtracted).
    """

    schema_version: Literal[1] = 1
    step_seconds: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    error_bar: float
    terms: tuple[TermValue, ...]
    stages: tuple[StageMemory, ...]
    host_bytes_per_node: float
    host_fullest_node_bytes: float
    headroom_bytes: float
    microbatches: int
    grids: Grids

    @property
    def worst_stage(self) -> StageMemory:
        """The pipeline rank with the highest peak."""
        return max(self.stages, key=lambda s: s.peak_device_bytes)
