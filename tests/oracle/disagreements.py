"""Where the rules and the real packages differ, sorted into classes, and which classes are known.

``known.yaml`` holds the tables. ``unchecked``: laws that no validator upstream has, each with its reason; the packages
may accept what only these refuse (``unchecked_by_flags``: of Megatron-LM's program, ``unchecked_by_patterns``: for models
with a layer pattern). ``reasons``: what the packages say when they refuse, and the laws of ours that mean it; one of
these must be broken too, so that two refusals for different reasons do not count as agreement.
``beyond``: what they refuse and no law of ours looks at, with the reason. ``rewritten``: launch arguments of legal
plans that they change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from mbsolve.constraints.check import SPELLINGS, broken_laws
from mbsolve.constraints.job import Job
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.rules.catalogue import RULES
from tests.oracle.sampling import Sample

TABLE: Final = Path(__file__).with_name("known.yaml")
LAWS: Final = {rule.id for rule in RULES} | {id for id, _, _ in SPELLINGS.values()}

Kind = Literal["agree", "known", "we refuse", "they refuse", "other reason", "unknown reason"]


class Finding(NamedTuple):
    """What came of one configuration: ``what`` names the laws or quotes the packages."""

    kind: Kind
    what: str
    legal: bool


@cache
def known() -> Mapping[str, Any]:
    """The tables of ``known.yaml``."""
    table: Mapping[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table


def compare(sample: Sample, answer: Mapping[str, Any]) -> Finding:
    """Sort one configuration with the answer of the packages."""
    # As `check` does: by the plan that the stack makes of it.
    job, plan, _ = normalise(sample.job, sample.plan)
    broken = sorted(set(broken_laws(job, plan)))
    error: str | None = answer["error"]
    if error is None:
        return _accepted(broken, _unchecked(sample.job))
    said = quoted(answer)
    laws = expected(f"{error} {answer['where']}")
    if laws is None:
        beyond = any(entry["says"] in error for entry in known()["beyond"])
        if beyond:
            return Finding("known", said, legal=not broken)
        return Finding("unknown reason" if broken else "they refuse", said, legal=not broken)
    if not set(laws) & LAWS:
        return Finding("known", said, legal=not broken)
    if not set(laws) & set(broken):
        words = f"{said} => {' or '.join(laws)}, but broken are {', '.join(broken) or 'none'}"
        return Finding("other reason" if broken else "they refuse", words, legal=not broken)
    return Finding("agree", said, legal=False)


def expected(error: str) -> Sequence[str] | None:
    """The laws, of which one is broken where the packages say this (there); None: not known."""
    words = " ".join(error.split())
    for entry in known()["reasons"]:
        if entry["says"] in words:
            laws: Sequence[str] = entry["laws"]
            return laws
    return None


def quoted(answer: Mapping[str, Any]) -> str:
    """What the packages say, without its numbers, and where."""
    words = " ".join("".join("#" if c.isdigit() else c for c in answer["error"]).split())
    return f"{words[:160]} ({answer['stage']}; {answer['where']})"


def _unchecked(job: Job) -> set[str]:
    """The laws that no validator of the job's target has."""
    tables = ["unchecked"]
    if job.target == "megatron-lm":
        tables.append("unchecked_by_flags")
    if job.model.layer_pattern is not None:
        tables.append("unchecked_by_patterns")
    return {law for table in tables for law in known()[table]}


def _accepted(broken: Sequence[str], unchecked: Collection[str]) -> Finding:
    if not broken:
        return Finding("agree", "legal", legal=True)
    checked = [law for law in broken if law not in unchecked]
    if checked:
        return Finding("we refuse", ", ".join(checked), legal=False)
    return Finding("known", ", ".join(broken), legal=False)
