"""Random configurations: the rules and the validators of the real packages agree, but for what is known."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.check import violations
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from tests.oracle.disagreements import LAWS, compare, known
from tests.oracle.packages import ask, missing
from tests.oracle.requests import request
from tests.oracle.sampling import Sample, samples

CATALOGUE = Path(__file__).parents[1] / "constraints" / "rules" / "catalogue_ids.json"
SEED, NUMBER, PARSED = 20_000, 500, 8


def test_the_tables_are_well_formed() -> None:
    table = known()
    assert set(table) == {"unchecked", "reasons", "beyond", "rewritten"}
    assert all(reason.endswith(".") for reason in table["unchecked"].values())
    assert all(set(entry) == {"says", "laws"} and entry["laws"] for entry in table["reasons"])
    assert all(set(entry) == {"says", "why"} for entry in table["beyond"])
    said = [entry["says"] for entry in table["reasons"] + table["beyond"]]
    assert len(set(said)) == len(said)
    ids = set(json.loads(CATALOGUE.read_text(encoding="utf-8")))
    assert {law for entry in table["reasons"] for law in entry["laws"]} <= ids | LAWS


def test_a_good_share_of_the_configurations_is_legal() -> None:
    legal = sum(not violations(sample.job, sample.plan) for sample in islice(samples(SEED), NUMBER))
    assert 0.3 < legal / NUMBER < 0.8


def test_the_same_seed_gives_the_same_configurations() -> None:
    assert list(islice(samples(7), 20)) == list(islice(samples(7), 20))


@pytest.mark.parametrize(
    ("changes", "error", "kind"),
    [
        ({}, None, "agree"),
        ({}, "ValueError: never heard", "they refuse"),
        ({}, "AssertionError: eval_global_batch_size (128) ...", "they refuse"),
        ({"ep": 2}, None, "we refuse"),
        ({"ep": 2}, "ValueError: num_moe_experts must be non None to use expert-parallel.", "agree"),
        ({"ep": 2}, "AssertionError: eval_global_batch_size (128) ...", "other reason"),
        ({"ep": 2}, "ValueError: never heard", "unknown reason"),
        ({"tp": 1}, None, "known"),
    ],
)
def test_differences_are_sorted(changes: dict[str, Any], error: str | None, kind: str) -> None:
    job = make_job(model="llama3-8b", gpus=8, seq_len=8192, gbs=128)
    plan = Plan(tp=2, sequence_parallel=True).model_copy(update=changes)
    answer = {"error": error, "stage": "config", "where": "config.py:1"}
    assert compare(Sample(job, plan), answer).kind == kind


@pytest.fixture(scope="module")
def stack() -> None:
    """Skip where the packages are not."""
    reason = missing()
    if reason:
        pytest.skip(reason)


@pytest.mark.usefixtures("stack")
def test_rules_and_packages_agree_but_for_what_is_known() -> None:
    drawn = list(islice(samples(SEED), NUMBER))
    # Some go through Bridge's own parser, which must come to the same and takes ten times as long.
    parsed = ask(
        [request(s.job, s.plan) for s in drawn]
        + [request(s.job, s.plan, direct=False) for s in drawn[:PARSED]]
    )
    answers, through_parser = parsed[:NUMBER], parsed[NUMBER:]
    assert [a["stage"] if a["error"] else None for a in through_parser] == [
        a["stage"] if a["error"] else None for a in answers[:PARSED]
    ]
    findings = [compare(s, a) for s, a in zip(drawn, answers, strict=True)]
    different = Counter((f.kind, f.what) for f in findings if f.kind not in ("agree", "known"))
    assert not different
    changed = {
        key for f, a in zip(findings, answers, strict=True) if f.legal for key in a.get("rewritten", ())
    }
    assert changed <= set(known()["rewritten"])
    # Both verdicts were met often, else this says little.
    assert sum(f.kind == "agree" and f.legal for f in findings) > NUMBER / 4
    assert sum(f.kind == "agree" and not f.legal for f in findings) > NUMBER / 10
