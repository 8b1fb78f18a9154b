"""Which parts of a layer a plan captures as graphs, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
