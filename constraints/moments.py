"""When a device is fullest: the moments of a step at which each pipeline rank may reach its peak.

A moment is a vector of counts. The bytes held at it are the sum over the memory terms of
``count x bytes``, so the peak of a rank is the largest such sum over its moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mbsolve.constraints.placement import STAGE_COUNTS, Replay, Stage, chunks_of, replayed, stage_counts, virtual_stages
from mbsolve.constraints.schedule import Ints, State, representative, states, undominated
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import LayerKind, Model

# Counts that exist beside the stage counts, for memory rows only.
LIVE = ("live_attention", "live_dense", "live_moe", "live_mtp", "live_unit", "live_head", "live_logits")
STALE = ("stale_moe", "stale_unit")
AT = (
    "at_forward_dense",
    "at_forward_moe",
    "at_nograd_dense",
    "at_nograd_moe",
    "at_backward_dense",
    "at_backward_moe",
    "at_backward_attention",
    "at_loss",
    "at_loss_backward",
    "at_embedding_grad",
    "at_rest",
    "at_optimizer",
    "p2p",
    "rest_moe",
    # Stage counts again, at the optimizer step only.
    "step_dense",
    "step_moe",
    "step_mtp",
    "step_embedding",
    "step_head",
)
MOMENT_COUNTS = STAGE_COUNTS + LIVE + STALE + AT
COLUMN = {name: i for i, name in enumerate(MOMENT_COUNTS)}


class Moments(NamedTuple):
    """The moments of one pipeline rank: labels, and counts of shape (moments, ``MOMENT_COUNTS``)."""

    rank: int
    labels: tuple[str, ...]
    counts: Ints


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
            v[COLUMN["live_attention"]] += 1
            v[COLUMN[f"live_{kind.ffn}"]] += 1
        return v

    def left(self) -> Ints:
        """Counts that stay referenced after the block's backward."""
        v = np.zeros(len(MOMENT_COUNTS), np.int64)
        if any(k.ffn == "moe" for k in self.kinds):
            v[COLUMN["stale_unit" if self.unit else "stale_moe"]] = 1
        return v

    def forward(self) -> Iterator[tuple[str, Ints]]:
        """Transients of the block's forward, above what `live` keeps."""
        for ffn in sorted({k.ffn for k in self.kinds}):
            v = _at(f"at_nograd_{ffn}" if self.unit else f"at_forward_{ffn}")
            if self.offloaded:
                v = v + self.halves() - self.live()
            yield f"forward of {ffn} layer", v

    def backward(self) -> Iterator[tuple[str, Ints]]:
        """Transients of the block's backward, above what `live` keeps; replayed or reloaded tensors included."""
        back = self.halves() - self.live() if self.unit or self.offloaded else np.zeros(len(MOMENT_COUNTS), np.int64)
        back[COLUMN["live_mtp"]] = 0
        for ffn in sorted({k.ffn for k in self.kinds}):
            if self.unit:
                yield f"replayed forward of {ffn} layer", back + _at(f"at_forward_{ffn}")
            yield f"backward of {ffn} layer", back + _at(f"at_backward_{ffn}")
            attention = back + _at("at_backward_attention")
            attention[COLUMN[f"live_{ffn}"]] -= 1
            yield f"backward of attention in {ffn} layer", attention


def _at(name: str) -> Ints:
    v = np.zeros(len(MOMENT_COUNTS), np.int64)
    v[COLUMN[name]] = 1
    return v


def blocks_of(chunk: Stage, replay: Replay) -> list[Block]:
    """The blocks of a virtual stage under full recompute or layer offload."""
    flags = replayed(chunk, replay)
    layers = [item for item in chunk if item.kind is not None]
    out: list[Block] = []
    for what in ("layer", "mtp"):
        part = [(i.kind, f) for i, f in zip(layers, flags, strict=True) if i.what == what and i.kind is not None]
        step = replay.num_layers if replay.method == "uniform" else 1
        at = 0
        while at < len(part):
            kind, flag = part[at]
            size = step if flag else 1
            group = tuple(k for k, _ in part[at : at + size])
            gone = not flag and len(out) < replay.offloaded
            out.append(Block(group, unit=flag, mtp=what == "mtp", offloaded=gone, first=not out))
            at += size
    return out


def _run_ends(blocks: list[Block]) -> list[int]:
    """Indices that start or end a run of equal blocks: a sum that is linear along a run peaks at its ends."""
    ends = []
    for i, block in enumerate(blocks):
        edge = i == 0 or i == len(blocks) - 1
        if edge or blocks[i - 1]._replace(first=False) != block._replace(first=False) or blocks[i + 1] != block:
            ends.append(i)
    return ends


