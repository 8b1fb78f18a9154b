"""What CUDA graphs gain and cost, and which cannot be: ``python examples/cuda_graphs.py``."""

from __future__ import annotations

from mbsolve import Job, Plan, check, evaluate, make_job, solve

GIB = 2**30
SCOPES = (("attn",), ("attn", "moe_router"), ("attn", "moe_router", "moe_preprocess"))
# Source: NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-cuda-graphs/card.yaml, 623 ms eager, 484 ms with the
# last of these scopes; the batch is not stated, so only the ratio can be compared.
MEASURED = 484 / 623 - 1


def compare(title: str, job: Job, eager: Plan) -> None:
    """Widen the captured scope step by step."""
    base = evaluate(job, eager)
    print(title)
    for scope in ((), *SCOPES):
        impl = "transformer_engine" if scope else "none"
        plan = eager.model_copy(update={"cuda_graph_impl": impl, "cuda_graph_scope": scope})
        cost = evaluate(job, plan)
        host = sum(t.seconds or 0.0 for t in cost.terms if t.name.startswith("host."))
        print(
            f"  {', '.join(scope) or 'eager':34} {cost.step_seconds:6.2f} s ({cost.step_seconds / base.step_seconds - 1:+.0%}),"
            f" of which launches {host:5.2f} s, {cost.worst_stage.peak_device_bytes / GIB:.1f} GiB"
        )


def decide() -> None:
    """Let the solver choose: scoped graphs where launches hold the device up, none where they hide behind it."""
    for job in (make_job("qwen3-30b-a3b", "h100", 16, 4096), make_job("llama3-70b", "h100", 64, 8192)):
        best = solve(job, top=1).best
        if best is None:
            print(f"{job.model.title}: no plan")
            continue
        plan, step = best.plan, best.evaluation.step_seconds
        chosen = f"{plan.cuda_graph_impl} {', '.join(plan.cuda_graph_scope)}".strip()
        eager = evaluate(job, plan.model_copy(update={"cuda_graph_impl": "none", "cuda_graph_scope": ()}))
        print(
            f"{job.model.title} on {job.gpus} H100, the best plan: graphs {chosen}; "
            f"{step:.2f} s a step, {eager.step_seconds:.2f} s without graphs"
        )


def refuse(job: Job, eager: Plan) -> None:
    """Show what the stack would refuse, and why."""
    print("Refused before any GPU is taken:")
    for impl, scope in (("transformer_engine", ("moe", "moe_router")), ("full_iteration", ())):
        plan = eager.model_copy(update={"cuda_graph_impl": impl, "cuda_graph_scope": scope})
        for broken in check(job, plan).violations:
            print(f"  {', '.join((impl, *scope))}: {broken.because} [{broken.rule}]")


def main() -> None:
    """Compare a run that the host limits much with one that it limits less, then show the refusals."""
    job = make_job("qwen3-30b-a3b", "h100", 16, 4096, gbs=32)
    eager = Plan(tp=2, pp=2, ep=4, sequence_parallel=True)
    compare(
        f"{job.model.title}, TP 2, PP 2, EP 4 (measured: {MEASURED:+.0%} for the widest scope)", job, eager
    )
    compare("The same job with EP 16 alone: fewer launches wait, so there is less to gain", job, Plan(ep=16))
    decide()
    refuse(job, eager)


if __name__ == "__main__":
    main()
