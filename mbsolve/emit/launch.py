"""The launch of a plan for the target of its job: as lines for a shell, and as files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit import megatron_bridge, megatron_lm
from mbsolve.emit.environment import environment
from mbsolve.emit.files import OutputError, ensure_writable, write_all
from mbsolve.emit.jobwriter import job_file
from mbsolve.solver.outcome import Outcome

__all__ = ["OutputError", "arguments", "command", "ensure_writable", "write"]

BRIDGE_FILE: Final = "overrides.txt"
FLAGS_FILE: Final = "flags.txt"


def arguments(job: Job, plan: Plan) -> tuple[str, str]:
    """Name and text of the file with the arguments of a launch.

    ``overrides.txt`` has one KEY=VALUE a line, not quoted for a shell; ``flags.txt`` one flag with its values a line,
    quoted.
    """
    if job.target == "megatron-lm":
        return FLAGS_FILE, _text(megatron_lm.lines(job, plan)[1])
    return BRIDGE_FILE, _text(megatron_bridge.overrides(job, plan))


def command(job: Job, plan: Plan) -> list[str]:
    """The lines that a person pastes into a shell: the environment, then the launch."""
    writer = megatron_lm if job.target == "megatron-lm" else megatron_bridge
    call, words = writer.lines(job, plan)
    lines = [call, *(f"  {word}" for word in words)]
    return _exports(environment(job, plan)) + [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def write(job: Job, outcome: Outcome, directory: str | Path, report: str = "") -> None:
    """Write the answer into a directory: all files, or none.

    ``outcome.json`` always, ``report.txt`` when a report is given; with a plan also ``plan.json``, ``job.yaml`` (a job
    file for `mbsolve check` and the like), the `arguments` of the job's target, and ``env.sh``.

    Raises
    ------
    OutputError
        If the directory cannot be written.
    """
    files = {"outcome.json": outcome.model_dump_json(indent=2) + "\n"}
    if report:
        files["report.txt"] = report
    if outcome.best:
        plan = outcome.best.plan
        files["plan.json"] = plan.model_dump_json(indent=2) + "\n"
        files["job.yaml"] = job_file(job, plan)
        name, text = arguments(job, plan)
        files[name] = text
        files["env.sh"] = _text(_exports(environment(job, plan)))
    write_all(directory, files)


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
