"""check, evaluate and diff on the command line: the words, the JSON, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mbsolve.cli import main
from mbsolve.constraints.changes import applied
from mbsolve.constraints.check import Verdict, broken_laws, judged
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.normalise import normalise
from mbsolve.judge.answers import evaluate_case
from mbsolve.judge.cases import read_cases

GOOD: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "hardware": "h100",
    "gpus": 16,
    "seq_len": 4096,
    "gbs": 1024,
    "config": {"ep": 16, "grad_dtype": "bf16"},
}
ILLEGAL = {**GOOD, "config": {"ep": 16, "pp": 5}}
LARGE = {**GOOD, "gpus": 8, "config": {"ep": 8, "grad_dtype": "fp32"}}


def file(path: Path, raw: object, name: str = "job.yaml") -> str:
    (path / name).write_text(yaml.safe_dump(raw, sort_keys=False))
    return str(path / name)


@pytest.mark.parametrize(
    ("raw", "code", "word"),
    [
        (GOOD, 0, "feasible"),
        (ILLEGAL, 3, "infeasible"),
        (LARGE, 3, "oom"),
        ({**GOOD, "gpus": None}, 0, "undecided"),
    ],
)
def test_check_says_it(
    raw: object, code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(tmp_path, raw)
    assert main(["check", path]) == code
    assert f"{path}: {word}" in capsys.readouterr().out
    assert main(["check", "--json", path]) == code
    verdict = Verdict.model_validate_json(capsys.readouterr().out)
    assert (verdict.id, verdict.verdict) == (path, word)
    assert verdict.fits == {"feasible": True, "oom": False}.get(word)
    assert (verdict.evaluation is not None) == (word in ("feasible", "oom"))
    assert bool(verdict.undecided) == (word == "undecided")


def test_a_broken_rule_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", file(tmp_path, ILLEGAL)])
    out = capsys.readouterr().out
    assert "[world-divisible-by-dense-grid]" in out and "5" in out and "would hold with pp=" in out
    assert "completed:" in out


def test_what_the_stack_changes_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {**GOOD, "config": {**GOOD["config"], "sequence_parallel": True}}
    path = file(tmp_path, stated)
    assert main(["check", path]) == 0
    line = "Bridge would clear sequence_parallel because TP = 1  [sp-cleared-bridge]"
    assert line in capsys.readouterr().out
    assert main(["evaluate", path]) == 0
    assert line in capsys.readouterr().out
    assert main(["check", "--json", path]) == 0
    verdict = Verdict.model_validate_json(capsys.readouterr().out)
    (told,) = verdict.normalised
    assert (told.field, told.was, told.now, told.applied) == ("sequence_parallel", True, False, True)
    plain = read_cases(file(tmp_path, GOOD, "plain.yaml"))[0]
    assert verdict.evaluation == evaluate(plain.job, plain.plan)


@pytest.mark.parametrize(
    ("config", "target", "etp"),
    [
        ({"tp": 2, "ep": 8}, "bridge", 1),
        ({"tp": 2, "ep": 1}, "bridge", 2),
        ({"tp": 2, "ep": 8}, "megatron-lm", 2),
    ],
)
def test_an_expert_grid_that_is_not_described(
    config: dict[str, int], target: str, etp: int, tmp_path: Path
) -> None:
    case = read_cases(file(tmp_path, {**GOOD, "target": target, "config": config}))[0]
    assert (case.plan.etp, case.completed["etp"]) == (etp, etp)


def test_a_repair_that_would_break_another_rule_mends_that_too(tmp_path: Path) -> None:
    config = {"tp": 2, "pp": 2, "vpp": 3, "pipeline_layout": "Et*16|t*16L"}
    job = {"model": "llama3-8b", "gpus": 8, "seq_len": 8192, "gbs": 64, "config": config}
    (case,) = read_cases(file(tmp_path, job))
    (broken,) = judged(case.job, case.plan)[0]
    sets = [repair.set for repair in broken.repairs]
    assert "pipeline_layout" in sets[0]
    assert {"vpp": 1} in sets
    for repair in broken.repairs:
        assert not repair.breaks
        assert not broken_laws(*normalise(*applied(case.job, case.plan, repair.set))[:2])


def test_rules_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--no-memory", file(tmp_path, LARGE)]) == 0
    assert "job.yaml: feasible" in capsys.readouterr().out


def test_many_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = file(tmp_path, [GOOD, ILLEGAL], "a.yaml"), file(tmp_path, GOOD, "b.yaml")
    assert main(["check", a, b]) == 3
    assert "3 jobs: 2 feasible, 1 infeasible" in capsys.readouterr().out
    assert main(["check", "--json", a, b]) == 3
    verdicts = json.loads(capsys.readouterr().out)
    assert [v["id"] for v in verdicts] == [f"{a}:1", f"{a}:2", b]
    assert verdicts[0]["id"].startswith(a)


def test_evaluate_is_the_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, GOOD)
    (case,) = read_cases(path)
    expected = evaluate(case.job, case.plan)
    assert main(["evaluate", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_seconds"] == expected.step_seconds and found["id"] == path and found["legal"]
    whole = json.loads(expected.model_dump_json())
    assert {name: found[name] for name in whole} == whole
    assert main(["evaluate", path]) == 0
    out = capsys.readouterr().out
    for word in ("Totals:", "Time:", "Memory:", "Pipeline ranks, GiB:", "rank 0:", "tokens/s/GPU"):
        assert word in out


def test_evaluate_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", file(tmp_path, {**GOOD, "gpus": None})]) == 2
    assert "gpus must be stated" in capsys.readouterr().err
    assert main(["evaluate", file(tmp_path, ILLEGAL)]) == 3
    out = capsys.readouterr().out
    assert "not legal:" in out
    assert main(["evaluate", file(tmp_path, LARGE)]) == 0
    assert "does not fit" in capsys.readouterr().out


def test_diff_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**GOOD, "config": {**GOOD["config"], "dispatcher": "hybridep", "ep_overlap": True}}
    a, b = file(tmp_path, GOOD, "a.yaml"), file(tmp_path, other, "b.yaml")
    assert main(["diff", a, b]) == 0
    out = capsys.readouterr().out
    assert "dispatcher: alltoall -> hybridep" in out and "ep_overlap: off -> on" in out and "step:" in out
    assert main(["diff", "--json", a, b]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["fields"]) == {"dispatcher", "ep_overlap"}
    more = sum(t["b"] - t["a"] for t in found["time"])
    assert more == pytest.approx(found["step_seconds"][1] - found["step_seconds"][0])
    assert main(["diff", a, a]) == 0
    assert "none differs" in capsys.readouterr().out
    assert main(["diff", a, file(tmp_path, [GOOD, GOOD], "c.yaml")]) == 2
    assert "2 jobs" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "evaluate", "validate"])
def test_no_file(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([command, str(tmp_path / "absent.yaml")]) == 2
    err = capsys.readouterr().err
    assert "absent.yaml" in err and err.count("\n") == 1
    assert main([command]) == 2


def test_a_solved_plan_is_checked_and_evaluated_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `--out` writes can be given back, and is judged as it was."""
    out = tmp_path / "answer"
    ask = ["--model", "llama3-8b", "--gpus", "2", "--seq", "4096", "--no-alternatives", "--out", str(out)]
    assert main(ask) == 0
    outcome = json.loads((out / "outcome.json").read_text())
    capsys.readouterr()
    assert main(["check", "--json", str(out / "job.yaml")]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["verdict"] == "feasible"
    assert verdict["evaluation"] == outcome["plans"][0]["evaluation"]


def test_more_stages_than_layers_are_a_reason_not_a_price(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    many = "{pipeline_model_parallel_size: 4096, virtual_pipeline_model_parallel_size: 4096}"
    job.write_text(f"{{model: mixtral-8x22b, gpus: 256, seq_len: 4096, config: {many}}}", encoding="utf-8")
    (case,) = read_cases(job)
    found = evaluate_case(case)
    assert not found.legal and found.evaluation is None
    assert found.reason == "56 layers do not fill 16777216 virtual stages"
