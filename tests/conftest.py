"""Outcomes made by hand: reports are tested on numbers that no change of a model of cost can move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mbsolve.constraints.evaluation import Evaluation, Grids, MemoryBar, StageMemory, TermValue
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from mbsolve.solver.outcome import Cause, Explanation, Hint, Outcome, Ranked, Statistics

GIB = 2**30
BEST = Plan(
    tp=1,
    cp=32,
    pp=8,
    vpp=4,
    ep=32,
    pipeline_layout="Et|(tt|)*30mL",
    recompute_granularity="selective",
    recompute_modules=("mla_up_proj", "mlp", "moe"),
    dispatcher="deepep",
    precision_aware_optimizer=True,
    optimizer_offload_fraction=0.85,
)


def evaluation(step: float, used: float) -> Evaluation:
    """An evaluation whose terms add up."""
    shares = {"attention.attention.core": 0.6, "gemm.moe.experts": 0.2, "gemm.attention.qkv_and_proj": 0.1}
    shares |= {"ep.moe.dispatch": 0.07, "pipeline.bubble": 0.03}
    held = {"saved.attention.key": 0.6, "weights.moe_layers": 0.25, "gradients.moe_layers": 0.15}
    allocated = (used - 3) * GIB
    terms = tuple(TermValue(name=n, bytes=s * allocated, stage=0) for n, s in held.items())
    stage = StageMemory(
        stage=0,
        between_bytes=24.1 * GIB,
        pass_peak_bytes=allocated,
        pass_peak_moment="backward of attention in moe layer, chunk 0",
        optimizer_peak_bytes=25.0 * GIB,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + 1.5 * GIB,
        peak_device_bytes=used * GIB,
        peak_moment="backward of attention in moe layer, chunk 0",
        terms=terms,
    )
    return Evaluation(
        step_seconds=step,
        tokens_per_second_per_gpu=128 * 131072 / step / 256,
        flops_per_token=320.4e12 * 204.5 * 256 / (128 * 131072),
        tflops_per_gpu=320.4 * 204.5 / step,
        mfu=0.324,
        error_bar=0.11,
        memory_error=MemoryBar(
            name="MTP",
            error_bar=0.003,
            short=0.002,
            rows=40,
            validated=True,
            words="fits with 3% margin (memory error 0.3% over 40 rows of its class, MTP)",
        ),
        terms=tuple(TermValue(name=n, seconds=s * step) for n, s in shares.items()),
        stages=(stage,),
        host_bytes_per_node=343.5 * GIB,
        host_fullest_node_bytes=343.5 * GIB,
        headroom_bytes=(79.1 - used) * GIB,
        microbatches=128,
        grids=Grids(dense=(1, 32, 1, 8), expert=(1, 32, 1, 8)),
    )


@pytest.fixture(scope="session")
def job() -> Job:
    """DeepSeek-V3 at 128 Ki tokens on 256 H100."""
    return make_job(model="dsv3", hardware="h100", gpus=256, seq_len=131072, gbs=128)


@pytest.fixture(scope="session")
def outcomes() -> dict[str, Outcome]:
    """One outcome for each status."""
    second = BEST.model_copy(update={"dispatcher": "alltoall", "recompute_modules": ("mla_up_proj", "moe")})
    ranked = (
        Ranked(rank=1, plan=BEST, evaluation=evaluation(204.5, 76.2), tie_with_best=True),
        Ranked(
            rank=2,
            plan=second,
            evaluation=evaluation(219.25, 75.1),
            tie_with_best=False,
            differs_from_best=("dispatcher", "recompute_modules"),
        ),
    )
    assumed = {"hardware": "h100", "gbs": 128, "grad_dtype": "fp32", "overlap_grad_reduce": True}
    statistics = Statistics(raw_space=3.2e14)
    explanation = Explanation(
        causes=(
            Cause(rule="hbm-capacity", text="weights and optimizer state need at least 96.1 GiB of a GPU"),
            Cause(rule="hbm-capacity", text="a GPU has 76.7 GiB after the margin"),
        ),
        hints=(
            Hint(set={"gpus": 512}, text="Twice the GPUs: 61.0 GiB"),
            Hint(set={"grad_dtype": "bf16", "tp": 4}, text="Gradients in BF16"),
        ),
    )
    return {
        "optimal": Outcome(status="OPTIMAL", proven=1, plans=ranked, assumed=assumed, statistics=statistics),
        "feasible": Outcome(status="FEASIBLE", bound_seconds=198.0, plans=ranked[:1], statistics=statistics),
        "infeasible": Outcome(
            status="INFEASIBLE", explanation=explanation, assumed=assumed, statistics=statistics
        ),
        "unknown": Outcome(status="UNKNOWN", statistics=statistics),
    }


@pytest.fixture(scope="session")
def evaluate_as() -> Callable[[float, float], Evaluation]:
    """The maker of evaluations, for tests that need more of them."""
    return evaluation
