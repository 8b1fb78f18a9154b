"""What became of every entry of the catalogue of the upstream validators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

Class = Literal["rule", "warning", "normalised", "held", "out_of_scope"]

CLASSES: Final[dict[Class, str]] = {
    "rule": "a rule here",
    "warning": "a warning here",
    "normalised": "a change that is applied or told here",
    "held": "held by the domains, by the emission, or by another rule",
    "out_of_scope": "out of scope",
}
FILE = Path(__file__).with_name("data") / "coverage.yaml"
RELEASES = FILE.with_name("releases.yaml")


class Entry(NamedTuple):
    """One entry of the catalogue: its id, what became of it, and where or why."""

    id: str
    how: Class
    why: str = ""


def coverage() -> list[Entry]:
    """Every entry of the catalogue, by class."""
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return list(_entries(data))


def differences() -> dict[str, str]:
    """What releases treat differently: id of an entry or a law -> in words."""
    found: dict[str, str] = yaml.safe_load(RELEASES.read_text(encoding="utf-8"))
    return found


def _entries(data: dict[str, Any]) -> Iterator[Entry]:
    for how in CLASSES:
        found = data[how]
        if isinstance(found, dict):
            yield from (Entry(id, how, why) for id, why in found.items())
            continue
        for item in found:
            if isinstance(item, str):
                yield Entry(item, how)
            else:
                yield from (Entry(id, how, item["why"]) for id in item["ids"])
