"""What only a process of its own can show: imports, pipes, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(["-c", text] if text else ["-m", "mbsolve", *arguments])]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_import_is_light() -> None:
    heavy = "('ortools', 'typer', 'pydantic', 'numpy', 'yaml', 'rich')"
    done = run(text=f"import sys, mbsolve; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_every_exported_name_is_there() -> None:
    names = (
        "mbsolve.make_job, mbsolve.Job, mbsolve.Plan, mbsolve.Settings, mbsolve.Outcome, mbsolve.Evaluation"
    )
    done = run(
        text=f"import mbsolve; print({names}, mbsolve.load_model, mbsolve.load_machine, mbsolve.solve)"
    )
    assert done.returncode == 0, done.stderr
    done = run(text="import mbsolve; assert set(mbsolve.__all__) <= set(dir(mbsolve)); mbsolve.nothing")
    assert "has no attribute 'nothing'" in done.stderr


def test_errors_do_not_load_the_solver() -> None:
    text = "import sys; from mbsolve.cli import main; main(['--model', 'dvs3', '--seq', '1', '--gpus', '1'])"
    done = run(text=f"{text}; print('ortools' in sys.modules)")
    assert done.stdout == "False\n"


def test_exit_codes() -> None:
    assert run("--version").stdout.startswith("mbsolve ")
    assert "Usage" in run("--help").stdout
    failed = run("--model", "dsv3", "--seq", "4096", "--gpus", "0")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    shell = f"{sys.executable} -m mbsolve rules | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
