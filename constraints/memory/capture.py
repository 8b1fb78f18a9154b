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
    return ("cuda_graph_impl", *(f"graph_{s}" for s in scopes)) if scopes else ()


def captured(values: Mapping[str, Any], scopes: Sequence[str]) -> Value:
    """1.0 where one of the scopes is captured."""
    if not scopes:
        return 0.0
    return either(*(values[f"graph_{s}"] for s in scopes)) * scoped(values["cuda_graph_impl"])


# What a captured half hands to the next one: the same bytes, but in the graph's pool. Term -> scope of the half before.
OUTPUTS: Final = {
    "saved.attention.layer_input": "mlp",
    "saved.dense.hidden": "attn",
    "saved.moe.hidden": "attn",
    "graph_static.dense": "attn",
    "graph_static.moe": "attn",
}


def in_pool(name: str, values: Mapping[str, Any]) -> bool:
    """Whether the tensor of a term lies in a graph's pool though its own half is not captured.

    Outputs of graphs do. So do those of an FFN behind a captured attention under the implementation "local", which
    captured whole dense layers whatever scope it was told (H200 one-rank training step, 2026-11-30).
    """
    whole = values["cuda_graph_impl"] == "local" and name.startswith("saved.dense.")
    scope = "attn" if whole else OUTPUTS.get(name)
    return scope is not None and bool(captured(values, (scope,)) > 0)
