"""``mbsolve memory``: text, JSON, exit codes, and one sentence for what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.cli import main
from mbsolve.emit.jobwriter import job_file
from mbsolve.judge.answers import evaluate_case, read_many

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
MOE, DENSE = str(JOBS / "qwen3-30b.yaml"), str(JOBS / "llama3-70b-megatron.sh")
BROKEN = str(JOBS / "llama3-70b-graphs.yaml")


def out(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


@pytest.mark.parametrize(("file", "code"), [(MOE, 0), (DENSE, 3)])
def test_text_is_plain_and_narrow_when_piped(
    file: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = out(["memory", file], capsys, code)
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    # What does not fit is told what would free it; what fits is not.
    assert ("What would free" in text) == (code == 3)
    assert "Pipeline rank" in text
    assert "the target's default" in text


def test_json_is_the_evaluation_with_all_moments(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(out(["memory", MOE, "--json", "--free", "5"], capsys))
    (case,) = read_many([MOE])
    said = evaluate_case(case).evaluation
    assert said is not None
    assert found["schema_version"] == 1
    assert found["legal"] is True
    for stage, expected in zip(found["account"]["stages"], said.stages, strict=True):
        for name, value in expected.model_dump(mode="json").items():
            assert stage[name] == value
        assert [m["kind"] for m in stage["moments"]] == ["between", "pass", "optimizer"]
        for moment in stage["moments"]:
            assert all(term["source"] for term in moment["terms"])
    assert found["account"]["host"]["bytes_per_node"] == said.host_bytes_per_node
    assert found["account"]["host"]["fullest_node_bytes"] == said.host_fullest_node_bytes
    assert found["memory_error"]["words"] == said.memory_error.words
    assert {f["part"]: f["default"] for f in found["account"]["formats"]}["gradients"] is False
    assert found["relief"]["wanted_bytes"] == 5 * 2**30
    assert all(change["freed_bytes"] >= 5 * 2**30 for change in found["relief"]["changes"])


def test_several_files_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(["memory", MOE, DENSE, "--json"], capsys, 3))
    assert [one["id"].startswith(file) for one, file in zip(found, (MOE, DENSE), strict=True)] == [True, True]
    assert found[0]["relief"] is None
    assert found[1]["relief"]["wanted_bytes"] > 0


def test_evaluate_with_memory_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(["evaluate", "--memory", MOE], capsys) == out(["memory", MOE], capsys)
    assert out(["evaluate", "--memory", "--json", MOE], capsys) == out(["memory", MOE, "--json"], capsys)


def test_a_written_job_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (case,) = read_many([MOE])
    file = tmp_path / "job.yaml"
    file.write_text(job_file(case.job, case.plan), encoding="utf-8")
    again = json.loads(out(["memory", str(file), "--json"], capsys))
    first = json.loads(out(["memory", MOE, "--json"], capsys))
    assert again["account"]["stages"] == first["account"]["stages"]


def test_an_illegal_job_is_not_told_what_would_free_memory(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(["memory", BROKEN, "--free", "5"], capsys, 3)
    assert "not legal: " in text
    assert "frees" not in text
    assert "What would free" not in text
    found = json.loads(out(["memory", BROKEN, "--free", "5", "--json"], capsys, 3))
    assert found["legal"] is False
    assert found["account"]["stages"]
    assert found["relief"] is None


def test_sources_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NVIDIA/Megatron-LM" not in out(["memory", MOE], capsys)
    assert "NVIDIA/Megatron-LM" in out(["memory", MOE, "--verbose"], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([MOE, "--free", "0"], "--free is '0', but it must be a number of GiB above 0."),
        ([MOE, "--free", "-2"], "--free is '-2'"),
        ([MOE, "--free", "much"], "--free is 'much'"),
        ([MOE, "--free", "nan"], "--free is 'nan'"),
        ([MOE, "--free", "inf"], "--free is 'inf'"),
        ([MOE, "--gpus", "none"], "--gpus is 'none'"),
        (["no-such-file.yaml"], "no-such-file.yaml"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("mbsolve: ")
    assert shown.err.count("\n") == 1


def test_what_cannot_be_evaluated_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "open.yaml"
    file.write_text("model: llama3-8b\nseq_len: 4096\nconfig: {tp: 2}\n", encoding="utf-8")
    assert main(["memory", str(file)]) == 2
    assert "gpus must be stated" in capsys.readouterr().err


def test_colours_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = out(["memory", MOE], capsys)
    assert "\x1b[" in shown
    assert "\N{FULL BLOCK}" in shown
