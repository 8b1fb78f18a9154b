"""Solve jobs across models and machines, and put the launch lines of their plans to the real Megatron packages.

Run: ``MBSOLVE_ORACLE_PYTHON=... python benchmarks/accepted.py [--target TARGET]``; ``tests/oracle/README.md`` says how the packages are
installed. The exit code is 1 when some plan is refused, or changed by the stack.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mbsolve.reading import make_job
from mbsolve.solver.api import solve
from tests.oracle.packages import ask, missing
from tests.oracle.requests import request
from tests.oracle.sampling import JUDGED

JOBS = (
    ("llama3-8b", "h100", 8, 8192),
    ("llama3-70b", "h100", 64, 8192),
    ("qwen3-30b-a3b", "h100", 16, 4096),
    ("qwen3-235b-a22b", "gb200", 128, 4096),
    ("dsv3", "h100", 256, 131072),
    ("dsv3", "h100", 1024, 4096),
    ("mixtral-8x7b", "h100", 64, 4096),
    ("gpt-oss-20b", "h100", 32, 4096),
    ("moonlight-16b", "h100", 16, 4096),
    ("glm-4.5-air", "h200", 64, 4096),
)


def main(target: str) -> int:
    """Print a line for each job."""
    reason = missing()
    if reason is not None:
        print(reason)
        return 2
    asked = []
    for model, hardware, gpus, seq in JOBS:
        job = make_job(model, hardware, gpus, seq, target=target)
        best = solve(job, top=1, explained=False).best
        if best is not None:
            asked.append((f"{model} {gpus}x{hardware} {seq}", request(job, best.plan)))
    wrong = 0
    for (name, _), answer in zip(asked, ask([r for _, r in asked]), strict=True):
        changed = answer.get("rewritten") or {}
        bad = answer.get("error") is not None or bool(changed)
        wrong += bad
        print(f"{name:34} {answer.get('error') or 'accepted'}{f', changed: {changed}' if changed else ''}")
    print(f"{len(asked)} of {len(JOBS)} jobs have a plan; {wrong} refused or changed")
    return int(bool(wrong))


if __name__ == "__main__":
    options = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--target", choices=JUDGED, default=JUDGED[0])
    sys.exit(main(options.parse_args().target))
