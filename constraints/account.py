"""The memory of a plan in full: every pipeline rank at every kind of moment, the host, and the formats of the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.evaluate import Priced, device_held, evaluate, fits, plan_moments, priced
from mbsolve.constraints.evaluation import StageMemory, TermValue
from mbsolve.constraints.holding import KINDS, Held, Kind, fullest_node, held
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.constants import source_of
from mbsolve.constraints.memory.device import device_limit, host_limit
from mbsolve.constraints.memory.shards import BLOCKS
from mbsolve.constraints.vocabulary import Plan

__all__ = ["Account", "Format", "HostAccount", "MomentMemory", "StageAccount", "account"]


Part = Literal["weights", "gradients", "masters", "moments"]
Of = Literal["parameter", "shard element"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MomentMemory(_Data):
    """What a pipeline rank holds at the fullest moment of a kind.

    ``terms`` add up to ``allocated_bytes`` and ``pool_bytes``, what is reserved, but not counted as allocated.
    """

    kind: Kind
    moment: str
    allocated_bytes: float
    pool_bytes: float
    terms: tuple[TermValue, ...]


class StageAccount(StageMemory):
    """Device memory of one pipeline rank at all kinds of moments.

    Parameters
    ----------
    free_bytes : what is left below the limit at the peak; negative where the rank is over it.
    moments : one for each of ``holding.KINDS``.
    beyond : what the driver counts beside what is allocated at the peak: with the terms of the peak they add up to
        ``peak_device_bytes``.
    """

    free_bytes: float
    moments: tuple[MomentMemory, ...]
    beyond: tuple[TermValue, ...]


class HostAccount(_Data):
    """Pinned memory of a node.

    Parameters
    ----------
    limit_bytes : what may be pinned.
    bytes_per_node : every rank of the node taken to be on the fullest pipeline rank, as the budget has it.
    fullest_node_bytes : the ranks that the fullest node really has.
    node : which node that is.
    ranks : how many of its ranks are on each pipeline rank.
    terms : what these pin together; they add up to ``fullest_node_bytes``.
    """

    limit_bytes: float
    bytes_per_node: float
    fullest_node_bytes: float
    node: int
    ranks: dict[int, int]
    terms: tuple[TermValue, ...]


class Format(_Data):
    """How one part of the training state is stored.

    Parameters
    ----------
    setting : the field of the settings that says it.
    format : the numeric format, by its name.
    bytes_each : bytes on the device for each element that the fullest rank keeps, the mean over its blocks.
    of : what an element is: a parameter of the rank, or one of its shard of the optimizer.
    default : whether nobody stated it, so that it is the target's default.
    """

    part: Part
    setting: str
    format: str
    bytes_each: float
    of: Of
    default: bool = False


class Account(_Data):
    """The memory of a plan.

    Parameters
    ----------
    hbm_bytes, limit_bytes : what the driver gives a process, and that less the margin.
    fits : by budget, as ``check`` judges.
    step_seconds : what the memory buys.
    alike : pipeline ranks that hold the same, fullest first.
    """

    hbm_bytes: float
    limit_bytes: float
    fits: dict[str, bool]
    step_seconds: float
    stages: tuple[StageAccount, ...]
    alike: tuple[tuple[int, ...], ...]
    formats: tuple[Format, ...]
    host: HostAccount

    @property
    def worst_stage(self) -> StageAccount:
        """The pipeline rank with the highest peak."""
        return max(self.stages, key=lambda s: s.peak_device_bytes)


RESERVE: Final = "reserve.allocator"


def account(job: Job, plan: Plan, defaults: Iterable[str] = ()) -> Account:
    """The memory of a plan, in bytes; its totals are those of `evaluate`.

    Parameters
    ----------
    defaults : settings that nobody stated.

    Raises
    ------
    PlacementError
        if the layers do not fit the pipeline split.
    """
    found, p, moments = evaluate(job, plan), priced(job, plan), plan_moments(job, plan)
    device = [device_held(p, one) for one in moments]
    stages = tuple(_stage(job, p, s, h) for s, h in zip(found.stages, device, strict=True))
    host = [held(p.terms["host_bytes"], one) for one in moments]
    worst = max(stages, key=lambda s: s.peak_device_bytes)
    return Account(
        hbm_bytes=job.machine.hbm_bytes,
        limit_bytes=device_limit(job),
        fits=fits(job, found),
        step_seconds=found.step_seconds,
        stages=stages,
        alike=_alike(stages),
        formats=_formats(p, worst, frozenset(defaults)),
        host=_host(job, host, found.host_bytes_per_node),
    )


def _stage(job: Job, p: Priced, memory: StageMemory, found: Held) -> StageAccount:
    moments = []
    for kind in KINDS:
        at = found.fullest(kind)
        moments.append(
            MomentMemory(
                kind=kind,
                moment=found.moments.labels[at],
                allocated_bytes=float(found.allocated[at]),
                pool_bytes=float(found.pool[at]),
                terms=found.at(at),
            )
        )
    slack = memory.peak_reserved_bytes - memory.peak_allocated_bytes - memory.pool_bytes
    reserve = TermValue(
        name=RESERVE, bytes=slack, stage=memory.stage, source=str(source_of("reserved_permille"))
    )
    context = (
        TermValue(name=t.name, bytes=value, stage=memory.stage, source=str(t.source))
        for t, value in p.terms["context_bytes"]
    )
    return StageAccount(
        **dict(memory),
        free_bytes=device_limit(job) - memory.peak_device_bytes,
        moments=tuple(moments),
        beyond=tuple(one for one in (reserve, *context) if one.bytes),
    )


def _alike(stages: Sequence[StageAccount]) -> tuple[tuple[int, ...], ...]:
    """Pipeline ranks of which every moment holds the same terms, the fullest first."""
    groups: dict[Any, list[StageAccount]] = {}
    for stage in stages:
        key = tuple((m.moment, tuple((t.name, t.bytes) for t in m.terms)) for m in stage.moments)
        groups.setdefault(key, []).append(stage)
    ordered = sorted(groups.values(), key=lambda group: -group[0].peak_device_bytes)
    return tuple(tuple(stage.stage for stage in group) for group in ordered)


def _host(job: Job, by_rank: Sequence[Held], bound: float) -> HostAccount:
    """What the fullest node pins: a rank keeps what it has pinned, so its fullest moment counts."""
    node = fullest_node([float(h.totals[h.peak]) for h in by_rank], job.gpus, job.gpus_per_node)
    sums: dict[str, TermValue] = {}
    for rank, number in node.ranks.items():
        for term in by_rank[rank].at(by_rank[rank].peak):
            before = sums[term.name].bytes if term.name in sums else 0.0
            more = (before or 0.0) + number * (term.bytes or 0.0)
            sums[term.name] = TermValue(name=term.name, bytes=more, source=term.source)
    return HostAccount(
        limit_bytes=host_limit(job),
        bytes_per_node=bound,
        fullest_node_bytes=node.bytes,
        node=node.number,
        ranks=node.ranks,
        terms=tuple(sums.values()),
    )


def _formats(p: Priced, worst: StageAccount, defaults: frozenset[str]) -> tuple[Format, ...]:
    """The formats of the state, with the bytes that an element takes of the fullest rank's device."""
    settings = p.job.settings
    between = next(m for m in worst.moments if m.kind == "between")
    parameters, shard = _elements(p, between)
    if not p.job.quantised:
        # Nothing but a quantised job asks how weights are stored.
        defaults |= {"fp8_param"}
    weights = p.job.precision if p.job.quantised and settings.fp8_param else "bf16"
    rows: tuple[tuple[Part, str, str, Of, float], ...] = (
        ("weights", "fp8_param", weights, "parameter", parameters),
        ("gradients", "grad_dtype", settings.grad_dtype, "parameter", parameters),
        ("masters", "main_param_dtype", settings.main_param_dtype, "shard element", shard),
        ("moments", "moment_dtype", settings.moment_dtype, "shard element", shard),
    )
    return tuple(
        Format(
            part=part,
            setting=setting,
            format=form,
            bytes_each=sum(t.bytes or 0.0 for t in between.terms if t.name.startswith(f"{part}.")) / number,
            of=of,
            default=setting in defaults,
        )
        for part, setting, form, of, number in rows
        if number
    )


def _elements(p: Priced, between: MomentMemory) -> tuple[float, float]:
    """Parameters that a pipeline rank holds, and elements of its shard of the optimizer."""
    values = {**p.job.facts, **p.values}
    each = {t.name: value for t, value in p.terms["device_bytes"]}
    held_now = {t.name: t.bytes or 0.0 for t in between.terms}
    parameters = shard = 0.0
    for block in BLOCKS:
        name = f"weights.{block.name}"
        if held_now.get(name):
            count, found = held_now[name] / each[name], block.count(values)
            parameters += count * float(np.asarray(found.dense, float) + found.expert)
            shard += count * float(block.shard(values))
    return parameters, shard
