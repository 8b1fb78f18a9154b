"""``mbsolve evaluate``: where the step goes, in text and in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.cli import main

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
EAGER, DENSE = str(JOBS / "qwen3-30b-eager.yaml"), str(JOBS / "llama3-70b-megatron.sh")
BROKEN = str(JOBS / "llama3-70b-graphs.yaml")


def out(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


@pytest.mark.parametrize("options", [[], ["--time"]])
@pytest.mark.parametrize("file", [EAGER, DENSE])
def test_text_is_plain_and_narrow_when_piped(
    file: str, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = out(["evaluate", *options, file], capsys)
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    said = " ".join(text.split())
    for part in ("GFLOP a token", "TFLOP/s a GPU", "MFU", "no recompute", "step time +-", "pipeline"):
        assert part in said
    assert ("CUDA graphs transformer_engine: attn, moe_router, moe_preprocess would save" in said) == (
        file == EAGER
    )
    assert ("One micro-batch of each pipeline rank" in said) == bool(options)


@pytest.mark.parametrize("options", [[], ["--time"]])
@pytest.mark.parametrize("file", [EAGER, DENSE])
def test_json_adds_up(file: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(out(["evaluate", *options, "--json", file], capsys))
    time = found["time"]
    assert sum(part["seconds"] for part in time["parts"]) == pytest.approx(time["step_seconds"])
    for stage in time["stages"]:
        assert sum(term["seconds"] for term in stage["terms"]) == pytest.approx(stage["seconds"])
        assert all(term["source"] for term in stage["terms"])
    assert time["flops"]["convention"]
    assert time["error"]["words"]
    assert (found["graphs"] is not None) == (file == EAGER)
    if not options:
        assert found["step_seconds"] == time["step_seconds"]
        assert found["flops_per_token"] == time["flops"]["per_token"]
        assert found["mfu"] == time["flops"]["mfu"]


def test_an_illegal_job_has_its_time_but_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(["evaluate", "--time", "--json", BROKEN], capsys, 3))
    assert not found["legal"]
    assert found["graphs"] is None
    assert "not legal" in out(["evaluate", "--time", BROKEN], capsys, 3)


def test_memory_and_time_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--memory", "--time", EAGER]) == 2
    assert capsys.readouterr().err == "mbsolve: --memory and --time contradict each other.\n"


def test_a_terminal_shows_blocks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = out(["evaluate", "--time", EAGER], capsys)
    assert "\N{FULL BLOCK}" in text
    assert "\x1b[" in text
