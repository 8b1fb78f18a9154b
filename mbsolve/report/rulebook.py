"""The rules of the target stack as text."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mbsolve.constraints.budgets import BUDGETS, Budget
from mbsolve.constraints.check import SPELLINGS
from mbsolve.constraints.coverage import CLASSES, coverage, differences
from mbsolve.constraints.examples import bases, breaks, overruns
from mbsolve.constraints.lighter import MEASURES
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
    """One line for each rule id, in the order of the catalogue; what the stack changes by itself; the budgets."""
    seen: dict[str, Law] = {}
    for law in BOOK:
        seen.setdefault(law.id, law)
    width = max(map(len, seen), default=0)
    lines = [f"{law.id:<{width}}  {law.kind:<10}  {law.text}".rstrip() for law in seen.values()]
    return lines + [f"{budget.id:<{width}}  {'hard':<10}  {budget.text}" for budget in BUDGETS]


def one(rule_id: str) -> list[str]:
    """All that is known of one rule, of a memory budget, or of an entry of the catalogue that is no rule here.

    Raises
    ------
    UnknownRuleError
        If none of them has the id.
    """
    family = [law for law in BOOK if law.id == rule_id]
    if not family:
        return _no_rule(rule_id)
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


def _no_rule(rule_id: str) -> list[str]:
    """What is not a function over decisions: a law on the names in a list, a budget, an entry held elsewhere."""
    for field, (id, _, _) in SPELLINGS.items():
        if id == rule_id:
            return _spelling(field)
    for budget in BUDGETS:
        if budget.id == rule_id:
            return _budget(budget)
    entries = coverage()
    for entry in entries:
        if entry.id == rule_id:
            said = differences().get(rule_id)
            return [
                f"{rule_id} ({entry.how.replace('_', ' ')})",
                "  A check of the upstream validators that is no rule of its own here.",
                f"  class: {CLASSES[entry.how]}",
                f"  reason: {entry.why}",
                *([f"  releases: {said}"] if said else []),
            ]
    known = dict.fromkeys(
        [law.id for law in BOOK]
        + [id for id, _, _ in SPELLINGS.values()]
        + [budget.id for budget in BUDGETS]
        + [entry.id for entry in entries]
    )
    close = difflib.get_close_matches(rule_id, known, n=1, cutoff=0.4)
    raise UnknownRuleError(f"There is no rule {rule_id!r}{f'; did you mean {close[0]!r}?' if close else '.'}")


def _spelling(field: str) -> list[str]:
    """A law on the names in a list."""
    id, known, source = SPELLINGS[field]
    head = [f"{id} (hard)", f"  {field} has known names only.", f"  names: {', '.join(known)}"]
    tail = ["  targets: all", f"  source: {source}", f"  repairs: a value of {field}"]
    return [*head, f"  reads: {field}", *tail, *_examples(id)]


def _budget(budget: Budget) -> list[str]:
    """A memory budget."""
    return [
        f"{budget.id} (hard)",
        f"  {budget.text}",
        f"  message: {budget.because}",
        f"  reads: {', '.join(budget.reads)}",
        "  targets: all",
        f"  source: {budget.source}",
        f"  repairs: a value of {', '.join(MEASURES)}",
        *_examples(budget.id),
        "",
        *_indented(_code(budget.needs), _code(budget.limit)),
    ]


def _messages(family: Sequence[Law]) -> list[str]:
    """The messages of a family: of members that differ in one name only, the first."""
    seen: dict[str, str] = {}
    for law in family:
        seen.setdefault(_source_of(law), law.because)
    return list(dict.fromkeys(seen.values()))


def _source_of(law: Law) -> str:
    """The text of the function, decorators left out."""
    return _code(getattr(law.fn, "__wrapped__", law.fn))


def _code(fn: Callable[..., Any]) -> str:
    lines = textwrap.dedent(inspect.getsource(fn)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[start:]).rstrip()


def _functions(family: Sequence[Law]) -> list[str]:
    return _indented(*dict.fromkeys(map(_source_of, family)))


def _indented(*texts: str) -> list[str]:
    return [f"  {line}".rstrip() for line in "\n\n".join(texts).splitlines()]


def _examples(rule_id: str) -> list[str]:
    """What breaks the law: a legal example, and the change."""
    lines = []
    for row in [*breaks(), *overruns()]:
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
