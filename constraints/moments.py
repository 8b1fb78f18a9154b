"""When a device is fullest: the moments of a step at which each pipeline rank may reach its peak.

A moment is a vector of counts. The bytes held at it are the sum over the memory terms of
``count x bytes``, so the peak of a rank is the largest such sum over its moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from mbsolve.constraints.blocks import Block, blocks_of
from mbsolve.constraints.memory.constants import constant
from mbsolve.constraints.moment_counts import COLUMN, HELD, MOMENT_COUNTS, POOLED, ZERO, at
from mbsolve.constraints.placement import (
    STAGE_COUNTS,
    Replay,
    Stage,
    chunks_of,
    stage_counts,
    virtual_stages,
)
from mbsolve.constraints.schedule import Ints, representative, states, undominated, undominated_index, walk
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model


class Moments(NamedTuple):
    """The moments of one pipeline rank: labels, and counts of shape (moments, ``MOMENT_COUNTS``)."""

    rank: int
    labels: tuple[str, ...]
    counts: Ints


def _run_ends(blocks: list[Block]) -> list[int]:
    """Indices that start or end a run of equal blocks: a sum that is linear along a run peaks at its ends."""
    ends = []
    for i, block in enumerate(blocks):
        edge = i == 0 or i == len(blocks) - 1
        if (
            edge
            or blocks[i - 1]._replace(first=False) != block._replace(first=False)
            or blocks[i + 1] != block
        ):
            ends.append(i)
    return ends


def _forward_offsets(chunk: Stage, mine: list[Block], stale: bool) -> Iterator[tuple[str, Ints]]:
    """What the moments of a chunk's forward hold beside what was in flight before it."""
    p2p = at("p2p")
    lives = np.cumsum([ZERO, *(b.live() for b in mine)], axis=0)
    lefts = np.cumsum([ZERO, *(b.left() for b in mine)], axis=0)
    for i in _run_ends(mine):
        held = lives[i + 1] + int(stale) * (lefts[-1] - lefts[i + 1]) + p2p
        for label, extra in mine[i].forward():
            yield label, held + extra
    if any(item.what == "head" for item in chunk):
        loss = lives[-1] + _head(chunk) + p2p + at("at_loss")
        loss[COLUMN["live_logits"]] -= 1
        yield "loss forward (logits and saved copy)", loss


def _beside(chunk: Stage) -> Iterator[tuple[str, Ints]]:
    """What a backward holds beside what was in flight before it when a forward runs layer by layer with it.

    The forward fills as many layers as the backward has emptied; at its end comes the embedding's gradient.
    """
    if any(item.kind is not None and item.kind.ffn == "moe" for item in chunk):
        passing = at("p2p") + at("at_backward_moe")
        yield "forward beside backward of moe layer", passing + at("at_forward_moe")
        if any(item.what == "embedding" for item in chunk):
            # The forward holds the tokens twice then, as a backward does.
            yield "embedding gradient beside forward of moe layer", passing + at("at_embedding_grad")


def _backward_offsets(chunk: Stage, mine: list[Block], stale: bool) -> Iterator[tuple[str, Ints]]:
    """What the moments of a chunk's backward hold beside what was in flight before it."""
    p2p, head = at("p2p"), _head(chunk)
    lives = np.cumsum([ZERO, *(b.live() for b in mine)], axis=0)
    lefts = np.cumsum([ZERO, *(b.left() for b in mine)], axis=0)
    if head.any():
        yield "loss backward", int(stale) * lefts[-1] + at("at_loss_backward")
    for i in _run_ends(mine):
        gone = lives[-1] - lives[i + 1] + head
        residue = lefts[-1] - lefts[i + 1] + int(stale) * lefts[i]
        for label, extra in mine[i].backward():
            yield label, residue - gone + p2p + extra
    if any(item.what == "embedding" for item in chunk):
        yield "embedding gradient", lefts[-1] - lives[-1] - head + at("at_embedding_grad")


