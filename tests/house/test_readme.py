"""The README's commands exist and run; ``MBSOLVE_SLOW=1`` runs the long ones too.

A fence ```` ```sh ```` below ``<!-- run -->`` is run, below ``<!-- run slow -->`` only with the variable, others are
only read.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer

from mbsolve.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"(?:<!-- run(?P<slow> slow)? -->\n)?```sh\n(?P<body>.*?)```", re.DOTALL)


class Command(NamedTuple):
    """One line of a fence."""

    words: tuple[str, ...]
    run: bool
    slow: bool


def commands() -> list[Command]:
    found = []
    for fence in FENCE.finditer(README):
        run = fence[0].startswith("<!-- run")
        for line in fence["body"].replace("\\\n", " ").splitlines():
            words = tuple(shlex.split(line, comments=True))
            if words:
                found.append(Command(words, run, bool(fence["slow"])))
    return found


COMMANDS = commands()
OURS = [c for c in COMMANDS if Path(c.words[0]).name == "mbsolve"]


def name_of(command: Command) -> str:
    return shlex.join(command.words)


def blocks() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "readme_blocks", Path(__file__).with_name("readme_blocks.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_what_it_must() -> None:
    lines = [name_of(c) for c in COMMANDS]
    assert lines[:4] == [
        "python3 -m venv .venv",
        ".venv/bin/pip install -e '.[dev]'",
        ".venv/bin/mbsolve --model dsv3 --seq 131072 --gpus 256",
        ".venv/bin/python -m pytest -q",
    ]
    assert len(OURS) >= 8


@pytest.mark.parametrize("command", OURS, ids=name_of)
def test_every_option_exists(command: Command) -> None:
    # typer brings its own copy of click, so neither is named here.
    known: Any = typer.main.get_command(app)
    rest = list(command.words[1:])
    if rest and not rest[0].startswith("-"):
        assert rest[0] in known.commands
        known = known.commands[rest.pop(0)]
    options = {option for parameter in known.params for option in parameter.opts} | {"--help"}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.run], ids=name_of)
def test_command_runs(command: Command) -> None:
    if command.slow and not os.environ.get("MBSOLVE_SLOW"):
        pytest.skip("slow; MBSOLVE_SLOW=1 runs it")
    program, *rest = command.words
    assert program in (".venv/bin/mbsolve", ".venv/bin/python")
    module = ["-m", "mbsolve"] if program.endswith("mbsolve") else []
    done = subprocess.run(
        [sys.executable, *module, *rest],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode in ((0, 3) if module else (0,)), done.stderr
    assert done.stdout


def test_every_file_that_is_named_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    files = [word for c in COMMANDS for word in c.words if word.endswith(".py")]
    assert links
    for name in (*links, *files):
        assert (ROOT / name).exists(), name


def test_examples_are_all_named() -> None:
    for example in (ROOT / "examples").glob("*.py"):
        assert f"examples/{example.name}" in README


@pytest.mark.parametrize(
    ("name", "said"),
    [("plan", "dsv3, 131072 tokens"), ("no", "No plan: llama3-8b"), ("memory", "Pipeline rank 0")],
)
def test_shown_output_is_an_output(name: str, said: str) -> None:
    module = blocks()
    found = module.block(name).findall(README)
    assert len(found) == 1
    assert f"mbsolve {module.COMMANDS[name]}" in README
    if "not run yet" in found[0][1]:
        pytest.skip("python tests/house/readme_blocks.py has not been run yet")
    assert said in found[0][1]
    if os.environ.get("MBSOLVE_SLOW"):
        assert found[0][1] == module.output(name), "run python tests/house/readme_blocks.py"
