"""The rules of the target stack as text."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mbsolve.constraints.check import SPELLINGS
from mbsolve.constraints.examples import bases, breaks
from mbsolve.constraints.rule import FACTS, Normalisation, Rule
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.constraints.rules.repair import repair_fields
from mbsolve.constraints.vocabulary import TARGETS
from mbsolve.report.words import word

Law = Rule | Normalisation

BOOK: tuple[Law, ...] = (*RULES, *NORMALISATIONS)


class UnknownRuleError(ValueError):
    """An id that no rule has; the message is one sentence."""


def listing() -> list[str]:
    """One line for each rule id, in the order of the catalogue; then what the stack changes by itself."""
    seen: dict[str, Law] = {}
    for law in BOOK:
        seen.setdefault(law.id, law)
    width = max(map(len, seen), default=0)
    return [f"{law.id:<{width}}  {law.kind:<10}  {law.text}".rstrip() for law in seen.values()]


def one(rule_id: str) -> list[str]:
    """All that is known of one rule.

    Raises
    ------
    UnknownRuleError
        If no rule has the id.
    """
    family = [law for law in BOOK if law.id == rule_id]
    if not family:
        return _spelling(rule_id)
    first = family[0]
    lines = [f"{first.id} ({first.kind})"]
    lines += [f"  {text}" for text in dict.fromkeys(law.text for law in family)]
    scope = dict.fromkeys(name for law in family for name in law.parameters if name not in FACTS)
    lines += [f"  message: {text}" for text in _messages(family)]
    lines += [f"  reads: {', '.join(scope) or 'the job only'}"]
    targets = [target for target in TARGETS if any(law.holds_for(target) for law in family)]
    lines += [f"  targets: {'all' if len(targets) == len(TARGETS) else ', '.join(targets)}"]
    lines += [
        f"  {name}: {value}" for name, value in (("since", first.since), ("until", first.until)) if value
    ]
    lines += [f"  source: {text}" for text in dict.fromkeys(str(law.source) for law in family)]
    if isinstance(first, Normalisation):
        lines += [
            f"  field: {', '.join(dict.fromkeys(n.field for n in family if isinstance(n, Normalisation)))}"
        ]
        lines += [f"  refused by: {', '.join(first.refused_by)}"] if first.refused_by else []
    elif first.kind == "hard":
        fields = dict.fromkeys(f for law in family if isinstance(law, Rule) for f in repair_fields(law))
        lines += [f"  repairs: a value of {', '.join(fields)}" if fields else "  repairs: none"]
        lines += _examples(rule_id)
    return [*lines, "", *_functions(family)]


def _spelling(rule_id: str) -> list[str]:
    """A law on the names in a list."""
    for field, (id, known, source) in SPELLINGS.items():
        if id == rule_id:
            head = [f"{id} (hard)", f"  {field} has known names only.", f"  names: {', '.join(known)}"]
            tail = ["  targets: all", f"  source: {source}", f"  repairs: a value of {field}"]
            return [*head, f"  reads: {field}", *tail, *_examples(id)]
    known_ids = {law.id: None for law in BOOK} | {id: None for id, _, _ in SPELLINGS.values()}
    close = difflib.get_close_matches(rule_id, known_ids, n=1, cutoff=0.4)
    raise UnknownRuleError(f"There is no rule {rule_id!r}{f'; did you mean {close[0]!r}?' if close else '.'}")


def _messages(family: Sequence[Law]) -> list[str]:
    """The messages of a family: of members that differ in one name only, the first."""
    seen: dict[str, str] = {}
    for law in family:
        seen.setdefault(_source_of(law), law.because)
    return list(dict.fromkeys(seen.values()))


def _source_of(law: Law) -> str:
    """The text of the function, decorators left out."""
    text = inspect.getsource(getattr(law.fn, "__wrapped__", law.fn))
    lines = inspect.cleandoc(text).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[start:])


def _functions(family: Sequence[Law]) -> list[str]:
    texts = "\n\n".join(dict.fromkeys(map(_source_of, family)))
    return [f"  {line}".rstrip() for line in texts.splitlines()]


def _examples(rule_id: str) -> list[str]:
    """What breaks the law: a legal example, and the change."""
    lines = []
    for row in breaks():
        if row["id"] != rule_id:
            continue
        base = bases()[row["base"]]
        job = base["job"]
        what = (
            f"{job['model']} on {job['gpus']} {job['machine']}, {job['seq_len']} tokens, batch {job['gbs']}"
        )
        changed = "; ".join(f"{part}: {_flat(row[part])}" for part in ("job", "plan") if row.get(part))
        lines += [f"  broken by: {changed}", f"    in: {what}; {_flat(base['plan'])}"]
    return lines


def _flat(fields: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}=({_flat(value)})" if isinstance(value, Mapping) else f"{name}={word(value)}"
        for name, value in fields.items()
    )
