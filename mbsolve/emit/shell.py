"""The words of a shell script: quotes, continuations, comments, redirections and here-documents, nothing expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mbsolve.errors import InputError

__all__ = ["Part", "Token", "Word", "parts_of", "tokens"]

NAME: Final = re.compile(r"[A-Za-z_]\w*")
REDIRECTION: Final = re.compile(r"&?[<>]{1,2}(?:&[\d-]+|[&|]?)")
HEREDOC: Final = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
OPERATOR: Final = re.compile(r"&&|\|\||;;|[;&|()\n]")


@dataclass(frozen=True)
class Part:
    """A piece of a word.

    Parameters
    ----------
    kind : ``text``, ``variable`` (what stands behind the dollar), ``sum`` (arithmetic) or ``output`` (of a command).
    """

    kind: str
    text: str
    quoted: bool


@dataclass(frozen=True)
class Word:
    """A word of a command, or an array with its items (``NAME=(...)``)."""

    parts: tuple[Part, ...]
    items: tuple[Word, ...] | None = None


Token = Word | str


def tokens(text: str) -> Iterator[Token]:
    """The words and operators (``;``, ``&&``, newline, ...) of a script.

    Raises
    ------
    InputError
        if a quote or a bracket is not closed.
    """
    return iter(_Scanner(text).run())


def parts_of(text: str) -> tuple[Part, ...]:
    """The pieces of a text as between double quotes."""
    return tuple(_Scanner(text).inside(""))


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\\\r\n", " ").replace("\r\n", "\n").replace("\\\n", " ")
        self.at = 0

    def run(self, until: str = "") -> list[Token]:
        out: list[Token] = []
        parts: list[Part] = []

        def close() -> None:
            if parts:
                out.append(Word(tuple(parts)))
                parts.clear()

        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == until:
                break
            if letter in " \t\r":
                close()
                self.at += 1
            elif letter == "#" and not parts:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif letter == "(" and parts and not parts[-1].quoted and parts[-1].text.endswith("="):
                self.at += 1
                items = tuple(one for one in self.run(")") if isinstance(one, Word))
                self.expect(")")
                out.append(Word(tuple(parts), items))
                parts.clear()
            elif REDIRECTION.match(self.text, self.at) and not (
                letter == "&" and self.text[self.at + 1 : self.at + 2] == "&"
            ):
                if len(parts) == 1 and parts[0].text.isdigit():
                    parts.clear()
                close()
                self.redirect()
            elif operator := OPERATOR.match(self.text, self.at):
                close()
                out.append(operator[0])
                self.at = operator.end()
            else:
                parts += self.piece()
        close()
        return out

    def expect(self, letter: str) -> None:
        if self.text[self.at : self.at + 1] != letter:
            raise InputError("a bracket is not closed.")
        self.at += 1

    def redirect(self) -> None:
        """Pass over a redirection and its target, or over a here-document."""
        document = HEREDOC.match(self.text, self.at)
        if document and not self.text.startswith("<<<", self.at):
            end = re.compile(rf"^[ \t]*{document[2]}[ \t]*$", re.MULTILINE).search(self.text, document.end())
            line = self.text.find("\n", document.end())
            rest = self.text[document.end() : line] if line >= 0 else ""
            self.text = self.text[: self.at] + rest + "\n" + (self.text[end.end() :] if end else "")
            return
        found = REDIRECTION.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        if found[0][-1].isdigit() or found[0][-1] == "-":
            return
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|&()<>":
            self.piece()

    def piece(self) -> list[Part]:
        """The next piece of a word outside of quotes."""
        letter = self.text[self.at]
        if letter == "'":
            return [Part("text", self.upto("'"), True)]
        if letter == '"':
            self.at += 1
            parts = self.inside('"')
            self.expect('"')
            return parts or [Part("text", "", True)]
        if letter == "\\":
            self.at += 2
            return [Part("text", self.text[self.at - 1 : self.at], True)]
        if letter in "$`":
            return [self.expansion(False)]
        start = self.at
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n'\"\\$`;&|()<>":
            self.at += 1
        return [Part("text", self.text[start : self.at], False)]

    def inside(self, end: str) -> list[Part]:
        """The pieces up to a closing double quote, or to the end of the text."""
        parts: list[Part] = []
        plain = ""
        while self.at < len(self.text) and self.text[self.at] != end:
            letter = self.text[self.at]
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                plain += self.text[self.at + 1]
                self.at += 2
            elif letter in "$`":
                parts += [Part("text", plain, True), self.expansion(True)]
                plain = ""
            else:
                plain += letter
                self.at += 1
        return [*parts, Part("text", plain, True)] if plain else parts

    def upto(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise InputError("a quote is not closed.")
        found = self.text[self.at + 1 : end]
        self.at = end + 1
        return found

    def expansion(self, quoted: bool) -> Part:
        """A dollar or a backquote, and what belongs to it."""
        text = self.text
        if text[self.at] == "`":
            return Part("output", self.upto("`"), quoted)
        for opening, closing, kind in (("$(", ")", "output"), ("${", "}", "variable")):
            if text.startswith(opening, self.at):
                inner = self.balanced(opening[1], closing)
                if kind == "output" and inner[:1] == "(" and inner[-1:] == ")":
                    return Part("sum", inner[1:-1], quoted)
                return Part(kind, inner, quoted)
        self.at += 1
        name = NAME.match(text, self.at)
        if name:
            self.at = name.end()
            return Part("variable", name[0], quoted)
        special = text[self.at : self.at + 1]
        if special and (special.isdigit() or special in "@*#?$!-"):
            self.at += 1
            return Part("variable", special, quoted)
        return Part("text", "$", quoted)

    def balanced(self, opening: str, closing: str) -> str:
        start, depth = self.at + 2, 1
        at = start
        while at < len(self.text):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                self.at = at + 1
                return self.text[start:at]
            at += 1
        raise InputError("a bracket is not closed.")
