"""Where the rules come from: short names for the two upstream repositories, and rules that come in families."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from mbsolve.constraints.rule import Rule, Source

BRIDGE_TARGETS: Final = ("bridge", "bridge-0.6")
MEGATRON_LM: Final = ("megatron-lm",)
CONFIG: Final = "megatron/core/transformer/transformer_config.py"


def megatron(place: str) -> Source:
    """Return a source in Megatron-LM."""
    return Source("NVIDIA/Megatron-LM", place)


def bridge(place: str) -> Source:
    """Return a source in Megatron-Bridge."""
    return Source("NVIDIA-NeMo/Megatron-Bridge", place)


def for_each(names: Iterable[str]) -> Callable[[Rule], tuple[Rule, ...]]:
    """Turn a rule with a parameter ``each`` into one rule for each of the decisions, all with the same id.

    A law over many switches ("no module of the list with ...") stays a family of small rules in that way, which
    a solver takes as short clauses instead of one wide table.
    """

    def spread(template: Rule) -> tuple[Rule, ...]:
        return tuple(_bind(template, name) for name in names)

    return spread


def _bind(template: Rule, name: str) -> Rule:
    law = template.fn
    signature = inspect.signature(law)

    def bound(**values: Any) -> bool:
        values["each"] = values.pop(name)
        return bool(law(**values))

    bound.__doc__ = law.__doc__
    bound.__wrapped__ = law  # type: ignore[attr-defined]
    bound.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(name=name if p.name == "each" else p.name, kind=inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
        ]
    )
    return Rule(
        fn=bound,
        source=template.source,
        id=template.id,
        because=template.because.replace("{each}", name.split("_", 1)[1]),
        kind=template.kind,
        targets=template.targets,
        since=template.since,
        until=template.until,
        figures=template.figures,
    )