def _head(chunk: Stage) -> Ints:
    """Counts of the final norm and the logits of a chunk that computes the loss."""
    v = ZERO.copy()
    if any(item.what == "head" for item in chunk):
        number = 1 + sum(item.what == "mtp" for item in chunk)
        v[COLUMN["live_head"]] = v[COLUMN["live_logits"]] = number
    return v


@lru_cache(maxsize=16384)
def _offsets(
    chunk: Stage, replay: Replay, forward: bool, stale: bool, overlap: bool
) -> tuple[tuple[str, ...], Ints]:
    """Labels and counts of the moments of one pass of a chunk, beside what was in flight before it."""
    walk = _forward_offsets if forward else _backward_offsets
    pairs = list(walk(chunk, blocks_of(chunk, replay), stale))
    if overlap and not forward:
        pairs += [(label, v + int(stale) * _left(chunk, replay)) for label, v in _beside(chunk)]
    rows = np.array([v for _, v in pairs], np.int64).reshape(-1, len(MOMENT_COUNTS))
    return tuple(label for label, _ in pairs), rows


def _with_p2p(rows: Ints, number: int) -> Ints:
    """The rows with so many hidden states on their way, where any are."""
    out = rows.copy()
    out[:, COLUMN["p2p"]] *= number
    return out


@lru_cache(maxsize=16384)
def held_by(chunk: Stage, replay: Replay) -> Ints:
    """Counts that one micro-batch of a chunk holds between its forward and its backward."""
    return np.asarray(sum((b.live() for b in blocks_of(chunk, replay)), _head(chunk)))


@lru_cache(maxsize=16384)
def _left(chunk: Stage, replay: Replay) -> Ints:
    """Counts that stay referenced after a backward of a chunk."""
    return np.asarray(sum((b.left() for b in blocks_of(chunk, replay)), ZERO))


def receiving(pp: int, vpp: int, rank: int) -> Ints:
    """1 for each virtual stage of a rank that gets its input from another rank."""
    out = np.full(vpp, int(pp > 1), np.int64)
    out[0] &= rank > 0
    return out


def sent_and_received(pp: int, vpp: int, rank: int, forward: bool) -> int:
    """Hidden states alive between sends and receives in a pass; see ``p2p_tensors`` in the constants."""
    if pp == 1:
        return 0
    number = constant("p2p_tensors")
    if vpp > 1:
        return int(number["interleaved"])
    return int(number["forward"] if forward else number["backward"] * (rank > 0))


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
    whole, left = np.array([held_by(c, replay) for c in chunks]), np.array([_left(c, replay) for c in chunks])
    alike: dict[tuple[bool, Stage, bool], list[Ints]] = {}
    receives = receiving(pp, len(chunks), rank)
    for state in states(pp, len(chunks), rank, microbatches, overlap):
        held = state.in_flight @ whole + state.others @ left
        held[:, COLUMN["received"]] += (state.others * (state.in_flight == 0)) @ receives
        full = held + state.forward * whole[state.chunk]
        base[POOLED] = np.maximum(base[POOLED], full[:, HELD].max(axis=0))
        alike.setdefault((state.forward, chunks[state.chunk], state.stale), []).append(held)
    labels: list[str] = []
    found: list[Ints] = []
    for (forward, chunk, stale), parts in alike.items():
        held = undominated(np.vstack(parts))
        names, extra = _offsets(chunk, replay, forward, stale, overlap)
        extra = _with_p2p(extra, sent_and_received(pp, len(chunks), rank, forward))
        found.append((held[:, None, :] + extra[None, :, :]).reshape(-1, len(MOMENT_COUNTS)))
        labels += list(names) * len(held)
    rest = left.sum(axis=0) + at("at_rest")
    rest[COLUMN["rest_moe"]] = counts["moe"] - counts["replayed_moe"]
    rest[COLUMN["received"]] = receives.sum()
    blocks = ("attention", "gdn", "mamba", "dense", "moe", "mtp", "embedding", "head")
    for name in blocks:
        rest[COLUMN[f"after_{name}"]] = counts[name]
    update = rest + at("at_optimizer")
    for name in blocks:
        update[COLUMN[f"step_{name}"]] = counts[name]
    rows = np.vstack([*found, update])
    labels.append("optimizer step")
    index = undominated_index(rows)
    # The state between steps is reported even where another moment dominates it.
    return Moments(
        rank,
        (*(labels[i] for i in index), "between steps"),
        np.vstack([rows[index], rest]) + base,
    )


