"""What to change so that a broken rule would hold: one decision, or the size of the job, at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm
from typing import Any, Final

from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.pipeline import (
    first_stage_splits,
    last_stage_splits,
    middle_exists,
    middle_splits,
)
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import GRAPH_SCOPES, OFFLOAD_MODULES, RECOMPUTE_MODULES, Plan, Split
from mbsolve.models.partial import UnknownDimensionError

PER_DECISION: Final = 3
# What parallel degrees are tried for a model of which too little is known.
SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64)
BEHIND: Final[dict[str, tuple[str, ...]]] = {
    "dp": ("tp", "cp", "pp"),
    "edp": ("etp", "ep", "pp"),
    "microbatches": ("mbs", "tp", "cp", "pp"),
}
"""Decisions behind each derived size."""
LIST_FIELDS: Final = {
    "recompute_": ("recompute_modules", RECOMPUTE_MODULES),
    "offload_": ("fine_grained_offload_modules", OFFLOAD_MODULES),
    "graph_": ("cuda_graph_scope", GRAPH_SCOPES),
}
SPLIT_FIELDS: Final = {
    "first": "first_stage_layers",
    "last": "last_stage_layers",
    "layout": "pipeline_layout",
    "embedding": "embedding_in_split",
    "loss": "loss_in_split",
}


def repairs(rule: Rule, job: Job, plan: Plan) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield changes after which the rule alone would hold, as fields of the plan or the job and a text.

    At most three values of each decision in the scope, nearest to the present one first.
    """
    values = plan.values()
    for name in _decisions(rule):
        found = 0
        for value in _nearest(name, _candidates(name, job, values), values, job):
            changed = {**values, name: value}
            if not _holds(rule, job, changed):
                continue
            fields = _fields(name, values, changed)
            yield fields, _text(fields)
            found += 1
            if found == PER_DECISION:
                break
    yield from _job_repairs(rule, job, values)


def _holds(rule: Rule, job: Job, values: Mapping[str, Any]) -> bool:
    try:
        return rule.holds(job.facts, {**values, **derive(job, values)})
    except (PlacementError, UnknownDimensionError):
        return False


def _decisions(rule: Rule) -> list[str]:
    names = [base for name in rule.scope for base in BEHIND.get(name, (name,))]
    return list(dict.fromkeys(names))


def _candidates(name: str, job: Job, values: Mapping[str, Any]) -> Sequence[Any]:
    try:
        return _split_candidates(job, values) if name == "split" else domains(job)[name]
    except UnknownDimensionError:
        # The domains follow from dimensions that this model does not state.
        now = values[name]
        return SIZES if isinstance(now, int) and not isinstance(now, bool) else ()


def _split_candidates(job: Job, values: Mapping[str, Any]) -> list[Split]:
    """Return splits that place every layer: even, one sized end, and the balanced ones of the solver."""
    pp, vpp, layers = values["pp"], values["vpp"], job.model.num_layers
    ends = [Split(last=n) for n in range(1, layers)] + [Split(first=n) for n in range(1, layers)]
    legal = [Split()] if layers % (pp * vpp) == 0 else []
    legal += [
        split
        for split in (Split(embedding=True, loss=True), Split(embedding=True), Split(loss=True))
        if pp > 1 and job.model.layer_pattern is None and (layers + split.counted) % (pp * vpp) == 0
    ]
    for split in ends:
        case = {"pp": pp, "vpp": vpp, "split": split}
        laws = (first_stage_splits, last_stage_splits, middle_exists, middle_splits)
        if all(law.holds(job.facts, case) for law in laws):
            legal.append(split)
    return list(dict.fromkeys([*legal, *splits(job.model, pp, vpp)]))


def _nearest(name: str, candidates: Sequence[Any], values: Mapping[str, Any], job: Job) -> list[Any]:
    now = values[name]
    others = [value for value in candidates if value != now]
    if name == "split":
        share = job.model.num_layers / values["pp"]
        return sorted(others, key=lambda split: _split_distance(now, split, share))
    if isinstance(now, (int, float)) and not isinstance(now, bool):
        return sorted(others, key=lambda value: (abs(value - now), value))
    return others


def _split_distance(now: Split, then: Split, share: float) -> tuple[int, int, float]:
    """Order splits: by kind (which of first, last, layout are given), fields changed, layers moved at the ends."""
    pairs = ((now.first, then.first), (now.last, then.last))
    other = [(a is None) != (b is None) for a, b in (*pairs, (now.layout, then.layout))]
    other.append((now.embedding, now.loss) != (then.embedding, then.loss))
    changed = sum(a != b for a, b in pairs)
    moved = sum(abs((a or share) - (b or share)) for a, b in pairs)
    return 4 * other[2] + any(other), changed, moved


def repair_fields(rule: Rule) -> tuple[str, ...]:
    """Return the fields, of the plan or of the job, that `repairs` tries for a rule."""
    out: list[str] = []
    for name in _decisions(rule):
        if name == "split":
            out += SPLIT_FIELDS.values()
            continue
        listed = [
            field
            for prefix, (field, members) in LIST_FIELDS.items()
            if name.startswith(prefix) and name.removeprefix(prefix) in members
        ]
        out += listed or [name]
    if "split" not in rule.scope:
        out += [size for size in ("gpus", "gbs") if size in rule_reads(rule)]
    return tuple(dict.fromkeys(out))


def _fields(name: str, values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that spell a changed decision."""
    value = changed[name]
    if name == "split":
        old, new = values[name].model_dump(), value.model_dump()
        return {SPLIT_FIELDS[part]: new[part] for part in SPLIT_FIELDS if new[part] != old[part]}
    for prefix, (field, members) in LIST_FIELDS.items():
        if name.startswith(prefix) and name.removeprefix(prefix) in members:
            return {field: tuple(member for member in members if changed[f"{prefix}{member}"])}
    unset = name.startswith("recompute_") and value in ("none", 0)
    return {name: None if unset else value}


def _text(fields: Mapping[str, Any]) -> str:
    parts = [f"{field} to {_word(value)}" for field, value in fields.items()]
    return f"Set {' and '.join(parts)}."


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(v) for v in value) + "]"
    return "none" if value is None else str(value)


def _job_repairs(rule: Rule, job: Job, values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the nearest sizes of the job itself for which the rule would hold."""
    steps = {
        "gpus": lcm(values["tp"] * values["cp"] * values["pp"], values["etp"] * values["ep"] * values["pp"]),
        "gbs": max(1, values["mbs"]) * derive(job, values)["dp"] * (values["pp"] if values["vpp"] > 1 else 1),
    }
    for field in ("gpus", "gbs"):
        if field not in rule_reads(rule) or "split" in rule.scope:
            continue
        now, step = getattr(job, field), steps[field]
        below, above = now // step * step, -(-now // step) * step
        for size in dict.fromkeys((below, above)):
            if size < 1 or size == now:
                continue
            changed = job.model_copy(update={field: size})
            if _holds(rule, changed, values):
                yield {field: size}, f"Set {field} to {size}."


def rule_reads(rule: Rule) -> frozenset[str]:
    """Return the decisions behind a rule and the sizes of the job (gpus, gbs, seq_len) that it reads."""
    law = getattr(rule.fn, "__wrapped__", rule.fn)
    reads = set(_decisions(rule))
    if "job" in rule.facts:
        reads |= {"gpus", "gbs", "seq_len"} & set(law.__code__.co_names)
    if {"dp", "edp", "microbatches"} & set(rule.scope) or "topology" in rule.facts:
        reads.add("gpus")
    if "microbatches" in rule.scope:
        reads.add("gbs")
    return frozenset(reads)
