"""Functions of facts and decisions, put together: what they read is told by their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from mbsolve.constraints.memory.capture import captured, graph_needs
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.rule import FACTS

__all__ = ["Bytes", "ask", "composed", "names_of", "summary", "where_captured"]

Bytes = Callable[..., Any]


@lru_cache(maxsize=1024)
def names_of(fn: Bytes) -> tuple[str, ...]:
    """Facts and decisions that a function names."""
    return tuple(inspect.signature(fn).parameters)


def ask(fn: Bytes, values: Mapping[str, Any]) -> Value:
    """Call a function with those values that it names."""
    return fn(**{name: values[name] for name in names_of(fn)})


def composed(text: str, needs: Iterable[str], body: Callable[[Mapping[str, Any]], Value]) -> Bytes:
    """A function of the given facts and decisions, for `Term`: its signature lists them, facts first."""
    wanted = dict.fromkeys(needs)
    ordered = [n for n in FACTS if n in wanted] + [n for n in wanted if n not in FACTS]

    def fn(**values: Any) -> Value:
        return body(values)

    fn.__doc__ = text
    fn.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ordered]
    )
    return fn


def where_captured(fn: Bytes, scopes: tuple[str, ...], inside: bool, note: str = "") -> Bytes:
    """The bytes of a function where one of the graph scopes is captured, or where none is."""

    def body(values: Mapping[str, Any]) -> Value:
        on = captured(values, scopes)
        return ask(fn, values) * (on if inside else 1.0 - on)

    return composed(f"{summary(fn)}{note}", (*names_of(fn), *graph_needs(scopes)), body)


def summary(fn: Bytes) -> str:
    """First line of a function's docstring."""
    return (fn.__doc__ or "").strip().splitlines()[0]
