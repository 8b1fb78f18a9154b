"""A difference is told by the plainest configuration that has it."""

from __future__ import annotations

from collections.abc import Sequence

from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.reading import make_job
from tests.oracle.disagreements import Finding
from tests.oracle.sampling import Sample
from tests.oracle.shrinking import shrunk


def differs(samples: Sequence[Sample]) -> list[Finding]:
    """A difference wherever VPP is 3 and gradients are BF16, or offload is on in FP8."""
    out = []
    for job, plan in samples:
        one = plan.vpp == 3 and job.settings.grad_dtype == "bf16"
        other = plan.optimizer_offload_fraction > 0 and job.precision == "fp8_cs"
        out.append(Finding("we refuse" if one or other else "agree", "", legal=False))
    return out


def test_what_does_not_matter_is_taken_back() -> None:
    settings = Settings(grad_dtype="bf16", moment_dtype="bf16", op_fuser=True)
    job = make_job(model="llama3-8b", gpus=8, precision="fp8_cs", settings=settings)
    plan = Plan(tp=2, pp=2, vpp=3, sequence_parallel=True, recompute_modules=("mlp",))
    small = shrunk(Sample(job, plan), "we refuse", differs)
    assert small.plan == Plan(vpp=3)
    assert small.job.settings == Settings(grad_dtype="bf16") and small.job.precision == "bf16"


def test_of_two_reasons_one_is_left() -> None:
    job = make_job(model="llama3-8b", gpus=8, precision="fp8_cs", settings=Settings(grad_dtype="bf16"))
    small = shrunk(Sample(job, Plan(vpp=3, optimizer_offload_fraction=0.5)), "we refuse", differs)
    assert differs([small])[0].kind == "we refuse"
    assert (small.plan == Plan(vpp=3)) != (small.plan == Plan(optimizer_offload_fraction=0.5))
