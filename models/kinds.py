"""What a layer is made of: a mixer and a feed-forward part, either of which may be missing."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

Mixer = Literal["attention", "window_attention", "gdn", "mamba", "none"]
Ffn = Literal["dense", "moe", "none"]

RECURRENT: Final = ("gdn", "mamba")
"""Mixers whose cost is linear in the length of the sequence."""


class LayerKind(NamedTuple):
    """What one layer is made of; ``none`` where it has no such half."""

    mixer: Mixer
    ffn: Ffn


SYMBOLS: Final[dict[str, LayerKind]] = {
    "M": LayerKind("mamba", "none"),
    "*": LayerKind("attention", "none"),
    "-": LayerKind("none", "dense"),
    "E": LayerKind("none", "moe"),
}
"""Symbols of a layer pattern; each is one layer."""

MTP: Final = "/"
"""What separates the decoder's pattern from that of each MTP block."""


@lru_cache(maxsize=256)
def pattern_layers(pattern: str) -> tuple[LayerKind, ...]:
    """Return the kinds of the decoder layers of a valid pattern."""
    return tuple(SYMBOLS[symbol] for symbol in pattern.split(MTP)[0])


@lru_cache(maxsize=256)
def pattern_mtp(pattern: str) -> LayerKind | None:
    """Return the kind of an MTP block: its mixer layer and its FFN layer taken as one; None without MTP."""
    blocks = pattern.split(MTP)[1:]
    return LayerKind(SYMBOLS[blocks[0][0]].mixer, SYMBOLS[blocks[0][1]].ffn) if blocks else None


@lru_cache(maxsize=256)
def attention_layers(
    num_layers: int, first_k_dense: int, moe: bool, windowed: bool, period: int | None
) -> tuple[LayerKind, ...]:
    """Return kinds where every layer has attention: in a window, if any, on all layers or all but each ``period``-th."""
    return tuple(
        LayerKind(
            "window_attention" if windowed and (period is None or (i + 1) % period) else "attention",
            "moe" if moe and i >= first_k_dense else "dense",
        )
        for i in range(num_layers)
    )


@lru_cache(maxsize=256)
def linear_attention_layers(
    num_layers: int, first_k_dense: int, moe: bool, period: int
) -> tuple[LayerKind, ...]:
    """Return kinds where only every ``period``-th layer has full attention, the others a gated delta net."""
    return tuple(
        LayerKind(
            "gdn" if (i + 1) % period else "attention", "moe" if moe and i >= first_k_dense else "dense"
        )
        for i in range(num_layers)
    )


def pattern_fault(pattern: str, num_layers: int, mtp_num_layers: int) -> str | None:
    """Return what is wrong with a pattern, in one sentence; None if nothing is."""
    main, *blocks = pattern.split(MTP)
    for symbol in "".join((main, *blocks)):
        if symbol not in SYMBOLS:
            return f"layer_pattern has the symbol {symbol!r}, but only {' '.join(SYMBOLS)} and / are allowed."
    if len(main) != num_layers:
        return f"layer_pattern has {len(main)} layers, but num_layers is {num_layers}."
    if len(blocks) != mtp_num_layers:
        return f"layer_pattern has {len(blocks)} MTP parts, but mtp_num_layers is {mtp_num_layers}."
    for block in blocks:
        if len(block) != 2 or block[0] not in "M*" or block[1] not in "-E" or block != blocks[0]:
            return (
                f"layer_pattern has the MTP part {block!r}, but all parts must be alike: M or *, then - or E."
            )
    return None
