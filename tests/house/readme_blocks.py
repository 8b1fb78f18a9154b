"""Refresh the outputs that the README shows: ``python tests/house/readme_blocks.py`` runs the commands and writes them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
COMMANDS = {
    "plan": "--model dsv3 --seq 131072 --gpus 256",
    "no": "--model llama3-8b --gpus 1 --seq 8192 --fix optimizer_offload_fraction=0",
    "memory": "memory examples/jobs/qwen3-30b.yaml --free 5",
}
CODES = {"plan": 0, "no": 3, "memory": 0}
# The rest of the report (assumptions, notes, the launch command) would push all else off the first screen.
CUT = "\nAssumed:"


def block(name: str) -> re.Pattern[str]:
    """The pattern of a block: its start, its text, its end."""
    return re.compile(rf"(<!-- begin {name} -->\n```text\n)(.*?)(```\n<!-- end {name} -->)", re.DOTALL)


def output(name: str) -> str:
    """Run the command of a block in this process and return what the README shows of it.

    Raises
    ------
    RuntimeError
        If the command ends with another code than the README speaks of.
    """
    from mbsolve.cli import main

    os.environ["COLUMNS"] = "100"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        # The line about another precision comes after the cut, so it need not be computed.
        more = ["--no-alternatives"] if COMMANDS[name].startswith("--") else []
        code = main([*shlex.split(COMMANDS[name]), *more])
    if code != CODES[name]:
        raise RuntimeError(f"mbsolve {COMMANDS[name]} ended with {code}, not {CODES[name]}.")
    text, cut, _ = shown.getvalue().partition(CUT)
    return text.rstrip() + ("\n...\n" if cut else "\n")


def main() -> None:
    """Replace every block."""
    text = README.read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        print(f"mbsolve {command}", file=sys.stderr)
        parts = block(name).split(text)
        if len(parts) != 5:
            raise RuntimeError(f"The README must have one block {name!r}.")
        before, start, _, end, after = parts
        text = before + start + output(name) + end + after
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
