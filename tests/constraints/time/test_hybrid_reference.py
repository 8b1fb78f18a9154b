"""The step of hybrid models against an independent implementation of the same arithmetic, on published rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.evaluate import priced, rank_counts, step_parts
from mbsolve.constraints.time.catalogue import TIME_TERMS
from tests.constraints.time.test_reference import CLASSES, DEVICE, departs, error, job_of, plan_of

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "hybrid_rows.json").read_text())
# The reference leaves the steps of Mamba heads and the gates of the delta rule out of the input projection.
WITHIN = 0.01


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_step_and_its_parts_agree_with_the_reference(
    row: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The step lies within 1%, and each class of device time within 1% of its own or 0.2% of the step."""
    p = priced(job_of(row), plan_of(row), TIME_TERMS)
    step, _ = step_parts(p)
    counts = rank_counts(p.job, p.plan)[step.slowest]
    with capsys.disabled():
        signed, measured = step.seconds / row["reference"]["step"] - 1, row["measured_seconds"]
        print(
            f"\n  {signed:+.2%} of the reference, {step.seconds / measured - 1:+.1%} of the run: {row['id']}"
        )
    for theirs, ours in {**CLASSES, "scan": "scan"}.items():
        if ours in departs(row):
            continue
        seconds = sum(
            value * counts[t.per]
            for side in DEVICE
            for t, value in p.terms[side]
            if t.name.split(".")[0] == ours
        )
        slack = 2e-3 * row["reference"]["step"]
        assert seconds * p.values["microbatches"] == pytest.approx(
            row["reference"][theirs], rel=1e-2, abs=slack
        ), theirs
    assert departs(row) or abs(error(row, step)) <= WITHIN