def _chunk_moments(
    state: State, chunks: tuple[Stage, ...], blocks: list[list[Block]], whole: list[Ints], left: list[Ints]
) -> Iterator[tuple[str, Ints]]:
    """Moments of one pass, without the stage counts."""
    c = state.chunk
    live = sum((n * w for n, w in zip(state.in_flight, whole, strict=True)), np.zeros(len(MOMENT_COUNTS), np.int64))
    others = sum(
        (s * v for i, (s, v) in enumerate(zip(state.stale, left, strict=True)) if i != c),
        np.zeros(len(MOMENT_COUNTS), np.int64),
    )
    mine = blocks[c]
    stale = state.stale[c]
    what = [item.what for item in chunks[c]]
    mtp = what.count("mtp")
    p2p = _at("p2p")
    suffix = f", chunk {c}" if len(chunks) > 1 else ""
    lives = [b.live() for b in mine]
    lefts = [b.left() for b in mine]
    zero = np.zeros(len(MOMENT_COUNTS), np.int64)
    head = np.zeros(len(MOMENT_COUNTS), np.int64)
    if "head" in what:
        head[COLUMN["live_head"]] = 1 + mtp
        head[COLUMN["live_logits"]] = 1 + mtp
    if state.forward:
        for i in _run_ends(mine):
            held = live + sum(lives[: i + 1], zero) + others + stale * sum(lefts[i + 1 :], zero) + p2p
            for label, extra in mine[i].forward():
                yield label + suffix, held + extra
        if "head" in what:
            loss = live + sum(lives, zero) + others + head + p2p + _at("at_loss")
            loss[COLUMN["live_logits"]] -= 1
            yield "loss forward (logits and saved copy)", loss
        return
    if "head" in what:
        yield "loss backward", live + others + stale * left[c] + _at("at_loss_backward")
    live = live - head
    for i in reversed(_run_ends(mine)):
        gone = sum(lives[i + 1 :], zero)
        residue = sum(lefts[i + 1 :], zero) + stale * sum(lefts[:i], zero)
        for label, extra in mine[i].backward():
            yield label + suffix, live - gone + others + residue + p2p + extra
    if "embedding" in what:
        yield "embedding gradient", live - sum(lives, zero) + others + left[c] + _at("at_embedding_grad")


@lru_cache(maxsize=65536)
def rank_moments(
    chunks: tuple[Stage, ...], pp: int, rank: int, microbatches: int, replay: Replay, overlap: bool
) -> Moments:
    """The moments of one rank that no other moment of that rank dominates.

    ``microbatches`` should be `schedule.representative` of the run.
    """
    base = np.zeros(len(MOMENT_COUNTS), np.int64)
    counts = stage_counts(chunks, pp, replay)
    base[: len(STAGE_COUNTS)] = [counts[name] for name in STAGE_COUNTS]
    blocks = [blocks_of(chunk, replay) for chunk in chunks]
    whole, left = [], []
    for chunk, mine in zip(chunks, blocks, strict=True):
        total = sum((b.live() for b in mine), np.zeros(len(MOMENT_COUNTS), np.int64))
        if any(item.what == "head" for item in chunk):
            mtp = sum(item.what == "mtp" for item in chunk)
            total[COLUMN["live_head"]] += 1 + mtp
            total[COLUMN["live_logits"]] += 1 + mtp
        whole.append(total)
        left.append(sum((b.left() for b in mine), np.zeros(len(MOMENT_COUNTS), np.int64)))
    found: dict[bytes, tuple[str, Ints]] = {}
    for state in states(pp, len(chunks), rank, microbatches, overlap):
        for label, vector in _chunk_moments(state, chunks, blocks, whole, left):
            found.setdefault(vector.tobytes(), (label, vector))
    rest = sum(left, np.zeros(len(MOMENT_COUNTS), np.int64)) + _at("at_rest")
    rest[COLUMN["rest_moe"]] = counts["moe"] - counts["replayed_moe"]
    step = rest + _at("at_optimizer")
    for name in ("dense", "moe", "mtp", "embedding", "head"):
        step[COLUMN[f"step_{name}"]] = counts[name]
    for label, vector in (("between steps", rest), ("optimizer step", step)):
        found.setdefault(vector.tobytes(), (label, vector))
    labels = {k: v[0] for k, v in found.items()}
    rows = undominated(np.array([v for _, v in found.values()]))
    order = [labels[row.tobytes()] for row in rows]
    # The state between steps is reported even where another moment dominates it.
    if rest.tobytes() not in {r.tobytes() for r in rows}:
        rows, order = np.vstack([rows, rest]), [*order, "between steps"]
    return Moments(rank, tuple(order), rows + base)


def all_moments(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> tuple[Moments, ...]:
    """The moments of every pipeline rank, first to last."""
    stages = virtual_stages(model, pp, vpp, split)
    few = representative(pp, vpp, microbatches)
    return tuple(
        rank_moments(chunks_of(stages, pp, r), pp, r, few, replay, overlap) for r in range(pp)
    )


def worst_moments(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> Ints:
    """The counts of every moment of every rank that no other dominates: enough to bound the worst rank.

    A rank whose chunks are all alike and equal those of the rank before it holds no more than that one.
    """
    stages = virtual_stages(model, pp, vpp, split)
    few = representative(pp, vpp, microbatches)
    rows, before = [], None
    for rank in range(pp):
        chunks = chunks_of(stages, pp, rank)
        if chunks != before or len(set(chunks)) > 1:
            rows.append(rank_moments(chunks, pp, rank, few, replay, overlap).counts)
        before = chunks
    return undominated(np.vstack(rows))
