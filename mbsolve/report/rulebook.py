"""The rules of the target stack as text."""

from __future__ import annotations

import difflib

from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.catalogue import RULES


class UnknownRuleError(ValueError):
    """An id that no rule has; the message is one sentence."""


def listing() -> list[str]:
    """One line for each rule id, in the order of the catalogue."""
    seen: dict[str, Rule] = {}
    for rule in RULES:
        seen.setdefault(rule.id, rule)
    width = max(map(len, seen), default=0)
    return [f"{rule.id:<{width}}  {rule.kind:<10}  {rule.text}".rstrip() for rule in seen.values()]


def one(rule_id: str) -> list[str]:
    """All that is known of one rule.

    Raises
    ------
    UnknownRuleError
        If no rule has the id.
    """
    family = [rule for rule in RULES if rule.id == rule_id]
    if not family:
        close = difflib.get_close_matches(rule_id, {rule.id: None for rule in RULES}, n=1, cutoff=0.4)
        raise UnknownRuleError(
            f"There is no rule {rule_id!r}{f'; did you mean {close[0]!r}?' if close else '.'}"
        )
    first = family[0]
    lines = [f"{first.id} ({first.kind})"]
    lines += [f"  {text}" for text in dict.fromkeys(rule.text for rule in family)]
    scope = dict.fromkeys(name for rule in family for name in rule.scope)
    return [
        *lines,
        f"  message: {first.because}",
        f"  reads: {', '.join(scope) or 'the job only'}",
        f"  targets: {', '.join(first.targets) or 'all'}",
        f"  source: {first.source}",
    ]
