"""What CPU offload saves and costs, and when it is worth it: ``python examples/cpu_offload.py``."""

from __future__ import annotations

from typing import Any

from mbsolve import Plan, check, evaluate, make_job, solve

GB, GIB = 1e9, 2**30
# Qwen3-30B-A3B on 16 H100 with TP 2, PP 2, EP 4: GB between steps and ms a step for each offloaded share. The batch
# is not stated, so only memory and the growth of the step can be compared.
# Source: NVIDIA-NeMo/Megatron-Bridge docs/training/cpu-offloading.md.
MEASURED = {0.0: (47.2, 996), 0.25: (43.4, 1871), 0.5: (39.6, 2484), 0.75: (35.6, 3187), 1.0: (32.0, 4189)}


def price() -> None:
    """Price the published runs: memory falls with the share, the step grows by a fixed part and one per share."""
    job = make_job("qwen3-30b-a3b", "h100", 16, 4096, gbs=32)
    layout = Plan(tp=2, pp=2, ep=4, sequence_parallel=True)
    base = evaluate(job, layout).step_seconds
    print(f"{job.model.title}, 16 x H100, TP 2, PP 2, EP 4: share of the optimizer on the host")
    print("share  GB between steps (measured)  added s a step (measured)  host GiB a node")
    for share, (gb, ms) in MEASURED.items():
        cost = evaluate(job, layout.model_copy(update={"optimizer_offload_fraction": share}))
        held, added = cost.stages[0].between_bytes / GB, cost.step_seconds - base
        print(
            f"{share:5.0%} {held:14.1f} ({gb:.1f}) {added:21.2f} ({(ms - 996) / 1e3:.2f}) "
            f"{cost.host_bytes_per_node / GIB:16.0f}"
        )


def compare() -> None:
    """Price the kinds of offload on one layout: what each frees of the fullest GPU, what it costs, what a node pins."""
    job = make_job("qwen3-30b-a3b", "h100", 16, 4096, gbs=256)
    plain = Plan(ep=16)
    base = evaluate(job, plain)
    peak = base.worst_stage.peak_device_bytes
    print(f"{job.model.title}, 16 x H100, EP 16: {peak / GIB:.1f} GiB, no offload")
    print("what is offloaded                    GiB freed  step    host GiB a node")
    kinds: dict[str, dict[str, Any]] = {
        "optimizer, half": {"optimizer_offload_fraction": 0.5},
        "optimizer, whole": {"optimizer_offload_fraction": 1.0},
        "activations of 8 layers": {"activation_offload_layers": 8},
        "core attention and projection": {"fine_grained_offload_modules": ("core_attn", "attn_proj")},
        "expert input and activation": {"fine_grained_offload_modules": ("expert_fc1", "moe_act")},
    }
    for name, changes in kinds.items():
        plan = plain.model_copy(update=changes)
        cost = evaluate(job, plan)
        freed, slower = peak - cost.worst_stage.peak_device_bytes, cost.step_seconds / base.step_seconds - 1
        legal = "" if check(job, plan, memory=False).legal else "  not legal"
        print(f"{name:36} {freed / GIB:9.1f} {slower:+7.1%} {cost.host_bytes_per_node / GIB:11.0f}{legal}")


def decide() -> None:
    """Let the solver decide: it offloads where nothing cheaper fits, and only as much as is needed."""
    print("Llama 3 8B, 8192 tokens: the best plan for each number of H100")
    for gpus in (1, 2, 4, 8):
        best = solve(make_job("llama3-8b", "h100", gpus, 8192), top=1, time_limit=60).best
        if best is None:
            print(f"{gpus} H100: no plan was found")
            continue
        plan = best.plan
        recompute = ", ".join(plan.recompute_modules) or plan.recompute_granularity or "none"
        print(
            f"{gpus} H100: {plan.optimizer_offload_fraction:.0%} of the optimizer offloaded, recompute {recompute}, "
            f"{best.evaluation.step_seconds:.1f} s a step"
        )


def main() -> None:
    """Price, compare, then decide."""
    price()
    compare()
    decide()


if __name__ == "__main__":
    main()
