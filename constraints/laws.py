"""Which laws a plan breaks: every rule of the job's target, asked once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Kind, Rule, Source
from mbsolve.constraints.rules.catalogue import RULES
from mbsolve.constraints.rules.repair import rule_reads
from mbsolve.constraints.rules.upstream import CONFIG, megatron
from mbsolve.constraints.vocabulary import GRAPH_SCOPES, OFFLOAD_MODULES, RECOMPUTE_MODULES, Plan
from mbsolve.models.partial import UnknownDimensionError

__all__ = ["SPELLINGS", "broken", "broken_laws", "laws", "misspelt"]

# Lists of names become one switch for each known name, so an unknown name is seen here or never.
SPELLINGS: dict[str, tuple[str, tuple[str, ...], Source]] = {
    "recompute_modules": ("recompute-modules-values", RECOMPUTE_MODULES, megatron(f"{CONFIG}:1960")),
    "fine_grained_offload_modules": (
        "fg-offload-modules-values",
        OFFLOAD_MODULES,
        megatron(f"{CONFIG}:2145"),
    ),
    "cuda_graph_scope": (
        "cg-modules-values",
        GRAPH_SCOPES,
        megatron("megatron/core/transformer/cuda_graph_config.py:57"),
    ),
}


def laws(job: Job, kind: Kind) -> Iterator[Rule]:
    """Yield the rules of a kind that hold for the job's target, in the order of the catalogue."""
    return (rule for rule in RULES if rule.kind == kind and rule.holds_for(job.target))


def broken(
    job: Job, plan: Plan, kind: Kind = "hard", unknown: Collection[str] = ()
) -> Iterator[tuple[Rule, str | None]]:
    """Yield broken rules with their reason, undecided ones with None; of a family that shares an id, each member."""
    values = plan.values()
    if values["mbs"] > 0:
        values |= derive(job, values)
    else:
        values |= {"dp": 1, "edp": 1, "microbatches": 1}
    for rule in laws(job, kind):
        if unknown and rule_reads(rule) & set(unknown):
            yield rule, None
            continue
        try:
            if not rule.holds(job.facts, values):
                yield rule, _reason(rule, job, values)
        except PlacementError as error:
            yield rule, str(error)
        except UnknownDimensionError:
            yield rule, None


def _reason(rule: Rule, job: Job, values: Mapping[str, Any]) -> str:
    """Why, with numbers; in general words where a number is not known."""
    try:
        return rule.clause(job.facts, values)
    except UnknownDimensionError:
        return rule.text.rstrip(".")


def misspelt(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each list of names with unknown ones: its field, the id of its law, the unknown names."""
    for field, (id, known, _) in SPELLINGS.items():
        names: tuple[str, ...] = getattr(plan, field)
        wrong = tuple(name for name in names if name not in known)
        if wrong:
            yield field, id, wrong


def broken_laws(job: Job, plan: Plan, *, unknown: Collection[str] = ()) -> tuple[str, ...]:
    """Return the ids of the laws that the plan breaks, without reasons and repairs."""
    ids = [id for _, id, _ in misspelt(plan)]
    ids += [rule.id for rule, because in broken(job, plan, "hard", unknown) if because is not None]
    return tuple(dict.fromkeys(ids))
