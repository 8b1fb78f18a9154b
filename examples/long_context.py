"""A mixture of experts at growing sequence length: ``python examples/long_context.py``."""

from __future__ import annotations

from mbsolve import make_job, solve
from mbsolve.report.why import reasons

GIB = 2**30
# The guide's first guess: CP is the length over 4096, the other sizes stay.
# Source: NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-moe-long-context.
GRIDS = {16384: 4, 65536: 16, 131072: 32}
FIXED = {"tp": 1, "pp": 8, "vpp": 4, "ep": 32, "dispatcher": "deepep"}


def free() -> None:
    """Let the solver decide everything for 131072 tokens on 256 H100, and say why CP is what it is."""
    job = make_job("dsv3", "h100", 256, 131072)
    outcome = solve(job, top=1)
    if outcome.best is None:
        print(f"nothing fixed: {outcome.status}")
        return
    dense, expert = outcome.best.evaluation.grids.dense, outcome.best.evaluation.grids.expert
    print(
        f"nothing fixed, BF16: TPxCPxDPxPP {'x'.join(map(str, dense))}, ETPxEPxEDPxPP {'x'.join(map(str, expert))}, "
        f"{outcome.best.evaluation.step_seconds:.1f} s a step, {outcome.status}"
    )
    for reason in reasons(job, outcome):
        if reason.startswith(("CP", "TP", "recompute")):
            print(f"  {reason}")


def main() -> None:
    """Take the guide's grid for each length and let the solver decide recompute, offload, graphs and overlap."""
    print("DeepSeek-V3 on 256 H100, FP8 block scaling, TP 1, PP 8, VPP 4, EP 32, DeepEP")
    for seq_len, cp in GRIDS.items():
        job = make_job("dsv3", "h100", 256, seq_len, precision="fp8_block")
        outcome = solve(job, top=1, fixed={**FIXED, "cp": cp}, time_limit=60)
        best = outcome.best
        if best is None:
            print(f"{seq_len} tokens, CP {cp}: {outcome.status}")
            continue
        plan, cost = best.plan, best.evaluation
        print(
            f"{seq_len} tokens, CP {cp}, {job.gbs} sequences: {cost.step_seconds:.1f} s a step, "
            f"{cost.tflops_per_gpu:.0f} TFLOP/s/GPU, {cost.worst_stage.peak_device_bytes / GIB:.1f} GiB, "
            f"{outcome.status}"
        )
        print(f"  recompute: {', '.join(plan.recompute_modules) or plan.recompute_granularity or 'none'}")
        print(f"  optimizer offload: {plan.optimizer_offload_fraction:.0%}")
        print(f"  activation offload: {', '.join(plan.fine_grained_offload_modules) or 'none'}")
        print(f"  CUDA graphs: {plan.cuda_graph_impl} {', '.join(plan.cuda_graph_scope)}".rstrip())
    free()


if __name__ == "__main__":
    main()
