"""What a user fixes or forbids, in the words of a plan, narrowed onto the domains."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mbsolve.constraints.domains import Domains
from mbsolve.constraints.placement import expand_layout
from mbsolve.constraints.vocabulary import (
    DISPATCHERS,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
    SPLIT_FIELDS,
    Plan,
    Split,
)

_LISTS = {
    "recompute_modules": ("recompute", RECOMPUTE_MODULES),
    "fine_grained_offload_modules": ("offload", OFFLOAD_MODULES),
    "cuda_graph_scope": ("graph", GRAPH_SCOPES),
}
_COUNTED = ("embedding_in_split", "loss_in_split")
_NONE = {"recompute_granularity": "none", "recompute_method": "none", "recompute_num_layers": 0}
_CHOICES = {
    "dispatcher": DISPATCHERS,
    "cuda_graph_impl": GRAPH_IMPLS,
    "recompute_granularity": ("none", "selective", "full"),
    "recompute_method": ("none", "uniform", "block"),
}
_SIZES = ("tp", "cp", "pp", "vpp", "ep", "etp", "mbs")
DERIVED_SIZES = ("dp", "edp")


class DemandError(ValueError):
    """A demand that names no decision, or a value that the decision cannot take."""


@dataclass(frozen=True)
class Demands:
    """What the user asked for, as restrictions of domains.

    ``derived`` holds demands on sizes that follow from others (``dp``, ``edp``); ``fixed`` names the decisions
    that were given a value; ``open_end`` is the end of the split that was given none while the other was.
    """

    domains: Domains
    split: Split | None = None
    no_layout: bool = False
    derived: dict[str, int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    open_end: str | None = None

    def splits(self, layers: int) -> tuple[Split, ...]:
        """The splits that may be meant, of so many layers: none where any may; an open end takes every size."""
        if self.split is None:
            return ()
        if self.open_end is None:
            return (self.split,)
        sizes = range(1, layers)
        return (self.split, *(self.split.model_copy(update={self.open_end: n}) for n in sizes))


def narrow(dom: Domains, fixed: Mapping[str, Any] | None, forbid: Sequence[str] = ()) -> Demands:
    """Apply fixed values and forbidden ones.

    Parameters
    ----------
    fixed : field of a plan (or ``dp``, ``edp``) -> value; list fields take a list or a comma-separated text.
    forbid : ``NAME=VALUE``, or a bare value that belongs to one decision only (``deepep``, ``full_iteration``),
        or the name of a module or feature (``moe_act``, ``ep_overlap``).

    Raises
    ------
    DemandError
        with one sentence naming the field, the value and what is allowed.
    """
    out = dict(dom)
    split: dict[str, Any] = {}
    derived: dict[str, int] = {}
    fixed = fixed or {}
    for name, value in fixed.items():
        _fix(name, value, out, split, derived)
    if "recompute_granularity" in fixed:
        # A list of modules means selective recompute only where nothing else is asked for.
        _fix("recompute_granularity", fixed["recompute_granularity"], out, split, derived)
    for text in forbid:
        _forbid(text, dom, out)
        empty = next((name for name, values in out.items() if dom[name] and not values), None)
        if empty is not None:
            raise DemandError(f"forbid {text!r}: with what else is asked, {empty} has no value left")
    no_layout = "pipeline_layout" in split and split["pipeline_layout"] is None
    chosen = {SPLIT_FIELDS[k]: v for k, v in split.items() if v is not None and v is not False}
    fixed_names = frozenset(n for n, values in out.items() if values != dom[n] and len(values) == 1)
    open_end = None
    if len(chosen.keys() & {"first", "last"}) == 1 and "layout" not in chosen:
        other = "last" if "first" in chosen else "first"
        open_end = None if f"{other}_stage_layers" in split else other
    return Demands(out, Split(**chosen) if chosen else None, no_layout, derived, fixed_names, open_end)


def _fix(name: str, value: Any, out: Domains, split: dict[str, Any], derived: dict[str, int]) -> None:
    known = [*Plan.model_fields, *DERIVED_SIZES]
    if name not in known:
        raise DemandError(
            f"{name!r} is no decision of a plan{_meant(name, known)}; known: {', '.join(known)}"
        )
    if name in _LISTS:
        prefix, modules = _LISTS[name]
        chosen = _as_list(name, value, modules)
        out |= {f"{prefix}_{m}": (m in chosen,) for m in modules}
        if name == "recompute_modules" and chosen:
            out["recompute_granularity"] = ("selective",)
    elif name in SPLIT_FIELDS:
        split[name] = _split_value(name, value)
    elif name in DERIVED_SIZES:
        derived[name] = _whole(name, value, 1)
    else:
        out[name] = (_value(name, value),)


def _value(name: str, value: Any) -> Any:
    if value is None and name in _NONE:
        return _NONE[name]
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise DemandError(
                f"{name} cannot be {value!r}{_meant(str(value), _CHOICES[name])}; allowed: {', '.join(_CHOICES[name])}"
            )
        return value
    if name == "optimizer_offload_fraction":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DemandError(
                f"optimizer_offload_fraction cannot be {value!r}; allowed: a number from 0 to 1"
            )
        return float(value)
    if Plan.model_fields[name].annotation is bool:
        if value in (0, 1):
            return bool(value)
        raise DemandError(f"{name} cannot be {value!r}; allowed: true, false")
    return _whole(name, value, 1 if name in _SIZES else 0)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DemandError(f"{name} cannot be {value!r}; allowed: a whole number of at least {least}")
    return value


def _split_value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _COUNTED:
        return _value(name, value)
    if name != "pipeline_layout":
        return _whole(name, value, 1)
    if not isinstance(value, str) or not set("".join(expand_layout(value))) <= set("EtmL"):
        raise DemandError(
            f"pipeline_layout cannot be {value!r}; allowed: a text over E t m L | with x*n and (..)*n repeats"
        )
    return value


def _as_list(name: str, value: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    if value is None:
        return ()
    items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else list(value)
    for item in items:
        if item not in allowed:
            raise DemandError(
                f"{name} cannot hold {item!r}{_meant(str(item), allowed)}; allowed: {', '.join(allowed)}"
            )
    return tuple(items)


def pertinent(dom: Domains, forbid: Sequence[str]) -> tuple[str, ...]:
    """Return the forbidden values that some decision can take; the others never are, and need no forbidding."""
    out = []
    for text in forbid:
        try:
            _forbid(text, dom, dict(dom))
        except DemandError:
            continue
        out.append(text)
    return tuple(out)


def forbidden(dom: Domains, text: str) -> Domains:
    """The values that a text of ``forbid`` takes out of the domains, by decision.

    Raises
    ------
    DemandError
        as `narrow`, but not where nothing is left.
    """
    left = dict(dom)
    _forbid(text, dom, left)
    return {n: tuple(v for v in dom[n] if v not in left[n]) for n in dom if left[n] != dom[n]}


def _forbid(text: str, dom: Domains, out: Domains) -> None:
    """Take values out of ``out``; whether a decision can have them at all, ``dom`` says."""
    name, _, raw = text.partition("=")
    name = name.strip()
    if raw:
        prefix = _LISTS[name][0] if name in _LISTS else None
        key = f"{prefix}_{raw.strip()}" if prefix else name
        if key not in dom:
            raise DemandError(f"forbid {text!r}: {name!r} is no decision{_meant(name, dom)}")
        gone = (
            [v for v in dom[key] if prefix is None and str(v).lower() == raw.strip().lower()]
            if not prefix
            else [True]
        )
        if not gone:
            raise DemandError(
                f"forbid {text!r}: {name} never is {raw.strip()!r}; it may be {', '.join(map(str, dom[key][:12]))}"
            )
        out[key] = tuple(v for v in out[key] if v not in gone)
        return
    places = [
        d for d, values in dom.items() if name in [v for v in values if isinstance(v, str)] and name != "none"
    ]
    flags = [d for d in dom if d == name or d.endswith(f"_{name}")]
    flags = [d for d in flags if set(dom[d]) <= {False, True}]
    zeros = {
        "optimizer_offload": "optimizer_offload_fraction",
        "optimizer_cpu_offload": "optimizer_offload_fraction",
        "activation_offload": "activation_offload_layers",
        "cpu_offloading": "activation_offload_layers",
    }
    if name in zeros:
        out[zeros[name]] = tuple(v for v in out[zeros[name]] if not v)
    elif places:
        for d in places:
            out[d] = tuple(v for v in out[d] if v != name)
    elif flags:
        for d in flags:
            out[d] = tuple(v for v in out[d] if not v)
    else:
        words = [
            *(v for d in _CHOICES for v in _CHOICES[d] if v != "none"),
            *out,
            *RECOMPUTE_MODULES,
            *OFFLOAD_MODULES,
        ]
        if name in words:
            raise DemandError(f"forbid {text!r}: no decision of this job can take that value")
        raise DemandError(f"forbid {text!r}: no decision takes that value{_meant(name, words)}")


def _meant(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
