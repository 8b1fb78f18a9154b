"""Verdicts as annotations, and the options of `check` for files that leave something open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mbsolve.cli import main
from mbsolve.judge.annotations import annotate
from mbsolve.judge.answers import read_many, verdict

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
GRAPHS = str(JOBS / "llama3-70b-graphs.yaml")
OVERRIDES = str(JOBS / "qwen3-30b-overrides.txt")
ASK = ["--model", "qwen3-30b-a3b", "--hardware", "h100", "--gpus", "16"]


def test_a_broken_rule_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRAPHS, "--format", "github"]) == 3
    line, *more = capsys.readouterr().out.splitlines()
    assert line.startswith(f"::error file={GRAPHS},title=cg-full-recompute::")
    assert not more


def test_nothing_to_say_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", OVERRIDES, *ASK, "--format", "github"]) == 0
    assert capsys.readouterr().out == ""


def test_jobs_of_one_file_are_named_and_signs_are_escaped(tmp_path: Path) -> None:
    bad = {"model": "llama3-8b", "gpus": 8, "seq_len": 8192, "gbs": 8, "config": {"tp": 3}}
    file = tmp_path / "a,b:c.yaml"
    file.write_text(yaml.safe_dump([{"id": "50%\nx", **bad}, {"id": "two", **bad}]))
    cases = read_many([file, GRAPHS])
    text = annotate(cases, [verdict(case) for case in cases])
    lines = text.splitlines()
    assert all(line.startswith("::") for line in lines)
    assert "a%2Cb%3Ac.yaml,title=" in lines[0]
    assert "::50%25%0Ax: " in lines[0]
    assert any("::two: " in line for line in lines)
    assert lines[-1].startswith(f"::error file={GRAPHS},title=cg-full-recompute::full recompute")


def test_formats_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", OVERRIDES, *ASK, "--format", "json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said)["verdict"] == "feasible"
    assert main(["check", OVERRIDES, *ASK, "--json"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", OVERRIDES], "name it with --model"),
        (["check", OVERRIDES, *ASK, "--format", "gitub"], "did you mean 'github'?"),
        (["check", OVERRIDES, *ASK, "--format", "github", "--json"], "contradict"),
        (["check", OVERRIDES, *ASK, "--seq", "8192"], "--seq is 8192, but the file says 4096."),
        (["check", OVERRIDES, "--gpus", "many"], "--gpus is 'many'"),
        (["check", OVERRIDES, "--model", "qwen3-30"], "did you mean"),
        (["evaluate", OVERRIDES, "--model", "qwen3-30b", "--hardware", "h1000"], "did you mean"),
    ],
)
def test_wrong_input_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_evaluate_and_diff_read_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", OVERRIDES, *ASK]) == 0
    assert "a step +-" in capsys.readouterr().out
    assert main(["diff", OVERRIDES, str(JOBS / "qwen3-30b.yaml"), *ASK]) == 0
    assert "recompute_modules" in capsys.readouterr().out
