"""Random configurations: the rules and the validators of the real packages agree, but for what is known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.check import violations
from mbsolve.constraints.examples import breaks, build_job, build_plan
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.placement import virtual_stages
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from tests.oracle.disagreements import LAWS, compare, known
from tests.oracle.packages import ask, missing
from tests.oracle.requests import request
from tests.oracle.sampling import JUDGED, Sample, samples
from tests.oracle.shrinking import shrunk

CATALOGUE = Path(__file__).parents[1] / "constraints" / "rules" / "catalogue_ids.json"
SEED, NUMBER, PARSED = 20_000, 500, 8


def test_the_tables_are_well_formed() -> None:
    table = known()
    unchecked = {"unchecked", "unchecked_by_flags", "unchecked_by_patterns"}
    assert set(table) == {*unchecked, "reasons", "beyond", "rewritten"}
    assert all(reason.endswith(".") for name in unchecked for reason in table[name].values())
    assert {law for name in unchecked for law in table[name]} <= LAWS
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
        ({"tp": 1}, None, "agree"),
        ({"optimizer_offload_fraction": 1.5}, None, "known"),
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
def test_bridge_comes_to_the_same_through_its_own_parser() -> None:
    # It takes ten times as long as to set each field by itself.
    drawn = list(islice(samples(SEED), PARSED))
    parsed = ask([request(s.job, s.plan, direct=direct) for direct in (True, False) for s in drawn])
    stages = [a["stage"] if a["error"] else None for a in parsed]
    assert stages[:PARSED] == stages[PARSED:]


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("target", JUDGED)
def test_rules_and_packages_agree_but_for_what_is_known(target: str) -> None:
    drawn = list(islice(samples(SEED, target), NUMBER))
    answers = ask([request(s.job, s.plan) for s in drawn])
    findings = [compare(s, a) for s, a in zip(drawn, answers, strict=True)]
    different = Counter((f.kind, f.what) for f in findings if f.kind not in ("agree", "known"))
    first = next((i for i, f in enumerate(findings) if f.kind not in ("agree", "known")), None)
    assert first is None, (different, shrunk(drawn[first], findings[first].kind))
    changed = {
        key for f, a in zip(findings, answers, strict=True) if f.legal for key in a.get("rewritten", ())
    }
    assert changed <= set(known()["rewritten"])
    for sample, finding, answer in zip(drawn, findings, answers, strict=True):
        if finding.legal and not answer["error"]:
            job, plan, _ = normalise(sample.job, sample.plan)
            stages = virtual_stages(job.model, plan.pp, plan.vpp, plan.values()["split"])
            assert [sum(item.what == "layer" for item in stage) for stage in stages] == answer["layers"]
    # Both verdicts were met often, else this says little.
    assert sum(f.kind == "agree" and f.legal for f in findings) > NUMBER / 4
    assert sum(f.kind == "agree" and not f.legal for f in findings) > NUMBER / 10


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("target", JUDGED)
def test_the_packages_refuse_every_example_of_a_law_that_they_have(target: str) -> None:
    rows = [row for row in breaks() if row.get("job", {}).get("target", target) == target]
    examples = [_example(row, target) for row in rows]
    answers = ask([request(s.job, s.plan) for s in examples])
    findings = [compare(s, a) for s, a in zip(examples, answers, strict=True)]
    assert not [(r["id"], f) for r, f in zip(rows, findings, strict=True) if f.kind not in ("agree", "known")]
    # What another target's law refuses, or is cleared before it is judged, the packages accept.
    accepted = {r["id"] for r, f in zip(rows, findings, strict=True) if f.legal}
    elsewhere = {rule.id for rule in RULES if not rule.holds_for(target)}
    assert accepted <= elsewhere | {"sp-needs-tp-mcore"}


def _example(row: Mapping[str, Any], target: str) -> Sample:
    job = build_job(row["base"], {**row.get("job", {}), "target": target})
    major, minor = job.machine.compute_capability
    machine = job.machine.model_copy(update={"compute_capability": (major, minor)})
    return Sample(job.model_copy(update={"machine": machine}), build_plan(row["base"], row.get("plan", {})))
