"""`mbsolve rules`: every rule in full."""

from __future__ import annotations

import pytest

from mbsolve.constraints.check import SPELLINGS
from mbsolve.constraints.examples import breaks
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.report.rulebook import UnknownRuleError, listing, one

IDS = list(dict.fromkeys([*(r.id for r in RULES), *(n.id for n in NORMALISATIONS)]))


def test_the_listing_has_every_rule_once() -> None:
    assert [line.split()[0] for line in listing()] == IDS


@pytest.mark.parametrize("id", [*IDS, *(id for id, _, _ in SPELLINGS.values())])
def test_one_rule_in_full(id: str) -> None:
    lines = one(id)
    text = "\n".join(lines)
    assert lines[0].startswith(f"{id} (")
    for part in ("  targets: ", "  source: ", "  reads: "):
        assert sum(line.startswith(part) for line in lines) >= 1
    rows = [row for row in breaks() if row["id"] == id]
    assert sum(line.startswith("  broken by: ") for line in lines) == len(rows)
    assert ("(hard)" in lines[0]) == bool(rows) == ("  repairs: " in text)
    if id in IDS:
        assert "  message: " in text and "  def " in text and "@rule" not in text


def test_a_rule_says_since_when() -> None:
    assert "  since: mcore 0.16" in one("query-groups-vs-tp")


def test_a_spelling_that_is_close_is_proposed() -> None:
    with pytest.raises(UnknownRuleError, match="cg-modules-values"):
        one("cg-module-value")
