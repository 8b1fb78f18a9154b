"""What three kinds of CPU offload free, on the device and on the host, and cost: ``python examples/offload_memory.py``."""

from __future__ import annotations

from typing import Any, Final

from mbsolve import Job, Plan, check, evaluate, make_job
from mbsolve.constraints.account import account

GIB: Final = 2**30
LAYOUT: Final = Plan(tp=2, sequence_parallel=True)
# The optimizer's state, whole layers of activations (no pipeline then), modules of activations.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "half of the optimizer": {"optimizer_offload_fraction": 0.5},
    "all of the optimizer": {"optimizer_offload_fraction": 1.0},
    "activations of 8 layers": {"activation_offload_layers": 8},
    "activations of 31 layers": {"activation_offload_layers": 31},
    "attention, its projection": {"fine_grained_offload_modules": ("core_attn", "attn_proj")},
    "the same and QKV": {"fine_grained_offload_modules": ("core_attn", "attn_proj", "qkv_linear")},
}


def compare(job: Job) -> None:
    """Price each way on the same layout: optimizer offload lowers the floor, activation offload the peak."""
    print(f"{job.model.title}, {job.seq_len} tokens, {job.gpus} x {job.machine.title}, TP 2, DP 4; GiB a GPU")
    print(f"{'offloaded':<27}{'between steps':>13}{'peak':>8}{'host a node':>13}{'s a step':>10}")
    for name, fields in WAYS.items():
        plan = LAYOUT.model_copy(update=fields)
        assert check(job, plan, memory=False).legal
        cost = evaluate(job, plan)
        fullest = cost.worst_stage
        print(
            f"{name:<27}{fullest.between_bytes / GIB:13.1f}{fullest.peak_device_bytes / GIB:8.1f}"
            f"{cost.host_fullest_node_bytes / GIB:13.0f}{cost.step_seconds:10.2f}"
        )


def pinned(job: Job, plan: Plan) -> None:
    """Say what the fullest node pins, term by term."""
    host = account(job, plan).host
    print(f"Pinned on a node, of {host.limit_bytes / GIB:.0f} GiB that may be:")
    for term in sorted(host.terms, key=lambda one: -(one.bytes or 0.0)):
        print(f"  {(term.bytes or 0.0) / GIB:6.1f} GiB  {term.name}")


def main() -> None:
    """Compare, then look into the host."""
    job = make_job("llama3-8b", "h100", 8, 8192, gbs=64)
    compare(job)
    pinned(job, LAYOUT.model_copy(update=WAYS["the same and QKV"]))


if __name__ == "__main__":
    main()
