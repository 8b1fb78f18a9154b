"""Reports of users: the law that was broken is found, and plans that ran are legal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.check import Verdict, check, violations
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model, parse_model

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text())
PLACEHOLDER = {"gpus": 4096, "seq_len": 4096, "gbs": 4096}


class CaseSettings(Settings, frozen=True):
    """Settings with the one that turns the padding of the vocabulary off."""

    make_vocab_size_divisible_by: int = 128


def build(case: dict[str, Any]) -> tuple[Job, Plan]:
    model = load_model(case["model"]) if isinstance(case["model"], str) else parse_model(case["model"])
    if "mtp_num_layers" in case:
        model = model.model_copy(update={"mtp_num_layers": case["mtp_num_layers"]})
    machine = load_machine(case["machine"])
    if "device_name" in case:
        machine = machine.model_copy(update={"device_name": case["device_name"]})
    sizes = {name: case[name] or default for name, default in PLACEHOLDER.items()}
    job = Job(
        model=model,
        machine=machine,
        gpus_per_node=case["gpus_per_node"],
        precision=case["precision"],
        target=case["target"],
        settings=CaseSettings(**case.get("settings", {})),
        **sizes,
    )
    return job, Plan(**case["plan"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_law_of_the_report_is_found(case: dict[str, Any]) -> None:
    job, plan = build(case)
    found = violations(job, plan, unknown=case.get("unknown", ()))
    rules = {violation.rule for violation in found}
    if case["expect"]:
        assert rules & set(case["expect"]), rules
        assert rules <= set(case["expect"]), rules
    else:
        assert rules == set()


def repairs_of(id: str) -> list[dict[str, Any]]:
    case = next(case for case in CASES if case["id"] == id)
    found = violations(*build(case), unknown=case.get("unknown", ()))
    return [repair.set for violation in found for repair in violation.repairs]


@pytest.mark.parametrize(
    ("id", "repair"),
    [
        ("K01", {"ep": 4}),
        ("K01", {"pp": 1}),
        ("K01", {"gpus": 16}),
        ("K03", {"last_stage_layers": 10}),
        ("K03", {"last_stage_layers": 13}),
        ("K04", {"last_stage_layers": 3}),
        ("K04", {"last_stage_layers": 10}),
        ("K04", {"last_stage_layers": 17}),
        ("K10", {"gbs": 6}),
        ("K10", {"vpp": 1}),
        ("K14", {"dispatcher": "hybridep"}),
        ("K16", {"pp": 1}),
        ("K18", {"cuda_graph_impl": "full_iteration"}),
        ("K18", {"cuda_graph_impl": "none"}),
        ("K18", {"recompute_granularity": "selective"}),
        ("K20", {"fine_grained_offload_modules": ("core_attn", "attn_proj")}),
        ("K23", {"gbs": 256}),
        ("K48", {"pp": 1}),
        ("K48", {"vpp": 2}),
    ],
)
def test_the_repairs_of_the_report_are_offered(id: str, repair: dict[str, Any]) -> None:
    assert repair in repairs_of(id)


def test_a_verdict_is_json() -> None:
    case = next(case for case in CASES if case["id"] == "K04")
    verdict = check(*build(case), unknown=case["unknown"], completed={"etp": 1})
    assert (verdict.legal, verdict.fits, verdict.verdict) == (False, None, "infeasible")
    # Lists of names are tuples here and lists in JSON, so JSON is compared with JSON.
    again = Verdict.model_validate_json(verdict.model_dump_json())
    assert again.model_dump_json() == verdict.model_dump_json()
    assert verdict.model_dump()["schema_version"] == 1


@pytest.mark.parametrize(("id", "verdict"), [("K06", "feasible"), ("K21", "undecided")])
def test_a_plan_without_violations(id: str, verdict: str) -> None:
    case = next(case for case in CASES if case["id"] == id)
    found = check(*build(case), unknown=case.get("unknown", ()))
    assert (found.legal, found.verdict) == (True, verdict)
