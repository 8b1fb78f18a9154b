"""The step of a plan in full: where it goes, part by part, and what each pipeline rank does in a micro-batch."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.anchor import Anchor
from mbsolve.constraints.error_bars import time_bar
from mbsolve.constraints.evaluate import pass_terms, priced, rank_counts, step_parts
from mbsolve.constraints.evaluation import TermValue, TimeBar
from mbsolve.constraints.job import Job
from mbsolve.constraints.time.step import Step
from mbsolve.constraints.vocabulary import Plan
from mbsolve.models.flops import CONVENTION, flops_per_token

__all__ = ["FlopCount", "StageTime", "StepPart", "TimeAccount", "time_account"]

Pass = Literal["forward", "backward"]

TAIL_PARTS: Final = {"optimizer.offload": "optimizer offload"}
"""Term of the tail -> the part of a step it has for itself; others are summed by the first part of their names."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepPart(_Data):
    """A part of a step: it begins where the one before it ended.

    Parameters
    ----------
    because : how it comes about, in a few words.
    """

    name: str
    seconds: float
    because: str


class StageTime(_Data):
    """One micro-batch on one pipeline rank, in seconds.

    Device and host time of a pass overlap (`time.step.soft_max`), so a pass takes at least the larger of both and at most
    their sum.

    Parameters
    ----------
    forward_device_seconds, backward_device_seconds : what the GPU computes and waits for within its rank.
    forward_host_seconds, backward_host_seconds : what the host needs to launch it.
    forward_seconds, backward_seconds : what the passes take.
    transfer_seconds : exposed transfers from and to the neighbouring ranks.
    seconds : the passes and the transfers.
    host_cost_seconds : how much less it would be if the host took no time.
    idle_seconds : what it waits for the slowest rank.
    host_bound : passes that the host needs longer for than the device.
    terms : they add up to ``seconds``.
    """

    stage: int
    forward_device_seconds: float
    forward_host_seconds: float
    forward_seconds: float
    backward_device_seconds: float
    backward_host_seconds: float
    backward_seconds: float
    transfer_seconds: float
    seconds: float
    host_cost_seconds: float
    idle_seconds: float
    host_bound: tuple[Pass, ...]
    terms: tuple[TermValue, ...]


class FlopCount(_Data):
    """Model FLOPs: of a token, of a GPU in a second, and that by the dense BF16 peak of the GPU."""

    per_token: float
    tflops_per_gpu: float
    mfu: float
    peak_tflops: float
    convention: str


class TimeAccount(_Data):
    """The step of a plan.

    Parameters
    ----------
    parts : they add up to ``step_seconds``.
    slowest : the pipeline rank that sets the pace.
    stages : every pipeline rank.
    alike : pipeline ranks that take the same, slowest first.
    host_cost_seconds : how much of the step the host costs on the slowest rank; graphs can save so much there at most.
    host_bound : whether some pass of the slowest rank is host-bound.
    error : how far the step time may be off.
    flops : in the stack's own counting.
    anchor : the measured run that all seconds are scaled by; None for none.
    """

    step_seconds: float
    microbatches: int
    slowest: int
    parts: tuple[StepPart, ...]
    stages: tuple[StageTime, ...]
    alike: tuple[tuple[int, ...], ...]
    host_cost_seconds: float
    host_bound: bool
    error: TimeBar
    flops: FlopCount
    anchor: Anchor | None = None


def time_account(job: Job, plan: Plan) -> TimeAccount:
    """Where the step of a plan goes.

    Raises
    ------
    PlacementError
        if the layers do not fit the pipeline split.
    """
    p = priced(job, plan)
    step, passes = step_parts(p)
    # Times are homogeneous: an anchor scales passes and step alike, and the terms of a pass add up to what it takes.
    step, passes = step.times(job.time_factor), [work.times(job.time_factor) for work in passes]
    pace = passes[step.slowest].total
    stages = []
    for rank, (work, counts) in enumerate(zip(passes, rank_counts(job, plan), strict=True)):
        device = work.forward_device, work.backward_device
        host = work.forward_host, work.backward_host
        names: tuple[Pass, Pass] = ("forward", "backward")
        stages.append(
            StageTime(
                stage=rank,
                forward_device_seconds=device[0],
                forward_host_seconds=host[0],
                forward_seconds=work.forward,
                backward_device_seconds=device[1],
                backward_host_seconds=host[1],
                backward_seconds=work.backward,
                transfer_seconds=work.transfer,
                seconds=work.total,
                host_cost_seconds=work.forward + work.backward - sum(device),
                idle_seconds=pace - work.total,
                host_bound=tuple(n for n, d, h in zip(names, device, host, strict=True) if h > d),
                terms=pass_terms(p, counts, work, rank),
            )
        )
    tail = [(t.name, seconds * job.time_factor) for t, seconds in p.terms["tail"]]
    micro = int(p.values["microbatches"])
    rate = job.gbs * job.seq_len / step.seconds / job.gpus
    token, peak = flops_per_token(job.model, job.seq_len), job.machine.matrix_flops["bf16"]
    return TimeAccount(
        step_seconds=step.seconds,
        microbatches=micro,
        slowest=step.slowest,
        parts=_parts(job, plan, step, micro, tail),
        stages=tuple(stages),
        alike=_alike(stages),
        host_cost_seconds=micro * stages[step.slowest].host_cost_seconds,
        host_bound=bool(stages[step.slowest].host_bound),
        error=time_bar(job),
        flops=FlopCount(
            per_token=token,
            tflops_per_gpu=token * rate / 1e12,
            mfu=token * rate / peak,
            peak_tflops=peak / 1e12,
            convention=CONVENTION,
        ),
        anchor=job.anchor,
    )


def _parts(
    job: Job, plan: Plan, step: Step, microbatches: int, tail: list[tuple[str, float]]
) -> tuple[StepPart, ...]:
    """The parts of a step in the order of their time; those that take none are left out."""
    hides = {
        name: "not hidden behind the passes" if overlapped else "not overlapped"
        for name, overlapped in (
            ("gradient reduce", job.settings.overlap_grad_reduce),
            ("parameter gather", job.settings.overlap_param_gather),
        )
    }
    slowest = f", rank {step.slowest} the slowest" if plan.pp > 1 else ""
    fill = f"{plan.pp - 1} of {plan.pp} ranks fill and drain" + (
        f", by VPP {plan.vpp}" if plan.vpp > 1 else ""
    )
    found = [
        ("pipeline", step.pipeline, f"{microbatches} micro-batches{slowest}"),
        ("bubble", step.bubble, fill),
        ("gradient reduce", step.grad_reduce, hides["gradient reduce"]),
        ("parameter gather", step.param_gather, hides["parameter gather"]),
    ]
    sums: dict[str, float] = {}
    for name, seconds in tail:
        part = TAIL_PARTS.get(name, name.partition(".")[0])
        sums[part] = sums.get(part, 0.0) + seconds
    found += [(name, seconds, "once a step") for name, seconds in sums.items()]
    return tuple(StepPart(name=n, seconds=s, because=why) for n, s, why in found if s)


def _alike(stages: list[StageTime]) -> tuple[tuple[int, ...], ...]:
    """Pipeline ranks that take the same, the slowest first."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for one in stages:
        key = (
            one.forward_device_seconds,
            one.forward_host_seconds,
            one.backward_device_seconds,
            one.backward_host_seconds,
            one.transfer_seconds,
        )
        groups.setdefault(key, []).append(one.stage)
    ordered = sorted(groups.values(), key=lambda ranks: (-stages[ranks[0]].seconds, ranks))
    return tuple(tuple(ranks) for ranks in ordered)
