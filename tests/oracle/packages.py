"""The environment of the real packages, and questions to the driver that runs in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.oracle.driver import VERSIONS

ROOT = Path(__file__).parents[2]
VARIABLE = "MBSOLVE_ORACLE_PYTHON"
ASK_VERSIONS = (
    "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)


def python() -> str:
    """The interpreter that has the packages: of the variable, else the own one."""
    return os.environ.get(VARIABLE) or sys.executable


def missing() -> str | None:
    """Why the real packages cannot be asked; None if they can."""
    wanted = " and ".join(f"{name} {version}" for name, version in VERSIONS.items())
    try:
        out = subprocess.run(
            [python(), "-c", ASK_VERSIONS, *VERSIONS], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"{wanted} are not installed in {python()}; {VARIABLE} names an interpreter that has them"
    found = json.loads(out)
    return None if found == VERSIONS else f"{wanted} are needed, but {python()} has {found}"


def ask(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of the real packages, in order."""
    done = subprocess.run(
        [python(), "-m", "tests.oracle.driver"],
        cwd=ROOT,
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(requests):
        raise RuntimeError(f"the driver ended after {len(answers)} answers:\n{done.stderr[-2000:]}")
    return answers
