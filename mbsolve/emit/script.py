"""A shell script followed as far as it can be without running it: literal assignments, and the calls that are looked for.

What stands in a word for something that is not known is marked (`unknown_in`), so that only who needs the word cares.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mbsolve.emit.branches import CLOSING, Branches, holds
from mbsolve.emit.shell import Part, Word, parts_of, tokens
from mbsolve.errors import InputError

__all__ = ["MARK", "Call", "calls", "unknown_in"]

MARK: Final = "\0"
LIMIT: Final = 400_000
DEPTH: Final = 6
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\[\w*\])?(\+?)=")
EXPANSION: Final = re.compile(
    r"(?P<name>\w+)(?P<all>\[[@*]\])?(?:(?P<how>:?[-=])(?P<default>.*))?", re.DOTALL
)
DECLARING: Final = frozenset(["export", "local", "declare", "readonly", "typeset"])
CHAINING: Final = ("&&", "||")
LEADING: Final = frozenset(
    ["if", "then", "elif", "else", "while", "until", "do", "{", "!", "eval", "exec", "time"]
)
PRINTING: Final = frozenset(["echo", "printf", "cat", ":", "test", "[", "[["])
SUMS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Call:
    """A command that was looked for: its words, and the variables when it is reached."""

    words: tuple[str, ...]
    variables: Mapping[str, str]


def unknown_in(word: str) -> str | None:
    """What is not known in a word: the name of a variable, or ``command-output``; None when all of it is known."""
    parts = word.split(MARK)
    return parts[1] if len(parts) > 1 else None


def _unknown(name: str | None) -> str:
    """A mark that a second reading of the word, as a script of its own, leaves as it is."""
    return f"{MARK}{re.sub(r'[^A-Za-z0-9_]+', '-', name or '').strip('-')[:40] or 'parameter'}{MARK}"


def calls(text: str, wanted: Callable[[str], bool]) -> list[Call]:
    """The commands of a script with a word that is wanted, in their order.

    Raises
    ------
    InputError
        if a quote or a bracket is not closed, or the words are without end.
    """
    return list(_Script(wanted).follow(text, 0))


class _Script:
    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.wanted = wanted
        self.values: dict[str, list[str]] = {}
        self.exported: dict[str, str] = {}
        self.letters = 0

    def follow(self, text: str, nested: int) -> Iterator[Call]:
        command: list[Word] = []
        branches, last = Branches(), "\n"
        for token in [*tokens(text), "\n"]:
            if isinstance(token, Word):
                command.append(token)
                continue
            chained = token in CHAINING
            if command:
                yield from self.command(command, branches, last in CHAINING, chained, nested)
            # A function's name and its brackets are no command.
            last, command = token, []

    def command(
        self, words: Sequence[Word], branches: Branches, conditional: bool, chained: bool, nested: int
    ) -> list[Call]:
        """One simple command; gives the call if it is one.

        ``conditional`` and ``chained`` say that another condition stands before it, and behind it.
        """
        words = list(words)
        while words and (head := _bare(words[0])) is not None:
            condition = self.test(words[1:]) if head in ("if", "elif") else None
            branches.enter(head, condition)
            if head in ("if", "elif") and chained:
                branches.doubt()
            if head in ("for", "select") and len(words) > 1:
                self.put(_bare(words[1]) or "", [_unknown(_bare(words[1]))], False)
                return []
            if head not in LEADING and head not in CLOSING:
                break
            words.pop(0)
        if branches.dead:
            return []
        branch = branches.open or conditional
        while words and self.assigned(words[0], branch):
            words.pop(0)
        if not words:
            return []
        head = _bare(words[0]) or ""
        if head in DECLARING:
            for word in words[1:]:
                self.assigned(word, branch)
            return []
        expanded = [text for word in words for text in self.expand(word)]
        found = [text for text in expanded if self.wanted(text)]
        if head in PRINTING or not found:
            return []
        inner = [text for text in found if any(letter.isspace() for letter in text)]
        if inner and nested < DEPTH:
            return [call for text in inner for call in self.follow(text, nested + 1)]
        known = {name: values[0] for name, values in self.values.items() if values}
        return [Call(tuple(expanded), known)]

    def test(self, words: Sequence[Word]) -> bool | None:
        """Whether the test behind an ``if`` holds; None where that is not known."""
        heads = [_bare(word) for word in words]
        if len(words) < 3 or (heads[0], heads[-1]) not in (("[", "]"), ("[[", "]]")):
            return None
        texts = ["".join(" ".join(self.pieces((part,), True)) for part in word.parts) for word in words[1:-1]]
        return holds([None if unknown_in(text) is not None else text for text in texts])

    def assigned(self, word: Word, branch: bool) -> bool:
        """Take an assignment; whether the word was one."""
        first = word.parts[0]
        found = ASSIGNMENT.match(first.text) if first.kind == "text" and not first.quoted else None
        if not found:
            return False
        name, more = found[1], bool(found[3])
        if word.items is not None:
            values = [text for item in word.items for text in self.expand(item)]
        else:
            rest = (Part("text", first.text[found.end() :], True), *word.parts[1:])
            values = ["".join(" ".join(self.pieces((part,), True)) for part in rest)]
        if found[2]:
            values = [_unknown(name)]
        if more:
            old = self.values.get(name, [])
            if branch:
                values = [_unknown(name)]
            values = (
                [*old, *values]
                if word.items is not None
                else ["".join(old[:1]) + " " * branch + values[0], *old[1:]]
            )
        elif (branch and self.values.get(name, values) != values) or (branch and name not in self.values):
            values = [_unknown(name)]
        self.put(name, values, True)
        return True

    def put(self, name: str, values: list[str], counted: bool) -> None:
        if counted:
            self.count(sum(map(len, values)))
        self.values[name] = values

    def count(self, letters: int) -> None:
        self.letters += letters
        if self.letters > LIMIT:
            raise InputError("its variables grow without end.")

    def expand(self, word: Word) -> list[str]:
        """The words that one becomes: what is not quoted is parted at blanks, an array into its items."""
        out: list[str] = []
        current: str | None = None
        for part in word.parts:
            pieces = self.pieces((part,), part.quoted)
            if part.kind != "text" and not part.quoted:
                text = " ".join(pieces)
                self.count(len(text))
                pieces = text.split()
                if current and text[:1].isspace():
                    out.append(current)
                    current = None
                if not pieces:
                    continue
            if not pieces:
                continue
            current = (current or "") + pieces[0]
            for piece in pieces[1:]:
                out.append(current)
                current = piece
        if current is not None:
            out.append(current)
        self.count(sum(map(len, out)))
        return out

    def pieces(self, parts: Sequence[Part], quoted: bool) -> list[str]:
        """The values of the parts of a word; one for each, except for a whole array."""
        out: list[str] = []
        for part in parts:
            if part.kind == "text":
                out.append(part.text)
            elif part.kind == "sum":
                out.append(self.sum(part.text))
            elif part.kind == "output":
                out.append(_unknown("command-output"))
            else:
                out += self.variable(part.text)
        return out

    def variable(self, text: str) -> list[str]:
        found = EXPANSION.fullmatch(text)
        if found is None:
            return [_unknown(text)]
        values = self.values.get(found["name"])
        if (not values or values == [""]) and found["default"] is not None:
            default = self.default(found["default"])
            if found["how"].endswith("="):
                self.put(found["name"], [default], True)
            return [default]
        if values is None:
            return [_unknown(found["name"])]
        if not found["all"]:
            return values[:1]
        return [" ".join(values)] if "*" in found["all"] else values

    def default(self, text: str) -> str:
        """The value of a default, which may hold another one."""
        self.count(100)
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return "".join(self.pieces(parts_of(text), True))

    def sum(self, text: str) -> str:
        """The result of whole-number arithmetic; marked as unknown when a name is, or when it is more than that."""
        unknown = _unknown(text)

        def value(found: re.Match[str]) -> str:
            values = self.values.get(found[1], [])
            return values[0] if values and re.fullmatch(r"\d{1,12}", values[0]) else "?"

        flat = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, text.strip())
        if not re.fullmatch(r"[\d\s+*/%()-]{1,200}", flat):
            return unknown
        try:
            return str(_sum(ast.parse(re.sub(r"\b0+(?=\d)", "", flat), mode="eval").body))
        except (SyntaxError, ArithmeticError, ValueError, RecursionError, MemoryError):
            return unknown


def _bare(word: Word) -> str | None:
    """The text of a word that is one plain piece."""
    if len(word.parts) == 1 and word.items is None:
        part = word.parts[0]
        if part.kind == "text" and not part.quoted:
            return part.text
    return None


def _sum(node: Any) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        found = SUMS[type(node.op)](_sum(node.left), _sum(node.right))
        if abs(found) < 10**15:
            return found
    raise ValueError("not a sum of whole numbers")
