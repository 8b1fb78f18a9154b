"""Layers of a virtual stage that are saved and replayed together, and what their passes hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mbsolve.constraints.moment_counts import COLUMN, MOMENT_COUNTS, at
from mbsolve.constraints.placement import Replay, Stage, halves_of, replayed
from mbsolve.constraints.schedule import Ints
from mbsolve.models.card import LayerKind

__all__ = ["Block", "blocks_of"]


class Block(NamedTuple):
    """Layers that are saved and replayed together."""

    kinds: tuple[LayerKind, ...]
    unit: bool = False
    mtp: bool = False
    offloaded: bool = False
    first: bool = False

    def live(self) -> Ints:
        """Counts held from the end of the block's forward to its backward."""
        v = np.zeros(len(MOMENT_COUNTS), np.int64)
        v[COLUMN["live_mtp"]] = int(self.mtp)
        if self.unit or (self.offloaded and self.first):
            v[COLUMN["live_unit"]] = 1
        elif not self.offloaded:
            v += self.halves()
        return v

    def halves(self) -> Ints:
        """Counts of everything the layers save when nothing is checkpointed."""
        v = np.zeros(len(MOMENT_COUNTS), np.int64)
        for kind in self.kinds:
            for half in halves_of(kind):
                v[COLUMN[f"live_{half}"]] += 1
        return v

    def parts(self) -> list[tuple[str, ...]]:
        """The distinct layers of the block as halves, those with the same FFN together."""
        return sorted({halves_of(k) for k in self.kinds}, key=lambda p: (p[-1], p))

    def left(self) -> Ints:
        """Counts that stay referenced after the block's backward."""
        v = np.zeros(len(MOMENT_COUNTS), np.int64)
        if any(k.ffn == "moe" for k in self.kinds):
            v[COLUMN["stale_unit" if self.unit else "stale_moe"]] = 1
        return v

    def forward(self) -> Iterator[tuple[str, Ints]]:
        """Transients of the block's forward, above what `live` keeps.

        Of attention with an FFN behind it none is looked at: that of the FFN is larger.
        """
        way = "at_nograd" if self.unit else "at_forward"
        for parts in self.parts():
            last = parts[-1]
            for half in parts:
                if half == "attention" and half != last:
                    continue
                v = at(f"{way}_{half}")
                if self.offloaded:
                    v = v + self.halves() - self.live()
                if half != last and not self.unit:
                    v[COLUMN[f"live_{last}"]] -= 1
                yield f"forward of {half} layer", v

    def backward(self) -> Iterator[tuple[str, Ints]]:
        """Transients of the block's backward, above what `live` keeps; replayed or reloaded tensors included."""
        back = (
            self.halves() - self.live()
            if self.unit or self.offloaded
            else np.zeros(len(MOMENT_COUNTS), np.int64)
        )
        back[COLUMN["live_mtp"]] = 0
        for parts in self.parts():
            last = parts[-1]
            if self.unit:
                yield f"replayed forward of {last} layer", back + at(f"at_forward_{last}")
            if last in ("dense", "moe"):
                yield f"backward of {last} layer", back + at(f"at_backward_{last}")
            if parts[0] == last and last in ("dense", "moe"):
                continue
            mixer = back + at(f"at_backward_{parts[0]}")
            if parts[0] == last:
                yield f"backward of {last} layer", mixer
            else:
                mixer[COLUMN[f"live_{last}"]] -= 1
                yield f"backward of {parts[0]} in {last} layer", mixer


def blocks_of(chunk: Stage, replay: Replay) -> list[Block]:
    """The blocks of a virtual stage under full recompute or layer offload."""
    flags = replayed(chunk, replay)
    layers = [item for item in chunk if item.kind is not None]
    out: list[Block] = []
    for what in ("layer", "mtp"):
        part = [
            (i.kind, f) for i, f in zip(layers, flags, strict=True) if i.what == what and i.kind is not None
        ]
        step = replay.num_layers if replay.method == "uniform" else 1
        place = 0
        while place < len(part):
            flag = part[place][1]
            size = step if flag else 1
            group = tuple(k for k, _ in part[place : place + size])
            gone = not flag and len(out) < replay.offloaded
            out.append(Block(group, unit=flag, mtp=what == "mtp", offloaded=gone, first=not out))
            place += size
    return out
