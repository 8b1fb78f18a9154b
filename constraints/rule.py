"""How a rule and a term are declared: one plain function, from which every other reading is taken.

The parameters of the function are its scope. A parameter named like a fact (`job`, `model`, `machine`,
`topology`) is bound once per job; any other parameter is a decision of `vocabulary.DECISIONS` or one of
the derived sizes of `vocabulary.DERIVED`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any, Literal, TypeVar

import numpy as np

from mbsolve.constraints.versions import holds_in

FACTS = ("job", "model", "machine", "topology")

Kind = Literal["hard", "warning", "normalised"]
Row = Literal[
    "device_bytes",
    "pool_bytes",
    "context_bytes",
    "host_bytes",
    "forward_device",
    "forward_host",
    "backward_device",
    "backward_host",
    "transfer",
    "grad_reduce",
    "param_gather",
    "tail",
]

# What is reserved: tensors that the allocator counts as allocated; and what it does not count so: private pools of
# captured graphs, blocks that no other stream may reuse, buffers that communication libraries take of the driver.
RESERVED: tuple[Row, ...] = ("device_bytes", "pool_bytes")


class _Words(Formatter):
    """Formats values as a sentence has them: on and off, none, the names of a list."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None or value == ():
            value = "none"
        elif isinstance(value, bool | np.bool_):
            value = "on" if value else "off"
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        return super().format_field(value, format_spec)


def sentence(because: str, known: Mapping[str, Any]) -> str:
    """A reason with the values of the case, in words: None is "none", a switch "on" or "off"."""
    return _Words().vformat(because, (), known)


@dataclass(frozen=True)
class Source:
    """Where a rule or a figure comes from.

    Parameters
    ----------
    origin : repository, paper, data sheet or measurement.
    place : path and line, section or table inside the origin; may be empty.
    """

    origin: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.origin} {self.place}".strip()


@dataclass(frozen=True)
class Declared:
    """What a rule and a term share: a plain function and the names in its signature."""

    fn: Callable[..., Any]
    source: Source

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.fn).parameters)

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """Facts the function asks for."""
        return tuple(p for p in self.parameters if p in FACTS)

    @cached_property
    def scope(self) -> tuple[str, ...]:
        """Decisions and derived sizes the function names."""
        return tuple(p for p in self.parameters if p not in FACTS)

    def call(self, facts: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """Call the function with its facts and the values of its scope (scalars or arrays that broadcast)."""
        bound = {name: facts[name] for name in self.facts}
        return self.fn(**bound, **{name: values[name] for name in self.scope})

    @property
    def text(self) -> str:
        """First line of the function's docstring."""
        return (self.fn.__doc__ or "").strip().splitlines()[0] if self.fn.__doc__ else ""


@dataclass(frozen=True)
class Rule(Declared):
    """One law of the target stack.

    Parameters
    ----------
    id : stable identifier, as in the catalogue of the upstream validators.
    because : one line, formatted with the facts, the values of the scope and the figures when the rule is broken.
    figures : what else the line names: a function of facts and decisions that gives numbers or words by name.
    kind : ``hard`` refuses a plan, ``warning`` speaks; ``normalised`` is of a `Normalisation`.
    targets : launch targets for which the rule holds; empty means all.
    since, until : first and last release with the rule, as "mcore 0.16"; empty where none is known.
    """

    id: str = ""
    because: str = ""
    kind: Kind = "hard"
    targets: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    figures: Callable[..., Mapping[str, Any]] | None = None

    def holds_for(self, target: str) -> bool:
        """Whether the rule is one of a target's releases."""
        return holds_in(target, self.targets, self.since, self.until)

    def holds(self, facts: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Whether a plan's values satisfy the rule."""
        return bool(self.call(facts, values))

    def clause(self, facts: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        """The reason in words, with the numbers of the case."""
        known = {**facts, **values}
        if self.figures is None:
            return sentence(self.because, known)
        asked = inspect.signature(self.figures).parameters
        return sentence(self.because, {**known, **self.figures(**{name: known[name] for name in asked})})


@dataclass(frozen=True)
class Normalisation(Declared):
    """One field that the target stack changes by itself: the function gives the value that the field would get.

    Its parameters are facts, decisions and fields of the plan (as `Plan.cuda_graph_scope`).

    Parameters
    ----------
    id, because, targets, since, until : as of a `Rule`.
    field : the field of the plan, or of the settings of the job.
    refused_by : a law that refuses such a plan instead, because the change would not be what was wanted; the change is
        then told and not applied.
    """

    id: str = ""
    field: str = ""
    because: str = ""
    targets: tuple[str, ...] = ()
    refused_by: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    kind: Kind = "normalised"

    def holds_for(self, target: str) -> bool:
        """Whether the change is one of a target's releases."""
        return holds_in(target, self.targets, self.since, self.until)


@dataclass(frozen=True)
class Term(Declared):
    """One named cost: ``count x fn``, summed over a row.

    Parameters
    ----------
    name : dotted name; its first parts group it in reports.
    row : the total that the term enters.
    per : the count (column of `placement.stage_counts` or `moments.moments`) that multiplies the function.
    unit : ``bytes`` or ``seconds``.
    """

    name: str = ""
    row: Row = "tail"
    per: str = "one"

    @property
    def unit(self) -> str:
        return "bytes" if self.row.endswith("_bytes") else "seconds"


F = TypeVar("F", bound=Callable[..., Any])


def rule(
    id: str,
    *,
    because: str,
    source: Source,
    kind: Kind = "hard",
    targets: tuple[str, ...] = (),
    since: str = "",
    until: str = "",
    figures: Callable[..., Mapping[str, Any]] | None = None,
) -> Callable[[Callable[..., bool]], Rule]:
    """Declare a predicate over decisions as a rule."""

    def declare(fn: Callable[..., bool]) -> Rule:
        return Rule(fn, source, id, because, kind, targets, since, until, figures)

    return declare


def normalisation(
    id: str,
    *,
    field: str,
    because: str,
    source: Source,
    targets: tuple[str, ...] = (),
    refused_by: tuple[str, ...] = (),
    since: str = "",
    until: str = "",
) -> Callable[[Callable[..., Any]], Normalisation]:
    """Declare a function that gives the value of a field as the stack would change it."""

    def declare(fn: Callable[..., Any]) -> Normalisation:
        return Normalisation(fn, source, id, field, because, targets, refused_by, since, until)

    return declare


def term(name: str, *, row: Row, per: str, source: Source) -> Callable[[Callable[..., Any]], Term]:
    """Declare a function of decisions (bytes or seconds for each unit of ``per``) as a term."""

    def declare(fn: Callable[..., Any]) -> Term:
        return Term(fn=fn, source=source, name=name, row=row, per=per)

    return declare
