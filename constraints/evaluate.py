"""The plain evaluation of one plan: every term called once, no table and no solver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mbsolve.constraints.budgets import BUDGETS
from mbsolve.constraints.error_bars import error_bar, memory_bar
from mbsolve.constraints.evaluation import Evaluation, Grids, StageMemory, TermValue
from mbsolve.constraints.holding import Held, fullest_node, held
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.memory.capture import in_pool
from mbsolve.constraints.memory.device import reserved_permille
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.moments import Moments, all_moments
from mbsolve.constraints.placement import Replay, chunks_of, stage_counts, virtual_stages
from mbsolve.constraints.quantise import PERMILLE
from mbsolve.constraints.rule import RESERVED, Row, Term
from mbsolve.constraints.terms import TERMS
from mbsolve.constraints.time.step import StagePass, Step, step_of
from mbsolve.constraints.vocabulary import GRAPH_SCOPES, Plan
from mbsolve.models.flops import flops_per_token


@dataclass
class Priced:
    """A plan with the value of every term: seconds or bytes for one count."""

    job: Job
    plan: Plan
    values: dict[str, Any]
    terms: dict[Row, list[tuple[Term, float]]] = field(default_factory=lambda: defaultdict(list))

    def total(self, row: Row, counts: dict[str, int]) -> float:
        """The sum of a row under the given counts."""
        return sum(value * counts[t.per] for t, value in self.terms[row])


def priced(job: Job, plan: Plan, terms: Iterable[Term] = TERMS) -> Priced:
    """Call every term once."""
    flat = plan.values()
    flat |= derive(job, flat)
    flat |= whole_layers(job, flat)
    out = Priced(job, plan, flat)
    for t in terms:
        out.terms[t.row].append((t, float(t.call(job.facts, flat))))
    return out


def whole_layers(job: Job, values: Mapping[str, Any]) -> dict[str, bool]:
    """The scopes that graphs without one capture: every half of a layer. Layers of experts cannot be captured so."""
    scoped = values["cuda_graph_impl"] in ("local", "transformer_engine")
    if not scoped or job.model.is_moe or any(values[f"graph_{s}"] for s in GRAPH_SCOPES):
        return {}
    return {f"graph_{s}": True for s in ("attn", "mamba", "mlp")}


def replay_of(plan: Plan) -> Replay:
    """Which layers the plan checkpoints whole or offloads."""
    full = plan.recompute_granularity == "full"
    return Replay(
        (plan.recompute_method or "none") if full else "none",
        (plan.recompute_num_layers or 1) if full else 0,
        plan.activation_offload_layers,
    )


def rank_counts(job: Job, plan: Plan) -> list[dict[str, int]]:
    """Counts of every pipeline rank."""
    flat = plan.values()
    stages = virtual_stages(job.model, plan.pp, plan.vpp, flat["split"])
    return [stage_counts(chunks_of(stages, plan.pp, r), plan.pp, replay_of(plan)) for r in range(plan.pp)]


def stage_pass(p: Priced, counts: dict[str, int]) -> StagePass:
    """Seconds of one micro-batch on one rank."""
    return StagePass(
        p.total("forward_device", counts),
        p.total("forward_host", counts),
        p.total("backward_device", counts),
        p.total("backward_host", counts),
        p.total("transfer", counts),
    )


def step_parts(p: Priced) -> tuple[Step, list[StagePass]]:
    """The step of a priced plan and the pass of each pipeline rank."""
    passes = [stage_pass(p, c) for c in rank_counts(p.job, p.plan)]
    once = {"one": 1}
    step = step_of(
        p.job,
        p.plan.pp,
        p.plan.vpp,
        p.values["microbatches"],
        passes,
        p.total("grad_reduce", once),
        p.total("param_gather", once),
        p.total("tail", once),
    )
    return step, passes


def plan_moments(job: Job, plan: Plan) -> tuple[Moments, ...]:
    """The moments of every pipeline rank of a plan."""
    flat = plan.values()
    sizes = derive(job, flat)
    return all_moments(
        job.model, plan.pp, plan.vpp, flat["split"], replay_of(plan), sizes["microbatches"], plan.ep_overlap
    )


def device_held(p: Priced, moments: Moments) -> Held:
    """What one pipeline rank has reserved at each of its moments, and how much of it is not counted as allocated."""
    terms = [entry for row in RESERVED for entry in p.terms[row]]
    found = held(terms, moments)
    outside = np.array([t.row == "pool_bytes" or in_pool(t.name, p.values) for t, _ in terms])
    if p.plan.cuda_graph_impl == "full_iteration":
        # All that the passes hold lies in the graph's pool; the state between steps was there before it.
        before = found.totals[found.fullest("between")]
        passes = 1 - moments.counts[:, COLUMN["at_rest"]]
        return found._replace(pool=passes * np.maximum(found.totals - before, 0.0))
    return found._replace(pool=found.parts @ outside)


def stage_memory(p: Priced, moments: Moments) -> StageMemory:
    """Device memory of one rank: its fullest moment of each kind."""
    found = device_held(p, moments)
    peak, passing = found.peak, found.fullest("pass")
    reserved = float(found.totals[peak]) * reserved_permille(p.job) / PERMILLE
    return StageMemory(
        stage=moments.rank,
        between_bytes=float(found.allocated[found.fullest("between")]),
        pass_peak_bytes=float(found.allocated[passing]),
        pass_peak_moment=moments.labels[passing],
        optimizer_peak_bytes=float(found.allocated[found.fullest("optimizer")]),
        peak_allocated_bytes=float(found.allocated[peak]),
        pool_bytes=float(found.pool[peak]),
        peak_reserved_bytes=reserved,
        peak_device_bytes=reserved + p.total("context_bytes", {"one": 1}),
        peak_moment=moments.labels[peak],
        terms=found.at(peak),
    )


def host_by_rank(p: Priced, moments: Iterable[Moments]) -> list[float]:
    """Pinned host memory of one rank of each pipeline rank; what is pinned once stays pinned."""
    return [float(held(p.terms["host_bytes"], one).totals.max()) for one in moments]


def anchored_step(p: Priced) -> tuple[float, tuple[TermValue, ...]]:
    """Seconds of the step and its terms, which add up to it, as the job's anchor corrects them."""
    step, passes = step_parts(p)
    terms, factor = time_terms(p, step, passes), p.job.time_factor
    if p.job.anchor is not None:
        terms = tuple(t.model_copy(update={"seconds": (t.seconds or 0.0) * factor}) for t in terms)
    return step.seconds * factor, terms


