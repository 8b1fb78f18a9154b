"""The best plan of one job, from Python: ``python examples/one_plan.py``."""

from __future__ import annotations

from mbsolve import make_job, solve

GIB = 2**30


def main() -> None:
    """Solve Llama 3 8B on one node and print the plans and where the time goes."""
    job = make_job(model="llama3-8b", hardware="h100", gpus=8, seq_len=8192)
    outcome = solve(job, top=3)
    print(f"{job.model.title} on {job.gpus} {job.machine.title}: {outcome.status}")
    for ranked in outcome.plans:
        plan, cost = ranked.plan, ranked.evaluation
        print(
            f"{ranked.rank}. TP {plan.tp}, CP {plan.cp}, PP {plan.pp}, VPP {plan.vpp}: "
            f"{cost.step_seconds:.2f} s a step, {cost.tokens_per_second_per_gpu:.0f} tokens/s/GPU, "
            f"{cost.worst_stage.peak_device_bytes / GIB:.1f} GiB"
        )
    if outcome.best is None:
        return
    print("The largest parts of the best step:")
    for term in sorted(outcome.best.evaluation.terms, key=lambda term: -(term.seconds or 0.0))[:5]:
        print(f"  {term.seconds:6.2f} s  {term.name}")


if __name__ == "__main__":
    main()
