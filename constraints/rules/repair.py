"""Changes of one decision, or of one size or setting of the job, after which a broken rule would hold."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import lcm
from typing import Any, Final

from mbsolve.constraints.changes import applied, now
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.layout import virtual_stage_texts
from mbsolve.constraints.rules.pipeline import (
    first_stage_splits,
    last_stage_splits,
    middle_exists,
    middle_splits,
)
from mbsolve.constraints.splits import completed_layout, splits
from mbsolve.constraints.vocabulary import (
    DISPATCHERS,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    SPLIT_FIELDS,
    Plan,
    Settings,
    Split,
)
from mbsolve.models.partial import UnknownDimensionError

__all__ = ["moves", "repair_fields", "replaces", "rule_reads", "single_changes"]

# What parallel degrees are tried for a model of which too little is known.
SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64)
WORDS: Final[dict[str, tuple[str, ...]]] = {"dispatcher": DISPATCHERS, "cuda_graph_impl": GRAPH_IMPLS}
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
RECOMPUTE: Final[tuple[dict[str, Any], ...]] = (
    {
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": (),
    },
    {
        "recompute_granularity": "selective",
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": ("core_attn",),
    },
    {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "recompute_modules": (),
    },
)
"""The usual ways of recompute: their fields only make sense together."""
INSTEAD: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "activation_offload_layers": (
        {"activation_offload_layers": 0, "optimizer_offload_fraction": 1.0},
        {
            "activation_offload_layers": 0,
            "recompute_granularity": None,
            "recompute_method": None,
            "recompute_num_layers": None,
            "recompute_modules": (),
            "fine_grained_offload_modules": ("core_attn",),
        },
    )
}
"""What does the service of a decision that a rule may forbid."""
TOGETHER: Final[tuple[dict[str, Any], ...]] = ({"dispatcher": "hybridep", "op_fuser": True},)
"""A decision and a setting that some law asks for at once."""
SIZE_FIELDS: Final[tuple[str, ...]] = ("gpus", "gbs", "seq_len")
BLOCKS: Final = (1, 16, 32, 128)
"""Multiples of tokens that number formats ask for."""
OTHERS: Final[dict[str, tuple[Any, ...]]] = {
    "make_vocab_size_divisible_by": (128,),
    "expert_rank_capacity": (None, 1.5),
}
"""Values of settings that are numbers: the stack's default, and that of its recipes."""


