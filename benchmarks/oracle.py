"""Judge random configurations by the rules and by the real Megatron packages, and print how they differ.

Run: ``MBSOLVE_ORACLE_PYTHON=... python benchmarks/oracle.py [N] [SEED]``; ``tests/oracle/README.md`` says how the
packages are installed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracle.disagreements import Finding, compare
from tests.oracle.packages import ask, missing
from tests.oracle.requests import request
from tests.oracle.sampling import Sample, samples

Row = tuple[Finding, str]


def run(seed: int, number: int) -> list[Row]:
    """The findings on so many configurations, each with the configuration in words."""
    drawn = list(islice(samples(seed), number))
    answers = ask([request(sample.job, sample.plan) for sample in drawn])
    return [(compare(s, a), _words(s)) for s, a in zip(drawn, answers, strict=True)]


def _words(sample: Sample) -> str:
    job, plan = sample
    settings = job.settings.model_dump(exclude_defaults=True)
    return (
        f"{job.model.name} {job.machine.name} gpus={job.gpus} seq_len={job.seq_len} gbs={job.gbs} "
        f"{job.precision} {settings or ''} {plan.model_dump(exclude_defaults=True)}"
    )


def main(number: int, seed: int) -> int:
    """Print the classes, most frequent first; 1 if the rules and the packages differ."""
    reason = missing()
    if reason:
        print(reason)
        return 2
    workers = os.cpu_count() or 1
    share = -(-number // workers)
    with ProcessPoolExecutor(workers) as pool:
        parts = pool.map(run, range(seed, seed + workers), [share] * workers)
        rows = [row for part in parts for row in part]
    legal = sum(finding.legal for finding, _ in rows)
    print(f"{len(rows)} configurations, {legal} of them legal by the rules")
    kinds = Counter(finding.kind for finding, _ in rows)
    print(", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    classes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for finding, words in rows:
        if finding.kind != "agree":
            classes[finding.kind, finding.what].append(words)
    for (kind, what), cases in sorted(
        classes.items(), key=lambda item: (item[0][0] == "known", -len(item[1]))
    ):
        print(f"{len(cases):6} {kind}: {what}")
        if kind != "known":
            print(f"       {cases[0]}")
    return int(any(kind not in ("agree", "known") for kind in kinds))


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    raise SystemExit(main(*(numbers + [20_000, 1][len(numbers) :])))
