"""What a value had to be, in words of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["wanted"]

KINDS: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "string": "a word",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
}
"""What an error of validation asks for, by the first part of its type."""
BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def wanted(fault: Mapping[str, Any]) -> str:
    """What a value had to be, as "it must be a whole number".

    Parameters
    ----------
    fault : one of the errors of a `pydantic.ValidationError`.
    """
    kind = fault["type"]
    if kind in BOUNDS:
        word, bound = BOUNDS[kind]
        return f"it must be {word} {fault['ctx'][bound]}"
    known = KINDS.get(kind.split("_")[0])
    return f"it must be {known}" if known else str(fault["msg"]).replace("Input should be", "it must be", 1)
