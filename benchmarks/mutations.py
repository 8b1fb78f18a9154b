"""Drop and negate every rule, and see whether its examples notice: a rule that nothing notices is not tested.

Run: ``python benchmarks/mutations.py`` prints the table; the exit code is 1 when some mutation is not noticed.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from mbsolve.constraints.examples import bases, breaks, build_job, build_plan
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.vocabulary import Plan


class Example(NamedTuple):
    """A job and a plan with the laws that they break, by rule object."""

    job: Job
    plan: Plan
    broken: frozenset[int]


class Mutation(NamedTuple):
    """What became of one rule: whether some example notices that it is gone, and that it is turned round."""

    id: str
    place: int
    dropped: bool
    negated: bool


def _breaks(rule: Rule, job: Job, plan: Plan) -> bool:
    if not rule.holds_for(job.target):
        return False
    values = plan.values()
    sizes = derive(job, values) if values["mbs"] > 0 else {"dp": 1, "edp": 1, "microbatches": 1}
    try:
        return not rule.holds(job.facts, {**values, **sizes})
    except PlacementError:
        return True


def examples() -> list[Example]:
    """Every legal example, and every one that breaks a law, with what it breaks."""
    pairs = [(build_job(name, {}), build_plan(name, {})) for name in bases()]
    pairs += [
        (build_job(r["base"], r.get("job", {})), build_plan(r["base"], r.get("plan", {}))) for r in breaks()
    ]
    hard = [i for i, rule in enumerate(RULES) if rule.kind == "hard"]
    return [Example(j, p, frozenset(i for i in hard if _breaks(RULES[i], j, p))) for j, p in pairs]


def mutations() -> list[Mutation]:
    """Every hard rule, dropped and negated.

    What an example shows are the ids that it breaks: of a family under one id, a member is noticed only where no other
    member speaks.
    """
    found = examples()
    out = []
    for i, rule in enumerate(RULES):
        if rule.kind != "hard":
            continue
        dropped = any(
            i in e.broken and all(RULES[k].id != rule.id for k in e.broken if k != i) for e in found
        )
        negated = any(
            i not in e.broken
            and rule.holds_for(e.job.target)
            and all(RULES[k].id != rule.id for k in e.broken)
            for e in found
        )
        out.append(Mutation(rule.id, i, dropped, negated))
    return out


def main() -> int:
    """Print the table and count what was not noticed."""
    table = mutations()
    survived = [m for m in table if not (m.dropped and m.negated)]
    for m in table:
        words = [w for w, seen in (("drop", m.dropped), ("negation", m.negated)) if not seen]
        print(f"{m.id:44} {'noticed' if not words else 'NOT NOTICED: ' + ', '.join(words)}")
    print(f"{len(table)} rules, {len(survived)} with a mutation that no example notices")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
