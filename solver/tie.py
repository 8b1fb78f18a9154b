"""Which of equally good plans is named: the order among plans with the same step and the same peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mbsolve.constraints.vocabulary import DECISIONS, FEATURES, SHAPE

_PLAIN: Mapping[str, Any] = {
    "sequence_parallel": None,
    "tp": None,
    "cp": None,
    "pp": None,
    "vpp": None,
    "ep": None,
    "mbs": None,
    "etp": 1,
    "recompute_method": "none",
    "recompute_num_layers": None,
    "activation_offload_layers": 0,
    "ep_overlap": False,
    "cuda_graph_impl": "none",
    "recompute_granularity": None,
    "dispatcher": "alltoall",
    "delay_wgrad": False,
    "precision_aware_optimizer": False,
    "optimizer_offload_fraction": 0.0,
}

# Plans that agree on all of these are one choice: the others are tuning.
KEY_SHAPE = ("tp", "cp", "pp", "ep", "etp", "mbs", "activation_offload_layers")
KEY_FEATURES = ("recompute_granularity", "dispatcher", "optimizer_offload_fraction")


def unusual(name: str, value: Any) -> int:
    """1 where a decision departs from the plainest configuration, else 0."""
    if name == "split":
        return int(value.layout is not None) + int(value.first is not None or value.last is not None)
    plain = _PLAIN.get(name, False)
    return 0 if plain is None else int(value != plain)


def count_unusual(values: Mapping[str, Any]) -> int:
    """Number of unusual features of a plan."""
    return sum(unusual(name, values[name]) for name in DECISIONS)


def key_value(name: str, value: Any) -> Any:
    """What a key decision says: offloads count as on or off, the rest by value."""
    if name in ("optimizer_offload_fraction", "activation_offload_layers"):
        return value > 0
    return value


def key_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The deciding part of a plan; plans of one outcome differ in it."""
    return tuple(key_value(n, values[n]) for n in (*KEY_SHAPE, *KEY_FEATURES))


def shape_key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part of `key_of` that the shape decides."""
    return tuple(key_value(n, values[n]) for n in KEY_SHAPE)


def shape_order(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A total order of shapes that depends on nothing but their decisions."""
    return tuple(
        f"{values[n]:06d}"
        if isinstance(values[n], int) and not isinstance(values[n], bool)
        else str(values[n])
        for n in SHAPE
    )


def feature_order(indices: Mapping[str, int]) -> tuple[int, ...]:
    """The order of feature tuples within a shape: domain indices in the order of the vocabulary."""
    return tuple(indices[n] for n in FEATURES)
