"""The constants of the memory model, read once from ``constraints/data/memory.yaml``."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from mbsolve.constraints.rule import Source


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    text = (files("mbsolve.constraints") / "data" / "memory.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return entries


def constant(name: str) -> Any:
    """The value of a constant: a number, or a mapping from a word to a number."""
    return _entries()[name]["value"]


def source_of(name: str) -> Source:
    """Where a constant comes from."""
    return Source(_entries()[name]["source"])
