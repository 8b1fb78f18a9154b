"""The documentation of the rules, made from the rules: ``python -m mbsolve.constraints.docs`` writes it.

With ``--check`` it writes nothing and fails when the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from mbsolve.constraints.budgets import BUDGETS
from mbsolve.constraints.check import SPELLINGS
from mbsolve.constraints.coverage import CLASSES, coverage, differences
from mbsolve.constraints.rule import Normalisation, Rule
from mbsolve.constraints.rules.catalogue import CANONICAL, OURS, RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.constraints.versions import RELEASES
from mbsolve.constraints.vocabulary import TARGETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "constraints.md"

HEAD = """# The rules

Made by `python -m mbsolve.constraints.docs`; do not edit. The order is that of `constraints/rules/catalogue.py`.
A rule is one function; its parameters are its scope. Line numbers in Megatron-LM are of commit `d98e8a64`, in
Megatron-Bridge of commit `067f987d`.

Targets and their releases (mcore is Megatron-Core, with which Megatron-LM goes; what is not named is the newest commit):
{releases}.
"""

OURS_HEAD = """
## Ids of our own

"""

BUDGETS_HEAD = """
## Memory budgets

They are judged of plans that break no law.

"""

SPELLING_HEAD = """
## Names in lists

"""

CANONICAL_HEAD = """
## One plan for each run

No laws: `check` never reports them. The solver adds them so that it does not search the same run twice. One is left
out when the user has fixed a decision that it forbids.

"""

NORMALISED_HEAD = """
## What the stack changes by itself

`check` and `evaluate` judge the plan with these changes and tell them. Where a law is named, the change would defeat
what was asked for: it is told, and the law refuses the plan.

"""

RELEASES_HEAD = """
## Where releases differ

As far as a source states it.

"""

COVERAGE_HEAD = """
## The catalogue of the validators

Every entry of the catalogue of checks in Megatron-LM and Megatron-Bridge at the commits above, and what became of it.

"""


def _code(text: str) -> str:
    return f"`{text}`"


def _scope(rules: list[Rule]) -> str:
    """Return the names of a rule; of a family, what its members share and what they do not."""
    shared = [name for name in rules[0].scope if all(name in rule.scope for rule in rules)]
    own = [name for rule in rules for name in rule.scope if name not in shared]
    each = f"each of {', '.join(map(_code, own))}" if own else ""
    return ", ".join(part for part in (*map(_code, shared), each, *rules[0].facts) if part)


def _table(rules: Iterable[Rule], *, sources: bool = True) -> str:
    lines = ["| id | rule | scope |" + (" holds for | source |" if sources else "")]
    lines.append("|---|---|---|" + ("---|---|" if sources else ""))
    for id, family in groupby(rules, key=lambda rule: rule.id):
        members = list(family)
        first = members[0]
        words = first.text.replace("|", "\\|") + (f" ({first.kind})" if first.kind != "hard" else "")
        row = f"| {_code(id)} | {words} | {_scope(members)} |"
        lines.append(row + (f" {_holds_for(first)} | {first.source} |" if sources else ""))
    return "\n".join(lines) + "\n"


def _holds_for(law: Rule | Normalisation) -> str:
    """Return the targets of a law, and the releases that it is known to be of."""
    named = [target for target in TARGETS if law.holds_for(target)]
    words = "all" if len(named) == len(TARGETS) else ", ".join(named)
    known = [law.since and f"since {law.since}", law.until and f"until {law.until}"]
    return "; ".join(word for word in (words, *known) if word)


def _normalised() -> str:
    lines = ["| id | field | change | holds for | refused by | source |", "|---|---|---|---|---|---|"]
    for change in NORMALISATIONS:
        targets, laws = _holds_for(change), ", ".join(map(_code, change.refused_by))
        lines.append(
            f"| {_code(change.id)} | {_code(change.field)} | {change.text} | {targets} | {laws} | {change.source} |"
        )
    return "\n".join(lines) + "\n"


def _coverage() -> str:
    """Return the number of entries of each class, and the entries by where or why."""
    entries = coverage()
    lines = ["| entries | what became of them |", "|---|---|"]
    lines += [f"| {sum(e.how == how for e in entries)} | {words} |" for how, words in CLASSES.items()]
    lines += ["", "| entries | what became of them | where, or why |", "|---|---|---|"]
    for (how, why), group in groupby(entries, key=lambda entry: (entry.how, entry.why)):
        if how in ("rule", "warning"):
            continue  # the first table has them
        ids = ", ".join(_code(entry.id) for entry in group)
        lines.append(f"| {ids} | {how.replace('_', ' ')} | {why} |")
    return "\n".join(lines) + "\n"


def _differences() -> str:
    lines = ["| id | difference |", "|---|---|"]
    lines += [f"| {_code(id)} | {words} |" for id, words in differences().items()]
    return "\n".join(lines) + "\n"


def _releases() -> str:
    return "; ".join(
        f"{_code(target)}: {', '.join(f'{name} {number}' for name, number in RELEASES[target].items())}"
        for target in TARGETS
    )


def rules_table() -> str:
    """Return the page of the rules in Markdown."""
    ours = "".join(f"- {_code(id)}: {reason}.\n" for id, reason in OURS.items())
    spellings = "".join(
        f"- {_code(id)}: `{field}` has only the names {', '.join(map(_code, known))} ({source}).\n"
        for field, (id, known, source) in SPELLINGS.items()
    )
    budgets = "".join(f"- {_code(b.id)}: {b.text} ({b.source})\n" for b in BUDGETS)
    return "".join(
        (
            f"{HEAD.format(releases=_releases())}\n{_table(RULES)}",
            f"{OURS_HEAD}{ours}",
            f"{SPELLING_HEAD}{spellings}",
            f"{BUDGETS_HEAD}{budgets}",
            f"{CANONICAL_HEAD}{_table(CANONICAL, sources=False)}",
            f"{NORMALISED_HEAD}{_normalised()}",
            f"{RELEASES_HEAD}{_differences()}",
            f"{COVERAGE_HEAD}{_coverage()}",
        )
    )


def main(argv: Sequence[str]) -> int:
    """Write the page, or with ``--check`` compare it; the exit code."""
    if list(argv) not in ([], ["--check"]):
        print(f"docs: unknown arguments {' '.join(argv)}; known: --check.", file=sys.stderr)
        return 2
    if not PAGE.parent.is_dir():
        print("docs: the page lies in a checkout, but this is an installed copy.", file=sys.stderr)
        return 2
    if not argv:
        PAGE.write_text(rules_table(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != rules_table():
        print(f"docs: docs/{PAGE.name} is stale; run python -m mbsolve.constraints.docs.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
