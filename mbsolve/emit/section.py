"""A launcher's configuration that remembers which of its keys were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mbsolve.emit.hydra import Tree
from mbsolve.emit.literals import plain_object
from mbsolve.emit.passed import QUIET
from mbsolve.errors import InputError

__all__ = ["Section"]

# Keys of which "none" is a value of its own.
WORDS: Final = ("model.cuda_graph_impl", "model.position_embedding_type")


class Section:
    """A tree that remembers which keys were asked for."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.asked: set[str] = set()

    def get(self, key: str) -> Any:
        """The value of ``section.key``; None when it is absent or null."""
        self.asked.add(key)
        section, _, name = key.partition(".")
        node = self.tree.get(section)
        value = plain_object(node.get(name)) if isinstance(node, dict) else None
        return None if value == "none" and key not in WORDS else value

    def switch(self, key: str) -> bool | None:
        """The value of a switch.

        Raises
        ------
        InputError
            if it is neither on nor off.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{key} is {value!r}, but it must be true or false.")
        return value

    def words(self, key: str) -> tuple[str, ...] | None:
        """The value of a list of words; one word is a list too.

        Raises
        ------
        InputError
            if it holds something else.
        """
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            value = [one.strip() for one in value.split(",")]
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{key} is {value!r}, but it must be a list of words.")
        return tuple(value)

    def rest(self) -> Iterator[tuple[str, Any]]:
        """The keys that nobody asked for, with their values."""
        for section, node in self.tree.items():
            if not isinstance(node, dict):
                continue
            for name, value in node.items():
                key = f"{section}.{name}"
                if not str(name).startswith("_") and key not in self.asked and key not in QUIET:
                    yield key, plain_object(value)
