"""Which parts of a layer a plan captures as graphs, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from mbsolve.constraints.memory.sizes import Value, either


def scoped(impl: Value) -> Value:
    """1.0 where pieces of layers are captured, 0.0 where nothing or the whole iteration is."""
    name = np.asarray(impl)
    return ((name == "local") | (name == "transformer_engine")).astype(float)


def graph_needs(scopes: Sequence[str]) -> tuple[str, ...]:
    """Decisions that `captured` reads."""
    if not scopes:
        return ()
    whole = ("attn",) if "mlp" in scopes else ()
    return ("cuda_graph_impl", *(f"graph_{s}" for s in dict.fromkeys((*scopes, *whole))))


def captured(values: Mapping[str, Any], scopes: Sequence[str]) -> Value:
    """1.0 where one of the scopes is captured.

    The implementation "local" captures whole dense layers even where it is told attention alone: its memory was
    the same with scope attn, attn and mlp, and none (H200 one-rank training step, 2026-11-30).
    """
    if not scopes:
        return 0.0
    impl = values["cuda_graph_impl"]
    on = either(*(values[f"graph_{s}"] for s in scopes))
    if "mlp" in scopes:
        on = either(on, (np.asarray(impl) == "local") * either(values["graph_attn"]))
    return on * scoped(impl)


# What a captured half hands to the next one: the same bytes, but in the graph's pool. Term -> scope of the half before.
OUTPUTS: Final = {
    "saved.attention.layer_input": "mlp",
    "saved.dense.hidden": "attn",
    "saved.moe.hidden": "attn",
    "graph_static.dense": "attn",
    "graph_static.moe": "attn",
}


def in_pool(name: str, values: Mapping[str, Any]) -> bool:
    """Whether the tensor of a term is the output of a graph, which lies in its pool."""
    scope = OUTPUTS.get(name)
    return scope is not None and bool(captured(values, (scope,)) > 0)