def pass_terms(
    p: Priced, counts: dict[str, int], work: StagePass, stage: int, times: int = 1
) -> tuple[TermValue, ...]:
    """The passes of one pipeline rank as named seconds, scaled so that they add up to what the passes take.

    Device and host time of a pass overlap; each term gets its share of what the pass really takes (the
    tangent that is active), so a host launch that hides behind the device counts for nothing.

    Parameters
    ----------
    times : micro-batches.
    """
    found: dict[str, list[Any]] = {}
    for device, host, total in (
        ("forward_device", "forward_host", work.forward),
        ("backward_device", "backward_host", work.backward),
    ):
        sums = {row: p.total(row, counts) for row in (device, host)}  # type: ignore[arg-type]
        shares = _shares(sums[device], sums[host], total)
        for row, share in zip((device, host), shares, strict=True):
            for t, value in p.terms[row]:  # type: ignore[index]
                seconds = value * counts[t.per] * share * times
                if seconds:
                    entry = found.setdefault(t.name, [0.0, str(t.source)])
                    entry[0] += seconds
    if work.transfer:
        found["pipeline.transfer"] = [work.transfer * times, "exposed share of stage-to-stage transfers"]
    return tuple(TermValue(name=n, seconds=s, stage=stage, source=src) for n, (s, src) in found.items())


def time_terms(p: Priced, step: Step, passes: list[StagePass]) -> tuple[TermValue, ...]:
    """The step as named seconds: the passes of the slowest rank, and what is not hidden behind them."""
    counts = rank_counts(p.job, p.plan)[step.slowest]
    out = [*pass_terms(p, counts, passes[step.slowest], step.slowest, p.values["microbatches"])]
    for name, seconds in (
        ("pipeline.bubble", step.bubble),
        ("dp.grad_reduce_exposed", step.grad_reduce),
        ("dp.param_gather_exposed", step.param_gather),
    ):
        if seconds:
            out.append(TermValue(name=name, seconds=seconds, source="constraints/time/step.py"))
    out += [
        TermValue(name=t.name, seconds=value, source=str(t.source)) for t, value in p.terms["tail"] if value
    ]
    return tuple(out)


def _shares(device: float, host: float, total: float) -> tuple[float, float]:
    """How much of a second of device and of host work counts, given what the pass takes."""
    from mbsolve.constraints.time.step import SOFT_SCALE, TANGENTS

    a, b = max(TANGENTS, key=lambda t: t[0] * device + t[1] * host)
    reached = (a * device + b * host) / SOFT_SCALE
    scale = total / reached if reached else 0.0
    return a / SOFT_SCALE * scale, b / SOFT_SCALE * scale


@lru_cache(maxsize=4096)
def evaluate(job: Job, plan: Plan) -> Evaluation:
    """Step time and memory of a plan, in floating point.

    Parameters
    ----------
    job, plan : what is trained and how; the plan should be legal (`check.violations` is empty).

    Returns
    -------
    Evaluation
        seconds and bytes; its time terms add up to ``step_seconds``, and the terms of each stage to that
        stage's ``peak_allocated_bytes``.

    Raises
    ------
    PlacementError
        if the layers do not fit the pipeline split.
    """
    p = priced(job, plan)
    seconds, terms = anchored_step(p)
    moments = plan_moments(job, plan)
    stages = tuple(stage_memory(p, m) for m in moments)
    pinned = host_by_rank(p, moments)
    peak = max(s.peak_device_bytes for s in stages)
    tokens = job.gbs * job.seq_len
    rate = tokens / seconds / job.gpus
    token = flops_per_token(job.model, job.seq_len)
    flops = token * rate
    return Evaluation(
        step_seconds=seconds,
        tokens_per_second_per_gpu=rate,
        flops_per_token=token,
        tflops_per_gpu=flops / 1e12,
        mfu=flops / job.machine.matrix_flops["bf16"],
        error_bar=error_bar(job),
        memory_error=memory_bar(job, plan, peak),
        terms=terms,
        anchor=job.anchor,
        stages=stages,
        host_bytes_per_node=max(pinned) * min(job.gpus_per_node, job.gpus),
        host_fullest_node_bytes=fullest_node(pinned, job.gpus, job.gpus_per_node).bytes,
        headroom_bytes=job.machine.hbm_bytes - peak,
        microbatches=p.values["microbatches"],
        grids=Grids(
            dense=(plan.tp, plan.cp, p.values["dp"], plan.pp),
            expert=(plan.etp, plan.ep, p.values["edp"], plan.pp),
        ),
    )


def fits(job: Job, evaluation: Evaluation) -> dict[str, bool]:
    """Whether the device and the host hold the plan, by budget rule id."""
    return {budget.id: budget.holds(job, evaluation) for budget in BUDGETS}
