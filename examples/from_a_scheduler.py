"""A scheduler asks what a job would do on several partitions: ``python examples/from_a_scheduler.py``."""

from __future__ import annotations

from typing import NamedTuple

from mbsolve import make_job, solve

TOKENS = 1e9


class Offer(NamedTuple):
    """What a partition would give: None where no plan exists."""

    gpus: int
    step_seconds: float | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    error: float = 0.0
    why_not: str = ""


def ask(gpus: int, model: str = "llama3-8b", seq_len: int = 8192) -> Offer:
    """Solve one size; an infeasible one is an answer, not an error."""
    outcome = solve(make_job(model, "h100", gpus, seq_len), top=1, time_limit=60)
    if outcome.best is None:
        causes = outcome.explanation.causes if outcome.explanation else ()
        return Offer(gpus, why_not=causes[0].text if causes else outcome.status)
    cost = outcome.best.evaluation
    hours = TOKENS / (cost.tokens_per_second_per_gpu * gpus) / 3600
    return Offer(gpus, cost.step_seconds, hours, hours * gpus, cost.error_bar)


def main() -> None:
    """Ask for four partitions and name the cheapest and the fastest."""
    offers = [ask(gpus) for gpus in (2, 8, 16, 32)]
    print("GPUs   s/step   hours for 1e9 tokens   GPU-hours")
    for offer in offers:
        if offer.hours is None:
            print(f"{offer.gpus:4}   no plan: {offer.why_not}")
        else:
            print(f"{offer.gpus:4} {offer.step_seconds:8.2f} {offer.hours:22.2f} {offer.gpu_hours:11.2f}")
    possible = [offer for offer in offers if offer.hours is not None]
    if possible:
        error = max(offer.error for offer in possible)
        cheapest = min(possible, key=lambda offer: offer.gpu_hours or 0.0)
        fastest = min(possible, key=lambda offer: offer.hours or 0.0)
        print(
            f"Cheapest: {cheapest.gpus} GPUs. Fastest: {fastest.gpus} GPUs. GPU-hours within {error:.0%} are a tie."
        )


if __name__ == "__main__":
    main()
