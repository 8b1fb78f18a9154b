"""What a plan costs, as data: the shape of every evaluation that leaves the library."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.anchor import Anchor


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
    pass_peak_bytes, pass_peak_moment : allocated at the fullest moment of the passes, and where in them that is.
    optimizer_peak_bytes : allocated in the step of the optimizer.
    peak_allocated_bytes, peak_moment : allocated at the fullest of all moments, and when it is.
    pool_bytes : reserved then, but not counted as allocated: private pools of captured graphs, buffers of communication
        libraries, what one stream cannot pass to another.
    peak_reserved_bytes : what is expected to be reserved by then, the allocator's slack included.
    peak_device_bytes : what the driver sees: the reserved estimate, the context and the communicators.
    terms : what is held at the peak; they add up to ``peak_allocated_bytes`` and ``pool_bytes``. See `account` for the
        other moments.
    """

    stage: int
    between_bytes: float
    pass_peak_bytes: float
    pass_peak_moment: str
    optimizer_peak_bytes: float
    peak_allocated_bytes: float
    pool_bytes: float = 0.0
    peak_reserved_bytes: float
    peak_device_bytes: float
    peak_moment: str
    terms: tuple[TermValue, ...]


class Grids(_Data):
    """Sizes of the two rank grids, innermost first."""

    dense: tuple[int, int, int, int]
    expert: tuple[int, int, int, int]


class MemoryBar(_Data):
    """How far a plan's peak may be off, from measured rows of its class.

    Parameters
    ----------
    name : the class that says so: the one with the widest bar of those that the plan has something of.
    error_bar : relative error of the peak to expect: nine in ten rows are within it.
    short : how much more than predicted to be ready for, over what was predicted: nine in ten rows took no more.
    rows : measured rows that the bar rests on.
    validated : whether rows of every class that the plan has something of were measured.
    words : whether the plan fits, with which margin, and whether the margin covers the error.
    """

    name: str
    error_bar: float
    short: float
    rows: int
    validated: bool
    words: str


class TimeBar(_Data):
    """How far a step time may be off, from measured runs of its class of models.

    Parameters
    ----------
    name : the class: dense, moe or hybrid.
    error_bar : relative error to expect of a job that no constant was fitted on.
    mean, rows : mean absolute error over tuned published runs, and how many they are.
    words : the same in words.
    """

    name: str
    error_bar: float
    mean: float
    rows: int
    words: str


class Evaluation(_Data):
    """Time and memory of one plan, in floating point.

    Parameters
    ----------
    step_seconds : one optimizer step.
    flops_per_token, tflops_per_gpu, mfu : model FLOPs in the stack's own counting (`models.flops.CONVENTION`), the last as
        a share of the dense BF16 peak whatever the precision.
    error_bar : relative error of ``step_seconds`` to expect, from the accuracy tables.
    memory_error : how far the peak may be off, and what that means for the plan.
    terms : time terms; they add up to ``step_seconds``.
    anchor : the measured run that ``step_seconds``, the rates and the terms are scaled by; None for none.
    host_bytes_per_node : pinned host memory that the plan's offloads need, every rank of the node taken to be on the
        fullest pipeline rank: what the budget and the solver compare.
    host_fullest_node_bytes : the same on the fullest node with the ranks that it really has; never more.
    headroom_bytes : device memory left on the fullest rank after its peak (the margin not subtracted).
    """

    schema_version: Literal[1] = 1
    step_seconds: float
    tokens_per_second_per_gpu: float
    flops_per_token: float
    tflops_per_gpu: float
    mfu: float
    error_bar: float
    memory_error: MemoryBar
    terms: tuple[TermValue, ...]
    anchor: Anchor | None = None
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
