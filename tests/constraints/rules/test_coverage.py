"""Every entry of the upstream catalogue is accounted for, and every rule here is one of them or our own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from mbsolve.constraints.check import SPELLINGS
from mbsolve.constraints.coverage import CLASSES, coverage, differences
from mbsolve.constraints.rules.catalogue import OURS, RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS

UPSTREAM = json.loads((Path(__file__).parent / "catalogue_ids.json").read_text())


def of(how: str) -> set[str]:
    return {entry.id for entry in coverage() if entry.how == how}


def test_every_entry_once() -> None:
    count = Counter(entry.id for entry in coverage())
    assert set(count) == set(UPSTREAM)
    assert set(count.values()) == {1}


def test_what_is_said_to_be_here_is_here_and_nothing_more() -> None:
    laws = {r.id for r in RULES if r.kind == "hard"} | {id for id, _, _ in SPELLINGS.values()}
    assert of("rule") == laws - set(OURS)
    assert of("warning") == {r.id for r in RULES if r.kind == "warning"} - set(OURS)
    assert of("normalised") == {n.id for n in NORMALISATIONS} - set(OURS)


def test_differences_are_of_known_ids_and_cover_every_bound() -> None:
    ids = {rule.id for rule in RULES} | {change.id for change in NORMALISATIONS}
    assert set(differences()) <= set(UPSTREAM) | ids
    assert {rule.id for rule in RULES if rule.since or rule.until} <= set(differences())


def test_the_rest_has_a_reason() -> None:
    ids = {r.id for r in RULES}
    for entry in coverage():
        assert entry.how in CLASSES
        assert bool(entry.why) == (entry.how not in ("rule", "warning")), entry
        for word in entry.why.replace(",", " ").replace(":", " ").replace("(", " ").replace(")", " ").split():
            if word.count("-") > 1:
                assert word in ids | set(UPSTREAM), entry
