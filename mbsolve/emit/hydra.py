"""KEY=VALUE texts in the grammar of Hydra, laid onto a tree of sections."""

from __future__ import annotations

import re
from typing import Any, Final

from mbsolve.emit.literals import literal
from mbsolve.errors import InputError

__all__ = ["Tree", "assign", "split_words", "value_of"]

Tree = dict[str, Any]

KEY: Final = re.compile(r"(?P<mark>\+{0,2})(?P<key>[A-Za-z_]\w*(?:[./][\w@-]+)*)=(?P<value>.*)", re.DOTALL)
DELETION: Final = re.compile(r"~(?P<key>[A-Za-z_]\w*(?:\.\w+)*)(?:=.*)?", re.DOTALL)
CLOSING: Final = {"[": "]", "{": "}", "(": ")"}
DEPTH: Final = 20


def assign(tree: Tree, text: str) -> list[str] | None:
    """Lay one KEY=VALUE onto the tree; the last of several for a key counts.

    ``+KEY=VALUE`` and ``++KEY=VALUE`` add a key, ``~KEY`` takes one away.

    Returns
    -------
    The parts of the key, or None when the text is no assignment.

    Raises
    ------
    InputError
        if the value cannot be read, or a field is set of what is a name or null.
    """
    found = DELETION.fullmatch(text)
    value = None
    if found is None:
        found = KEY.fullmatch(text)
        if found is None:
            return None
        value = value_of(found["value"])
    parts: list[str] = re.split(r"[./]", found["key"])
    if len(parts) > DEPTH:
        raise InputError(f"the key {found['key']!r} is nested too deep.")
    node = tree
    for i, part in enumerate(parts[:-1]):
        inner = node.setdefault(part, {})
        if not isinstance(inner, dict):
            what = "null" if inner is None else f"the value {inner!r}"
            owner = ".".join(parts[: i + 1])
            raise InputError(f"{owner} is {what}, so {found['key']} cannot be set.")
        node = inner
    node[parts[-1]] = value
    return parts


def value_of(text: str) -> Any:
    """The value of an override: null, true, numbers, ``[a,b]``, ``{a:b}``, quoted text, or text as it is.

    Raises
    ------
    InputError
        if a bracket or a quote is not closed.
    """
    value, at = _value(text, _blank(text, 0), "", 0)
    if text[at:].strip():
        # The grammar would refuse more than this does; what is read is the whole text.
        return text.strip()
    return value


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _value(text: str, at: int, ends: str, depth: int) -> tuple[Any, int]:
    """The value that starts at a place, and where it ends."""
    if depth > DEPTH:
        raise InputError(f"the value {_short(text)} is nested too deep.")
    first = text[at : at + 1]
    if first and first in "'\"":
        return _quoted(text, at)
    if first == "[":
        return _list(text, at + 1, depth)
    if first == "{":
        return _mapping(text, at + 1, depth)
    start = at
    opened: list[str] = []
    while at < len(text):
        letter = text[at]
        if not opened and letter in ends:
            break
        if letter in CLOSING:
            opened.append(CLOSING[letter])
        elif opened and letter == opened[-1]:
            opened.pop()
        at += 1
    return literal(text[start:at].strip()), at


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    out: list[str] = []
    at += 1
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] == quote:
            at += 1
        elif text[at] == quote:
            return "".join(out), _blank(text, at + 1)
        out.append(text[at])
        at += 1
    raise InputError(f"a quote is not closed in {_short(text)}.")


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    at = _blank(text, at)
    while at < len(text):
        if text[at] == "]":
            return out, _blank(text, at + 1)
        value, at = _value(text, at, ",]", depth + 1)
        out.append(value)
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != "]":
            break
    raise InputError(f"a bracket is not closed in {_short(text)}.")


def _mapping(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    at = _blank(text, at)
    while at < len(text):
        if text[at] == "}":
            return out, _blank(text, at + 1)
        key, at = _value(text, at, ":}", depth + 1)
        if text[at : at + 1] != ":":
            break
        value, at = _value(text, _blank(text, at + 1), ",}", depth + 1)
        out[str(key)] = value
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != "}":
            break
    raise InputError(f"a bracket is not closed in {_short(text)}.")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def split_words(line: str) -> list[str]:
    """The assignments of a line: parted by blanks outside of quotes and brackets; ``#`` after a blank ends them.

    A word that is quoted as a whole, as for a shell, loses these quotes.
    """
    words: list[str] = []
    word, quote, opened = "", "", 0
    for letter in line:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            opened += 1
        elif letter in "]})":
            opened = max(0, opened - 1)
        elif letter.isspace() and not opened:
            words.append(word)
            word = ""
            continue
        elif letter == "#" and not word:
            break
        word += letter
    words.append(word)
    return [_bare(one) for one in words if one]


def _bare(word: str) -> str:
    whole = len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" and word[0] not in word[1:-1]
    return word[1:-1] if whole else word
