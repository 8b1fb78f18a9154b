"""Which branches of a shell script are taken: conditions on literal values are decided, others are left open."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["CLOSING", "Branches", "holds"]

CLOSING: Final = frozenset(["fi", "done", "esac", "}"])
OPEN: Final = frozenset(["for", "while", "until", "case", "select", "function", "{"])
NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-lt": operator.lt,
    "-ge": operator.ge,
    "-le": operator.le,
}


def holds(words: Sequence[str | None]) -> bool | None:
    """Whether a test of ``[`` or ``[[`` holds; None where that is not known.

    Parameters
    ----------
    words
        The words between the brackets; None for one that is not known.
    """
    known = [word for word in words if word is not None]
    if len(known) != len(words):
        return None
    if len(known) == 2 and known[0] in ("-n", "-z"):
        return bool(known[1]) == (known[0] == "-n")
    if len(known) != 3:
        return None
    left, sign, right = known
    if sign in ("=", "==", "!=") and not re.search(r"[*?\[]", right):
        return (left == right) == (sign != "!=")
    if sign in NUMBERS and all(re.fullmatch(r"-?\d{1,15}", text) for text in (left, right)):
        return NUMBERS[sign](int(left), int(right))
    return None


class Branches:
    """The branches that a command stands in; for each whether it is taken, and whether one before it was."""

    def __init__(self) -> None:
        self.stack: list[tuple[bool | None, bool | None]] = []

    @property
    def dead(self) -> bool:
        """Whether a command here is not run."""
        return any(taken is False for taken, _ in self.stack)

    @property
    def open(self) -> bool:
        """Whether it is not known if a command here is run."""
        return any(taken is None for taken, _ in self.stack)

    def enter(self, word: str, condition: bool | None) -> None:
        """Go past a word that opens, changes or closes a branch; others mean nothing."""
        if word == "if":
            self.stack.append((condition, condition))
        elif word in OPEN:
            self.stack.append((None, None))
        elif word in CLOSING and self.stack:
            self.stack.pop()
        elif word in ("elif", "else") and self.stack:
            before = self.stack[-1][1]
            now = condition if word == "elif" else True
            if before is not False:
                now = False if before else None
            self.stack[-1] = (now, True if before or now else now if before is False else None)

    def doubt(self) -> None:
        """Take back what is known of the last condition: there is more to it."""
        if self.stack:
            self.stack[-1] = (None, None)
