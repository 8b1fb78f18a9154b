"""Input that makes no sense, said in one sentence; the base of what every reader raises."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["InputError", "did_you_mean"]


class InputError(ValueError):
    """Input that cannot be read or makes no sense; the message is one sentence."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, or a full stop."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else "."
