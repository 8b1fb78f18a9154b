"""Activations on their way to the host and back: the share of the transfers that the passes wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mbsolve.constraints.memory.tensors import (
    offloaded_bytes_attention,
    offloaded_bytes_dense,
    offloaded_bytes_moe,
    whole_attention_bytes,
    whole_dense_bytes,
    whole_gdn_bytes,
    whole_moe_bytes,
)
from mbsolve.constraints.rule import Row, Source, Term
from mbsolve.constraints.time.ops import Values, names_of, scoped
from mbsolve.hardware.card import Machine

TRANSFERS: Final = Source("one H200 one-rank training step", "Llama-3 8B, 4 of 8 layers offloaded")

ROWS: Final[tuple[Row, ...]] = ("forward_device", "backward_device")


def _transfer(name: str, per: str, moved: Callable[..., Any], what: str) -> list[Term]:
    """To the host in the forward pass, back in the backward pass: the same bytes each way."""

    def exposed(values: Values) -> Any:
        machine: Machine = values["machine"]
        share = machine.calibration["activation_offload_exposed"]
        size = moved(**{n: values[n] for n in names_of(moved)})
        return share * size / machine.host_link_bytes_per_second

    names, text = ("machine", *names_of(moved)), f"Exposed host transfer of {what}."
    return [Term(scoped(exposed, names, text), TRANSFERS, name=name, row=row, per=per) for row in ROWS]


_PARTS, _LAYERS = "the tensors that fine-grained offload names", "the activations of an offloaded layer"

OFFLOAD_TERMS: Final[tuple[Term, ...]] = (
    *_transfer("offload.attention", "attention", offloaded_bytes_attention, _PARTS),
    *_transfer("offload.window_attention", "window_attention", offloaded_bytes_attention, _PARTS),
    *_transfer("offload.dense", "dense", offloaded_bytes_dense, _PARTS),
    *_transfer("offload.moe", "moe", offloaded_bytes_moe, _PARTS),
    *_transfer("offload.attention.whole", "offloaded_attention", whole_attention_bytes, _LAYERS),
    *_transfer("offload.gdn.whole", "offloaded_gdn", whole_gdn_bytes, _LAYERS),
    *_transfer("offload.dense.whole", "offloaded_dense", whole_dense_bytes, _LAYERS),
    *_transfer("offload.moe.whole", "offloaded_moe", whole_moe_bytes, _LAYERS),
)
