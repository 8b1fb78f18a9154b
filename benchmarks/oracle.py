"""Judge random configurations by the rules and by the real Megatron packages, and print how they differ.

A difference that is not known is shrunk: told by the plainest configuration that has it.

Run: ``MBSOLVE_ORACLE_PYTHON=... python benchmarks/oracle.py [N] [SEED] [--target TARGET]``; ``tests/oracle/README.md`` says how the
packages are installed.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracle.disagreements import Finding
from tests.oracle.packages import missing
from tests.oracle.sampling import JUDGED, Sample, samples
from tests.oracle.shrinking import asked, shrunk

Row = tuple[Finding, Sample]


def run(seed: int, number: int, target: str) -> list[Row]:
    """The findings on so many configurations, each with the configuration."""
    drawn = list(islice(samples(seed, target), number))
    return list(zip(asked(drawn), drawn, strict=True))


def _words(sample: Sample) -> str:
    job, plan = sample
    settings = job.settings.model_dump(exclude_defaults=True)
    return (
        f"{job.model.name} {job.machine.name} gpus={job.gpus} seq_len={job.seq_len} gbs={job.gbs} "
        f"{job.precision} {settings or ''} {plan.model_dump(exclude_defaults=True)}"
    )


def main(number: int, seed: int, target: str) -> int:
    """Print the classes, most frequent first; 1 if the rules and the packages differ."""
    reason = missing()
    if reason:
        print(reason)
        return 2
    workers = os.cpu_count() or 1
    share = -(-number // workers)
    with ProcessPoolExecutor(workers) as pool:
        parts = pool.map(run, range(seed, seed + workers), [share] * workers, [target] * workers)
        rows = [row for part in parts for row in part]
    legal = sum(finding.legal for finding, _ in rows)
    print(f"{target}: {len(rows)} configurations, {legal} of them legal by the rules")
    kinds = Counter(finding.kind for finding, _ in rows)
    print(", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    classes: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for finding, sample in rows:
        if finding.kind != "agree":
            classes[finding.kind, finding.what].append(sample)
    for (kind, what), cases in sorted(
        classes.items(), key=lambda item: (item[0][0] == "known", -len(item[1]))
    ):
        print(f"{len(cases):6} {kind}: {what}")
        if kind != "known":
            print(f"       {_words(shrunk(cases[0], kind))}")
    return int(any(kind not in ("agree", "known") for kind in kinds))


if __name__ == "__main__":
    options = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("number", nargs="?", type=int, default=20_000)
    options.add_argument("seed", nargs="?", type=int, default=1)
    options.add_argument("--target", choices=JUDGED, default=JUDGED[0])
    given = options.parse_args()
    raise SystemExit(main(given.number, given.seed, given.target))
