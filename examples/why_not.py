"""Why a job has no plan, and what would help: ``python examples/why_not.py``."""

from __future__ import annotations

from mbsolve import make_job, solve


def main() -> None:
    """Ask for Llama 3 8B on one GPU with the optimizer kept on it."""
    job = make_job(model="llama3-8b", hardware="h100", gpus=1, seq_len=8192)
    outcome = solve(job, top=1, fixed={"optimizer_offload_fraction": 0})
    print(f"{outcome.status}: {job.model.title} on {job.gpus} {job.machine.title}, optimizer on the GPU")
    if outcome.explanation is None:
        return
    for cause in outcome.explanation.causes:
        print(f"  because {cause.text}  [{cause.rule}]")
    print("Solved to work:")
    for hint in outcome.explanation.hints:
        print(f"  {hint.text}  {hint.set}")


if __name__ == "__main__":
    main()