SUMMIT: Final = ("forward of", "backward of attention", "backward of", "replayed forward")


@lru_cache(maxsize=65536)
def summit(
    chunks: tuple[Stage, ...], pp: int, rank: int, microbatches: int, replay: Replay, overlap: bool
) -> Ints:
    """Some of `rank_moments`: those of the last layer of the forward and of the backward that begin the fullest.

    Returns
    -------
    array (len(SUMMIT), len(MOMENT_COUNTS))
        one row for each label of ``SUMMIT``; the first one again for a label that does not occur.
    """
    base = np.zeros(len(MOMENT_COUNTS), np.int64)
    counts = stage_counts(chunks, pp, replay)
    base[: len(STAGE_COUNTS)] = [counts[name] for name in STAGE_COUNTS]
    whole, left = np.array([held_by(c, replay) for c in chunks]), np.array([_left(c, replay) for c in chunks])
    steps = walk(pp, len(chunks), rank, microbatches, overlap)
    there = np.array([any(item.kind is not None for item in chunk) for chunk in chunks])[steps.chunk]
    sizes = whole.sum(axis=1)
    size = steps.before @ sizes + steps.forward * sizes[steps.chunk]
    receives = receiving(pp, len(chunks), rank)
    full = steps.before @ whole + steps.forward[:, None] * whole[steps.chunk]
    base[POOLED] = full[:, HELD].max(axis=0)
    rows: dict[str, Ints] = {}
    for forward in (True, False):
        mine = np.flatnonzero(there & (steps.forward == forward))
        if not len(mine):
            continue
        k = mine[size[mine].argmax()]
        chunk, others = steps.chunk[k], steps.stale[k].copy()
        others[chunk] = 0
        held = steps.before[k] @ whole + others @ left
        held[COLUMN["received"]] += (others * (steps.before[k] == 0)) @ receives
        names, extra = _offsets(chunks[chunk], replay, forward, bool(steps.stale[k, chunk]), overlap)
        extra = _with_p2p(extra, sent_and_received(pp, len(chunks), rank, forward))
        for name, more in zip(names, extra, strict=True):
            for label in SUMMIT:
                if name.startswith(label):
                    rows[label] = base + held + more
                    break
    first = next(iter(rows.values()), base)
    return np.array([rows.get(label, first) for label in SUMMIT])


def all_moments(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> tuple[Moments, ...]:
    """The moments of every pipeline rank, first to last."""
    stages = virtual_stages(model, pp, vpp, split)
    few = representative(pp, vpp, microbatches)
    return tuple(rank_moments(chunks_of(stages, pp, r), pp, r, few, replay, overlap) for r in range(pp))


def worst_moments(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay, microbatches: int, overlap: bool
) -> Ints:
    """The counts of every moment of every rank that no other dominates: enough to bound the worst rank.

    A rank whose one chunk equals that of the rank before it holds no more than that one.
    """
    stages = virtual_stages(model, pp, vpp, split)
    few = representative(pp, vpp, microbatches)
    rows, before = [], None
    for rank in range(pp):
        chunks = chunks_of(stages, pp, rank)
        if chunks != before or len(chunks) > 1:
            rows.append(rank_moments(chunks, pp, rank, few, replay, overlap).counts)
        before = chunks
    return undominated(np.vstack(rows))
