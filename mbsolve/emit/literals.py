"""Values as launchers write them: numbers, switches, number formats, and objects of a saved configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mbsolve.emit.spellings import DTYPES

__all__ = ["dtype_of", "literal", "plain_object"]

WHOLE: Final = re.compile(r"[+-]?\d{1,18}")
NUMBER: Final = re.compile(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18}|\d{1,18})([eE][+-]?\d{1,3})?")
SWITCHES: Final[Mapping[str, bool]] = {"true": True, "false": False}


def literal(text: str) -> Any:
    """A text as the value that it spells: null, true, false, a number, or the text itself."""
    low = text.casefold()
    if low in ("null", "none", ""):
        return "none" if low == "none" else None
    if low in SWITCHES:
        return SWITCHES[low]
    if WHOLE.fullmatch(text):
        return int(text)
    if NUMBER.fullmatch(text):
        return float(text)
    return text


def plain_object(value: Any) -> Any:
    """What a saved object stands for: the name of an enumerated value or of a function, else the value."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_name_"), str):
            return value["_name_"]
        if value.get("_call_") is False and isinstance(value.get("_target_"), str):
            return value["_target_"]
    if isinstance(value, list):
        return [plain_object(one) for one in value]
    return value


def dtype_of(value: Any) -> Any:
    """Our name of a number format (``torch.bfloat16``: ``bf16``); the value as it is when it has none."""
    value = plain_object(value)
    if not isinstance(value, str):
        return value
    word = value.removeprefix("torch.")
    return DTYPES.get(word, "fp8" if word == "uint8" else word)
