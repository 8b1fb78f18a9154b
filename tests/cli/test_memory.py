"""The command ``memory``: what it prints, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mbsolve.cli import main

FITS = "{model: llama3-8b, hardware: h100, gpus: 8, seq_len: 8192, config: {tp: 4, sequence_parallel: true}}"
TOO_LARGE = "{model: llama3-70b, hardware: h100, gpus: 64, seq_len: 8192, gbs: 128, config: {tp: 4, pp: 4}}"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["memory", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def job(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_plan_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([job(tmp_path, FITS)], capsys)
    assert code == 0 and "What would free" not in out and "\x1b" not in out
    code, out, _ = run([job(tmp_path, FITS), "--free", "2", "--verbose"], capsys)
    assert code == 0 and "What would free 2.0 GiB" in out and "param_and_grad_buffer.py" in out


def test_a_plan_that_does_not_fit_is_told_what_would_free_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run([job(tmp_path, TOO_LARGE)], capsys)
    assert code == 3 and "does not fit" in out and "What would free" in out and "cp=2" in out


def test_json_has_every_rank_at_every_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([job(tmp_path, TOO_LARGE), "--json", "--free", "20"], capsys)
    found = json.loads(out)
    assert code == 3 and found["schema_version"] == 1 and found["memory_error"]["rows"] > 0
    assert [s["stage"] for s in found["account"]["stages"]] == [0, 1, 2, 3]
    assert {m["kind"] for m in found["account"]["stages"][0]["moments"]} == {"between", "pass", "optimizer"}
    assert all(change["freed_bytes"] >= 20 * 2**30 for change in found["relief"]["changes"])


@pytest.mark.parametrize("free", ["none", "-1", "0", "inf"])
def test_what_should_be_freed_is_a_number(
    free: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([job(tmp_path, FITS), f"--free={free}"], capsys)
    assert code == 2 and not out and f"--free is {free!r}, but it must be a number of GiB above 0." in err
