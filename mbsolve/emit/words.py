"""Words of a command line: flags with the values that follow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["Value", "Words", "lines_of", "put"]

Value = bool | int | float | str | tuple[str, ...] | None
Words = list[str]


def put(out: Words, flag: str, value: Value) -> None:
    """Add a flag: alone where the value is True, not at all where it is False, None or an empty list."""
    if value is None or value is False or value == ():
        return
    out.append(flag)
    if isinstance(value, tuple):
        out.extend(value)
    elif value is not True:
        out.append(str(value))


def lines_of(words: Sequence[str]) -> Iterator[Words]:
    """Each flag with its values."""
    line: Words = []
    for word in words:
        if word.startswith("--") and line:
            yield line
            line = []
        line.append(word)
    if line:
        yield line
