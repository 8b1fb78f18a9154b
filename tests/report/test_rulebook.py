"""`mbsolve rules`: every rule in full."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from mbsolve.constraints.budgets import BUDGETS, Budget
from mbsolve.constraints.check import SPELLINGS, check
from mbsolve.constraints.coverage import CLASSES, coverage
from mbsolve.constraints.examples import breaks, build_job, build_plan, overruns
from mbsolve.constraints.lighter import MEASURES
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.report.rulebook import UnknownRuleError, listing, one

IDS = list(dict.fromkeys([*(r.id for r in RULES), *(n.id for n in NORMALISATIONS)]))


def test_the_listing_has_every_rule_once() -> None:
    assert [line.split()[0] for line in listing()] == [*IDS, *(budget.id for budget in BUDGETS)]


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


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.id)
def test_a_budget_in_full(budget: Budget) -> None:
    """What is printed is what is judged: the example exceeds this budget alone, and is mended by what is named."""
    text = "\n".join(one(budget.id))
    assert text.startswith(f"{budget.id} (hard)\n  {budget.text}\n")
    for part in ("  message: ", "  reads: ", "  source: ", "  repairs: ", "  broken by: ", "  def "):
        assert part in text
    for fn in (budget.needs, budget.limit):
        assert textwrap.indent(inspect.getsource(fn), "  ").rstrip() in text
    (row,) = [row for row in overruns() if row["id"] == budget.id]
    base = check(build_job(row["base"], {}), build_plan(row["base"], {}))
    assert base.verdict == "feasible"
    job, plan = build_job(row["base"], row.get("job", {})), build_plan(row["base"], row["plan"])
    answer = check(job, plan)
    assert [violation.rule for violation in answer.violations] == [budget.id]
    assert answer.evaluation is not None
    assert answer.violations[0].because == budget.clause(job, answer.evaluation)
    assert all(set(repair.set) <= set(MEASURES) for repair in answer.violations[0].repairs)


def test_an_entry_that_is_no_rule_says_what_became_of_it() -> None:
    laws = {*IDS, *(id for id, _, _ in SPELLINGS.values())}
    others = [entry for entry in coverage() if entry.id not in laws]
    assert {entry.how for entry in others} == {"held", "out_of_scope"}
    for entry in others:
        text = "\n".join(one(entry.id))
        assert CLASSES[entry.how] in text and entry.why in text


def test_an_id_of_nothing_is_refused() -> None:
    with pytest.raises(UnknownRuleError, match="did you mean 'hbm-capacity'"):
        one("hbm-capacty")
