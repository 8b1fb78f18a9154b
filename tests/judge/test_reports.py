"""Reports of users, read as they stand: the law that was broken is found, plans that ran are legal, mends are offered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mbsolve.constraints.changes import applied, now, stage_layers
from mbsolve.constraints.check import Verdict, broken_laws
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.constraints.lighter import OPEN_FIELDS
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.judge.annotations import annotate
from mbsolve.judge.answers import verdict
from mbsolve.judge.cases import Case, read_cases
from mbsolve.judge.text import verdict_text, verdicts_text
from mbsolve.report import words
from mbsolve.solver.api import solve

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
FILES = (DATA / "reports.yaml", DATA / "threads.yaml")
RAWS: list[dict[str, Any]] = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in FILES]
LAWS: dict[str, list[str]] = RAWS[0]["rule_ids"]
REPAIRS: dict[str, dict[str, Any]] = RAWS[0]["repairs"]
REPORTS: dict[str, dict[str, Any]] = {case["id"]: case for raw in RAWS for case in raw["cases"]}
CASES: dict[str, Case] = {case.name: case for file in FILES for case in read_cases(file)}
JUDGED = [name for name, case in CASES.items() if not case.skipped]
SPLIT = ("pipeline_layout", "first_stage_layers", "last_stage_layers")
# Keys of what is expected that a reason has to name.
FIGURES = (
    *("expert_product", "world_size", "remainder", "middle_layers", "middle_stages", "layers_missing"),
    *("layers_per_stage", "vpp", "microbatches", "pp", "layout_decoders", "model_layers", "ep", "max_ep"),
    *("required_multiple", "dp", "vocab", "padded_vocab_with_128"),
)


def wanted(name: str) -> dict[str, Any]:
    """What is expected; of a verdict that depends on the version, that of the newest."""
    expect: dict[str, Any] = REPORTS[name.split(".")[0]]["expect"]
    return expect["by_version"]["mcore>=0.16"] if "by_version" in expect else expect


def ids(expect: dict[str, Any]) -> list[str]:
    return (
        [expect["rule"]]
        if "rule" in expect and "constraint" not in expect
        else LAWS.get(expect.get("constraint", ""), [])
    )


def infeasible(name: str) -> bool:
    return bool(wanted(name).get("verdict") == "infeasible")


def mends(name: str, kind: str) -> list[dict[str, Any]]:
    own = REPORTS[name.split(".")[0]].get(kind)
    found: list[dict[str, Any]] = own if own is not None else REPAIRS.get(name, {}).get(kind, [])
    return [{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()} for one in found]


def mended(case: Case, fields: dict[str, Any]) -> tuple[Job, Plan]:
    """As it would run, with a change of a file: what follows the plan is left out of account."""
    job, plan, _ = normalise(case.job, case.plan, unknown=case.unknown)
    return normalise(*applied(job, plan, fields), unknown=case.unknown)[:2]


def left(case: Case, fields: dict[str, Any]) -> set[str]:
    unknown = {*case.unknown, *({"gbs"} & set(case.completed))}
    return set(broken_laws(*mended(case, fields), unknown=unknown))


def outcome(case: Case, fields: dict[str, Any]) -> tuple[Job, Plan, list[int]]:
    """What a change makes of a case; splits that give every rank the same layers are the same."""
    job, plan = mended(case, fields)
    layers = stage_layers(job, plan)
    plain = {name: None for name in SPLIT} if layers and plan.vpp == 1 else {}
    return job, plan.model_copy(update=plain), layers


def test_there_are_38_reports_and_27_threads() -> None:
    assert [len(raw["cases"]) for raw in RAWS] == [38, 27]
    assert {name for name in REPORTS if name in REPAIRS} == set(REPAIRS)
    broken = {name for name in REPORTS if wanted(name).get("verdict") == "infeasible"}
    assert broken - {name for name in broken if mends(name, "right")} == {"T17"}


@pytest.mark.parametrize(
    "name", [n for n in JUDGED if wanted(n).get("verdict") in ("feasible", "infeasible", "oom")]
)
def test_the_verdict_is_right(name: str) -> None:
    expect, answer = wanted(name), verdict(CASES[name])
    # Some reports leave a size open, some say of themselves that they do not judge the memory.
    unjudged = bool(answer.undecided) or "memory not judged" in expect.get("note", "")
    legal = answer.legal and unjudged
    assert answer.verdict == expect["verdict"] or (expect["verdict"] == "feasible" and legal)
    if "fits" in expect:
        assert answer.fits is expect["fits"]
    if expect["verdict"] == "oom":
        assert answer.fits is False and answer.violations[0].repairs
    elif expect["verdict"] == "infeasible":
        assert (
            {v.rule for v in answer.violations}
            == {v.rule for v in answer.violations if v.rule in ids(expect)}
            != set()
        )
    for key, field in (("dp", "dense"), ("expert_dp", "expert")):
        if key in expect and answer.evaluation is not None:
            assert getattr(answer.evaluation.grids, field)[2] == expect[key]


@pytest.mark.parametrize("name", ["K17.a", "K17.b", "K17.c", "K62"])
def test_other_plans_that_ran_are_legal_and_fit(name: str) -> None:
    answer = verdict(CASES[name])
    assert (answer.verdict, answer.fits) == ("feasible", True)
    if name == "K62":
        assert (answer.completed["expert_rank_capacity"], answer.completed["op_fuser"]) == (1.5, True)


@pytest.mark.parametrize("name", [n for n in JUDGED if infeasible(n)])
def test_the_reason_has_the_arithmetic(name: str) -> None:
    expect, answer = wanted(name), verdict(CASES[name])
    figures = [*expect.get("figures", ()), *(expect[key] for key in FIGURES if key in expect)]
    said = {int(n) for v in answer.violations for n in re.findall(r"\d+", v.because)}
    assert set(figures) <= said


@pytest.mark.parametrize("name", [n for n in JUDGED if infeasible(n)])
def test_the_right_mends_mend_and_the_wrong_ones_do_not(name: str) -> None:
    case = CASES[name]
    for fields in (*mends(name, "right"), *mends(name, "further")):
        assert left(case, fields) == set(), fields
    for fields in mends(name, "wrong"):
        assert left(case, fields), fields


@pytest.mark.parametrize("name", [n for n in JUDGED if infeasible(n)])
def test_the_right_mends_are_offered(name: str) -> None:
    case = CASES[name]
    offered = [outcome(case, dict(r.set)) for v in verdict(case).violations for r in v.repairs]
    for fields in mends(name, "right"):
        assert outcome(case, fields) in offered, fields


@pytest.mark.parametrize("name", [n for n in JUDGED if infeasible(n)])
def test_every_mend_that_is_offered_mends(name: str) -> None:
    case = CASES[name]
    found = verdict(case).violations
    before = {v.rule for v in found}
    for violation in found:
        assert violation.repairs
        for repair in violation.repairs:
            after = left(case, dict(repair.set))
            assert violation.rule not in after, repair
            assert after - before == set(repair.breaks), repair


def test_what_is_left_free_is_a_question_to_the_solver() -> None:
    case, expect = CASES["K28"], wanted("K28")
    told = verdict(case).told
    assert "run: mbsolve --model qwen3-30b-a3b --hardware h100 --gpus 16 --seq 32768 --gbs 16" in told[1]
    assert told[1].endswith("--fix mbs=1") and case.demands == {"mbs": 1}
    for gpus in (16, *expect["also_solve_for_gpus"]):
        job = case.job.model_copy(update={"gpus": gpus})
        found = solve(job, top=2, fixed=case.demands)
        assert found.status == "OPTIMAL" and len(found.plans) == 2
        for ranked in found.plans:
            plan = ranked.plan
            assert gpus % (plan.tp * plan.pp * plan.cp) == gpus % (plan.etp * plan.ep * plan.pp) == 0
            assert plan.cp == 1 or 32768 % (2 * plan.cp) == 0
            assert plan.mbs == 1


@pytest.mark.parametrize("name", ["K24", "K21"])
def test_a_verdict_is_json(name: str) -> None:
    answer = verdict(CASES[name])
    again = Verdict.model_validate_json(answer.model_dump_json())
    # Lists of names are tuples here and lists in JSON, so JSON is compared with JSON.
    assert again.model_dump_json() == answer.model_dump_json()
    assert answer.model_dump()["schema_version"] == 1


def test_what_is_not_known_is_not_guessed() -> None:
    answer = verdict(CASES["K21"])
    assert (answer.legal, answer.fits, answer.verdict) == (True, None, "undecided")
    assert "world-divisible-by-dense-grid" in answer.undecided
    assert "query-groups-vs-tp" not in answer.undecided


@pytest.mark.parametrize("name", ["K07", "K17.a", "K30"])
def test_formats_that_are_not_stated_are_completed_so_that_it_fits(name: str) -> None:
    answer = verdict(CASES[name])
    (told,) = [w for w in answer.warnings if w.rule == "hbm-capacity"]
    assert "with the target's defaults" in told.because and "grad_dtype=bf16" in told.because
    assert answer.completed["grad_dtype"] == "bf16"
    assert answer.evaluation is not None and answer.fits


def test_a_verdict_that_rests_on_what_nobody_stated_says_so_first() -> None:
    case, plain = CASES["K17.a"], CASES["K24"]
    answer = verdict(case)
    needs = words.gib(evaluate(case.job, case.plan).worst_stage.peak_device_bytes)
    first, *_ = verdict_text(case, answer, 1000).splitlines()
    leaner = "grad_dtype=bf16, moment_dtype=bf16 and precision_aware_optimizer on"
    assert first.startswith(f"K17.a: feasible only with {leaner} (")
    assert first.endswith(f"; with the target's defaults it does not fit ({needs} GiB)")
    assert verdicts_text([case, plain], [answer, verdict(plain)], 100).endswith(
        "2 jobs: 1 feasible only with leaner formats, 1 oom\n"
    )
    (line,) = annotate([case], [answer]).splitlines()
    assert line.startswith("::warning ")
    assert ",title=hbm-capacity%3A feasible only with grad_dtype=bf16%2C moment_dtype=bf16 and " in line
    assert answer.verdict == "feasible" and "leaner" not in answer.model_dump(mode="json")


def test_formats_that_are_stated_are_taken_as_they_are() -> None:
    case = CASES["K24"]
    assert case.open_fields == ()
    answer = verdict(case)
    assert (answer.verdict, answer.fits) == ("oom", False)
    for repair in answer.violations[0].repairs:
        job, plan = mended(case, dict(repair.set))
        assert broken_laws(job, plan) == ()
    for name in set(OPEN_FIELDS) & set(answer.completed):
        assert answer.completed[name] == now(Job.model_construct(settings=Settings()), Plan(), name)
