"""The ``config.json`` of a checkpoint, read key by key; every complaint is one sentence."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from mbsolve.cards import CardError

__all__ = ["Config", "Fields"]

Fields = dict[str, object]


class Config(NamedTuple):
    """The raw mapping, read key by key; every complaint starts with ``where``."""

    raw: Mapping[str, object]
    where: str

    def refuse(self, said: str) -> NoReturn:
        raise CardError(f"{self.where}: {said}.")

    def present(self, key: str) -> object:
        """A value that must be there; ``null`` counts as absent."""
        value = self.raw.get(key)
        if value is None:
            raise CardError(f"{self.where} lacks the field {key!r}.")
        return value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; needed unless there is a default."""
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        value = self.present(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(f"{key} is {reprlib.repr(value)}, but it must be a whole number of at least {least}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(f"{key} is {reprlib.repr(value)}, but it must be true or false")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, str) or value not in allowed:
            self.refuse(f"{key} is {reprlib.repr(value)}, but it must be {' or '.join(allowed)}")
        return value

    def items(self, key: str) -> list[object]:
        value = self.raw.get(key)
        value = [] if value is None else value
        if not isinstance(value, list):
            self.refuse(f"{key} is {reprlib.repr(value)}, but it must be a list")
        return value

    def only(self, key: str, value: int | bool) -> None:
        """Refuse a variant that a card cannot say."""
        found = self.raw.get(key)
        if found is not None and (type(found) is not type(value) or found != value):
            self.refuse(f"{key} is {reprlib.repr(found)}, but only {json.dumps(value)} is supported")