def moves(rule: Rule, job: Job, plan: Plan, unknown: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield changes after which the rule alone would hold, as fields of the plan, the job or its settings.

    Parameters
    ----------
    unknown : fields that are not known, hence not changed.
    """
    seen: list[dict[str, Any]] = []
    for fields in _candidates(rule, job, plan):
        if not fields or fields in seen or set(fields) & set(unknown):
            continue
        seen.append(fields)
        changed, altered = applied(job, plan, fields)
        if _holds(rule, changed, altered.values()):
            yield fields


def _holds(rule: Rule, job: Job, values: Mapping[str, Any]) -> bool:
    try:
        return values["mbs"] > 0 and rule.holds(job.facts, {**values, **derive(job, values)})
    except (PlacementError, UnknownDimensionError):
        return False


def _candidates(rule: Rule, job: Job, plan: Plan) -> Iterator[dict[str, Any]]:
    names = _decisions(rule)
    yield from single_changes(names, job, plan)
    for fields in TOGETHER:
        if set(fields) <= {*names, *_names(rule)}:
            yield _differing(job, plan, fields)
    yield from _of_the_job(rule, job, plan.values())


def single_changes(names: Iterable[str], job: Job, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield every change of one of these decisions to another value of its domain, legal or not, as fields of the plan.

    Recompute, whose fields only make sense together, is changed to one of its usual ways.
    """
    values, names = plan.values(), tuple(names)
    for name in names:
        # Another granularity comes with fields of its own, below.
        others = () if name == "recompute_granularity" else _values(name, job, plan, values)
        for value in others:
            if value != values[name]:
                yield _fields(name, values, {**values, name: value})
        for fields in INSTEAD.get(name, ()):
            # What the plan does already is no substitute.
            if not any(value and getattr(plan, other) for other, value in fields.items()):
                yield _differing(job, plan, fields)
    if any(name.startswith("recompute_") for name in names):
        for fields in RECOMPUTE:
            yield _differing(job, plan, fields)


def replaces(fields: Mapping[str, Any]) -> bool:
    """Return whether a change puts something in the place of what it takes away."""
    return any(
        all(fields.get(name) == value for name, value in other.items() if value)
        for others in INSTEAD.values()
        for other in others
    )


def _differing(job: Job, plan: Plan, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if now(job, plan, name) != value}


def _decisions(rule: Rule) -> list[str]:
    names = [base for name in rule.scope for base in BEHIND.get(name, (name,))]
    return list(dict.fromkeys(names))


def _values(name: str, job: Job, plan: Plan, values: Mapping[str, Any]) -> Sequence[Any]:
    try:
        return _split_candidates(job, values) if name == "split" else domains(job)[name]
    except UnknownDimensionError:
        # The domains follow from dimensions that this model does not state.
        present = values[name]
        if isinstance(present, bool):
            return (False, True)
        return SIZES if isinstance(present, int) else WORDS.get(name, ())


def _split_candidates(job: Job, values: Mapping[str, Any]) -> list[Split]:
    """Return splits that place every layer: even, sized ends, the balanced ones of the solver, a mended layout."""
    pp, vpp, layers = values["pp"], values["vpp"], job.model.num_layers
    present: Split = values["split"]
    ends = [Split(last=n) for n in range(1, layers)] + [Split(first=n) for n in range(1, layers)]
    if present.first and present.last:
        # Either end as it is, the other one fitted to it.
        ends += [Split(first=present.first, last=n) for n in range(1, layers)]
        ends += [Split(first=n, last=present.last) for n in range(1, layers)]
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
    if present.layout is not None:
        stages = virtual_stage_texts(present.layout)
        legal.append(Split(layout=completed_layout(stages, layers, job.model.mtp_num_layers)))
        legal.append(Split(layout=present.layout))
    return list(dict.fromkeys([*legal, *splits(job.model, pp, vpp)]))


def _list_field(name: str) -> tuple[str, str, tuple[str, ...]] | None:
    """The prefix, the field and the names of the list that a switch is a member of."""
    for prefix, (field, members) in LIST_FIELDS.items():
        if name.startswith(prefix) and name.removeprefix(prefix) in members:
            return prefix, field, members
    return None


def _fields(name: str, values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that spell a changed decision."""
    value = changed[name]
    if name == "split":
        old, new = values[name].model_dump(), value.model_dump()
        return {name: new[part] for name, part in SPLIT_FIELDS.items() if new[part] != old[part]}
    listed = _list_field(name)
    if listed:
        prefix, field, members = listed
        return {field: tuple(member for member in members if changed[f"{prefix}{member}"])}
    unset = name.startswith("recompute_") and value in ("none", 0)
    return {name: None if unset else value}


def _of_the_job(rule: Rule, job: Job, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield sizes, formats and settings of the job itself."""
    names = _names(rule)
    tp, cp, pp = values["tp"], values["cp"], values["pp"]
    reads = rule_reads(rule)
    steps: dict[str, tuple[int, ...]] = {
        "gpus": (lcm(tp * cp * pp, values["etp"] * values["ep"] * pp),),
        "gbs": (max(1, values["mbs"]) * derive(job, values)["dp"] * (pp if values["vpp"] > 1 else 1),),
        "seq_len": tuple(lcm(2 * cp, cp * tp * block) for block in BLOCKS),
    }
    for field in SIZE_FIELDS:
        if field not in reads or ("split" in rule.scope):
            continue
        present = getattr(job, field)
        sizes = [
            size for step in steps[field] for size in (present // step * step, -(-present // step) * step)
        ]
        if field == "seq_len" and "learned_positions" in names and job.model.learned_positions is not None:
            sizes.append(job.model.learned_positions)
        yield from ({field: size} for size in dict.fromkeys(sizes) if size > 0 and size != present)
    if "precision" in names:
        yield from ({"precision": word} for word in PRECISIONS if word != job.precision)
    for field in Settings.model_fields:
        if field in names:
            present = getattr(job.settings, field)
            yield from ({field: value} for value in _setting_values(field) if value != present)


def _setting_values(field: str) -> tuple[Any, ...]:
    """The values of a setting that a rule may be mended with."""
    kind = Settings.model_fields[field].annotation
    if kind is bool:
        return (False, True)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)
    return OTHERS.get(field, ())


def repair_fields(rule: Rule) -> tuple[str, ...]:
    """Return the fields, of the plan or of the job, that `moves` tries for a rule."""
    out: list[str] = []
    names = _decisions(rule)
    for name in names:
        listed = _list_field(name)
        out += SPLIT_FIELDS if name == "split" else [listed[1] if listed else name]
        out += [field for fields in INSTEAD.get(name, ()) for field in fields]
    if any(name.startswith("recompute_") for name in names):
        out += RECOMPUTE[0]
    if "split" not in rule.scope:
        out += [size for size in SIZE_FIELDS if size in rule_reads(rule)]
    out += [field for field in ("precision", *Settings.model_fields) if field in _names(rule)]
    return tuple(dict.fromkeys(out))


@cache
def _names(rule: Rule) -> frozenset[str]:
    """Attributes that a rule looks up, if it looks at the job."""
    law = getattr(rule.fn, "__wrapped__", rule.fn)
    return frozenset(law.__code__.co_names) if "job" in rule.facts else frozenset()


@cache
def rule_reads(rule: Rule) -> frozenset[str]:
    """Return the decisions behind a rule and the sizes of the job (gpus, gbs, seq_len) that it reads."""
    reads = {*_decisions(rule), *(set(SIZE_FIELDS) & _names(rule))}
    if {"dp", "edp", "microbatches"} & set(rule.scope) or "topology" in rule.facts:
        reads.add("gpus")
    if "microbatches" in rule.scope:
        reads.add("gbs")
    return frozenset(reads)
