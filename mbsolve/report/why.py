"""Why the best plan is as it is: each choice taken back alone, and what that does to time, memory or a rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mbsolve.constraints.check import violations
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.graph_help import graph_help
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.time_account import time_account
from mbsolve.constraints.vocabulary import Plan
from mbsolve.report import words
from mbsolve.report.time import graph_lines
from mbsolve.solver.outcome import Outcome

Change = tuple[str, str, dict[str, Any]]
NOTHING_RECOMPUTED: dict[str, Any] = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": (),
}

ONE_STAGE: dict[str, Any] = {
    "pp": 1,
    "vpp": 1,
    "pipeline_layout": None,
    "first_stage_layers": None,
    "last_stage_layers": None,
    "embedding_in_split": False,
    "loss_in_split": False,
}


def reasons(job: Job, outcome: Outcome) -> list[str]:
    """One sentence for each choice of the best plan that can be taken back by itself.

    Each compares the plan with the same plan without the choice, both by plain evaluation.
    """
    if outcome.best is None:
        return []
    plan, chosen = outcome.best.plan, outcome.best.evaluation
    return [
        *(
            f"{choice}: {_effect(job, chosen, plan.model_copy(update=update), without)}"
            for choice, without, update in _changes(job, plan)
        ),
        *(f"eager: {text}." for text in _uncaptured(job, plan)),
    ]


def _uncaptured(job: Job, plan: Plan) -> list[str]:
    """Why a plan that waits for its host has no graphs; nothing for any other plan."""
    if plan.cuda_graph_impl != "none":
        return []
    account = time_account(job, plan)
    return graph_lines(graph_help(job, plan, account))


def _changes(job: Job, plan: Plan) -> Iterator[Change]:
    """Each choice as (what was chosen, the plan without it in words, the fields that take it back)."""
    if plan.cp > 1:
        half = plan.cp // 2 if plan.cp % 2 == 0 else 1
        yield f"CP {plan.cp}", f"with CP {half} and more DP", {"cp": half}
    if plan.tp > 1:
        # Sequence parallelism ends with tensor parallelism.
        half = plan.tp // 2 if plan.tp % 2 == 0 else 1
        update = {"tp": half, "sequence_parallel": plan.sequence_parallel and half > 1}
        yield f"TP {plan.tp}", f"with TP {half} and more DP", update
    if plan.pp > 1:
        yield f"PP {plan.pp}", "without a pipeline and with more DP", ONE_STAGE
    if plan.vpp > 1 and plan.pipeline_layout is None:
        yield f"VPP {plan.vpp}", "without interleaving", {"vpp": 1}
    if plan.mbs > 1:
        yield f"micro-batch {plan.mbs}", "with 1", {"mbs": 1}
    if plan.ep > 1:
        half = plan.ep // 2 if plan.ep % 2 == 0 else 1
        yield f"EP {plan.ep}", f"with EP {half}", {"ep": half}
    if plan.dispatcher != "alltoall" and job.model.is_moe:
        yield f"dispatcher {plan.dispatcher}", "with alltoall", {"dispatcher": "alltoall"}
    if plan.ep_overlap:
        yield "EP overlap", "without it", {"ep_overlap": False, "delay_wgrad": False}
    if plan.delay_wgrad:
        yield "delayed wgrad", "without it", {"delay_wgrad": False}
    if plan.recompute_granularity:
        yield f"recompute {words.recompute(plan)}", "without it", NOTHING_RECOMPUTED
    if plan.optimizer_offload_fraction:
        share = f"{plan.optimizer_offload_fraction:.0%} of the optimizer state on the host"
        yield share, "without offload", {"optimizer_offload_fraction": 0.0}
    if plan.activation_offload_layers:
        yield "layer offload", "without it", {"activation_offload_layers": 0}
    if plan.fine_grained_offload_modules:
        yield "fine-grained offload", "without it", {"fine_grained_offload_modules": ()}
    if plan.cuda_graph_impl != "none":
        eager = {"cuda_graph_impl": "none", "cuda_graph_scope": ()}
        yield f"CUDA graphs {words.graphs(plan)}", "eager", eager
    if plan.precision_aware_optimizer:
        yield "precision-aware optimizer", "without it", {"precision_aware_optimizer": False}


def _effect(job: Job, chosen: Evaluation, other: Plan, without: str) -> str:
    broken = violations(job, other)
    if broken:
        return f"{without}, a rule is broken: {broken[0].because.rstrip('.')} [{broken[0].rule}]."
    try:
        e = evaluate(job, other)
    except PlacementError as error:
        return f"{without}, the layers do not fit: {str(error).rstrip('.')}."
    used = e.worst_stage.peak_device_bytes
    more = used - chosen.worst_stage.peak_device_bytes
    step = f"{words.seconds(e.step_seconds)} a step ({words.compared(e.step_seconds, chosen.step_seconds)})"
    room = fits(job, e)
    if not room["hbm-capacity"]:
        limit = device_limit(job)
        return f"{without}, {words.gib(used)} GiB do not fit into {words.gib(limit)}; it would be {step}."
    if not room["host-ram-capacity"]:
        return (
            f"{without}, {words.gib(e.host_bytes_per_node)} GiB do not fit into the host; it would be {step}."
        )
    return f"{without}, {step} and {more / words.GIB:+.1f} GiB."
