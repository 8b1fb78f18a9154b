"""How long the solver takes for some jobs, as ratios to the first one, and how much of each space it opened.

Run: ``python benchmarks/solve_jobs.py [TOP]``
"""

from __future__ import annotations

import gc
import sys
import time

from mbsolve.reading import make_job
from mbsolve.solver.api import solve

JOBS = (
    ("dsv3", "h100", 256, 131072),
    ("dsv3", "h100", 1024, 4096),
    ("dsv3", "h100", 248, 4096),
    ("qwen3-235b-a22b", "gb200", 128, 131072),
    ("qwen3-30b-a3b", "h100", 16, 4096),
    ("llama3-70b", "h100", 64, 8192),
    ("llama3-8b", "h100", 1, 8192),
)


def main(top: int) -> None:
    """Solve the jobs one after the other and print a row for each."""
    gc.disable()
    print(
        f"{'job':42} {'status':10} {'seconds':>8} {'ratio':>6} {'space':>8} {'layouts':>8} {'in CP-SAT':>9} {'CP-SAT':>7}"
    )
    first = 0.0
    for model, hardware, gpus, seq in JOBS:
        start = time.perf_counter()
        outcome = solve(make_job(model, hardware, gpus, seq), top=top)
        took = time.perf_counter() - start
        first = first or took
        n = outcome.statistics
        print(
            f"{f'{model} {gpus}x{hardware} {seq}':42} {outcome.status:10} {took:8.2f} {took / first:6.2f} "
            f"{n.raw_space:8.1e} {n.layouts:8} {n.candidates:9} {n.solve_seconds / took:7.0%}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
