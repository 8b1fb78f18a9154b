"""The moments are enough: no pass of a full walk of the schedule holds more than the largest of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mbsolve.constraints.blocks import Block, blocks_of
from mbsolve.constraints.moment_counts import COLUMN, MOMENT_COUNTS, POOL
from mbsolve.constraints.moments import rank_moments, receiving, sent_and_received, worst_moments
from mbsolve.constraints.placement import Replay, Stage, chunks_of, stage_counts, virtual_stages
from mbsolve.constraints.schedule import Ints, passes, representative
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model, load_model

DSV3 = load_model("dsv3").model_copy(update={"num_layers": 13})
LLAMA = load_model("llama3-8b").model_copy(update={"num_layers": 12})
NANO = load_model("nemotron-3.5-lightning").model_copy(
    update={"num_layers": 12, "layer_pattern": "MEMEM*EMEMEM/*E", "mtp_num_layers": 1}
)
NEXT = load_model("qwen3-next-80b").model_copy(update={"num_layers": 12})


Weights = NDArray[np.float64]
Case = tuple[Model, tuple[int, int], int, Replay, bool, int]


def slow_peak(
    model: Model,
    pp: int,
    vpp: int,
    split: Split,
    replay: Replay,
    microbatches: int,
    overlap: bool,
    rank: int,
    weight: Weights,
) -> float:
    """Walk every layer of every pass of every micro-batch; the obvious, slow reading of the schedule."""
    chunks = chunks_of(virtual_stages(model, pp, vpp, split), pp, rank)
    blocks = [blocks_of(c, replay) for c in chunks]
    counts = stage_counts(chunks, pp, replay)
    base = float(sum(weight[COLUMN[k]] * v for k, v in counts.items()))
    base += float(most_held(chunks, pp, replay, microbatches, overlap, rank) @ weight)
    held, peak = 0.0, 0.0
    in_flight, ran = [0] * vpp, [False] * vpp
    receives = receiving(pp, vpp, rank)
    residue = [[0.0] * len(b) for b in blocks]

    def w(vector: Ints) -> float:
        return float(weight @ vector)

    def left(block: Block) -> float:
        return w(block.left())

    for forward, c in passes(pp, vpp, rank, microbatches, overlap):
        p2p = float(weight[COLUMN["p2p"]]) * sent_and_received(pp, vpp, rank, forward)
        # A chunk without a micro-batch in flight still has the input of the last one.
        idle = sum(int(receives[o]) for o in range(vpp) if o != c and ran[o] and not in_flight[o])
        held += (here := float(weight[COLUMN["received"]]) * idle)
        in_flight[c], ran[c] = in_flight[c] + (1 if forward else -1), True
        what = [i.what for i in chunks[c]]
        mtp = what.count("mtp")
        logits = weight[COLUMN["live_logits"]]
        head = (1 + mtp) * weight[COLUMN["live_head"]] if "head" in what else 0.0
        if forward:
            for i, block in enumerate(blocks[c]):
                residue[c][i] = 0.0
                held += w(block.live())
                for _, extra in block.forward():
                    peak = max(peak, base + held + sum(map(sum, residue)) + w(extra) + p2p)
            if "head" in what:
                held += head + mtp * logits
                peak = max(peak, base + held + sum(map(sum, residue)) + weight[COLUMN["at_loss"]] + p2p)
                held += logits
            held -= here
            continue
        if overlap:
            # A forward beside it fills the layers that this backward empties.
            both = p2p + weight[COLUMN["at_backward_moe"]]
            moe = any(i.kind is not None and i.kind.ffn == "moe" for i in chunks[c])
            for other in ("at_forward_moe", *(["at_embedding_grad"] if "embedding" in what else [])):
                if moe:
                    extra = both + weight[COLUMN[other]]
                    peak = max(peak, base + held + sum(map(sum, residue)) + extra)
        if "head" in what:
            peak = max(peak, base + held + sum(map(sum, residue)) + weight[COLUMN["at_loss_backward"]])
            held -= head + (1 + mtp) * logits
        for i in reversed(range(len(blocks[c]))):
            block = blocks[c][i]
            residue[c][i] = 0.0
            for _, extra in block.backward():
                peak = max(peak, base + held + sum(map(sum, residue)) + w(extra) + p2p)
            held -= w(block.live())
            residue[c][i] = left(block)
        if "embedding" in what:
            peak = max(peak, base + held + sum(map(sum, residue)) + weight[COLUMN["at_embedding_grad"]])
        held -= here
    assert abs(held) < 1e-6 * max(peak, 1.0)
    return peak


def most_held(
    chunks: tuple[Stage, ...], pp: int, replay: Replay, microbatches: int, overlap: bool, rank: int
) -> Ints:
    """For each kind of layer half the most that is ever held at once, in the column of its graphs' pool."""
    now, most = np.zeros(len(MOMENT_COUNTS), np.int64), np.zeros(len(MOMENT_COUNTS), np.int64)
    for forward, c in passes(pp, len(chunks), rank, microbatches, overlap):
        whole = sum(b.live() for b in blocks_of(chunks[c], replay))
        now = now + (whole if forward else -whole)
        most = np.maximum(most, now)
    out = np.zeros(len(MOMENT_COUNTS), np.int64)
    for name in POOL:
        out[COLUMN[name]] = most[COLUMN[name.replace("pool", "live")]]
    return out


CASES = st.tuples(
    st.sampled_from([DSV3, LLAMA, NANO, NEXT]),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (2, 3), (4, 3)]),
    st.integers(1, 6),
    st.sampled_from(
        [Replay(), Replay("uniform", 1), Replay("uniform", 2), Replay("block", 1), Replay("block", 2)]
    ),
    st.booleans(),
    st.integers(0, 10_000),
)


@settings(max_examples=150, deadline=None)
@given(CASES)
def test_no_pass_holds_more_than_the_moments(case: Case) -> None:
    model, (pp, vpp), groups, replay, overlap, seed = case
    rng = np.random.default_rng(seed)
    weight = rng.random(len(MOMENT_COUNTS))
    later = (n for n in MOMENT_COUNTS if n.startswith(("step_", "after_")))
    for name in ("at_rest", "at_optimizer", "rest_moe", *later):
        weight[COLUMN[name]] = 0.0
    options = splits(model, pp, vpp)
    if not options:
        return
    split = options[seed % len(options)]
    microbatches = groups * pp
    worst = 0.0
    for rank in range(pp):
        chunks = chunks_of(virtual_stages(model, pp, vpp, split), pp, rank)
        few = representative(pp, vpp, microbatches)
        fast = float((rank_moments(chunks, pp, rank, few, replay, overlap).counts @ weight).max())
        slow = slow_peak(model, pp, vpp, split, replay, microbatches, overlap, rank, weight)
        # At rest everything stale is held at once, so a rank may peak there; never below the walk.
        assert fast >= slow * (1 - 1e-9)
        pooled = most_held(chunks, pp, replay, microbatches, overlap, rank)
        pooled[COLUMN["received"]] = receiving(pp, vpp, rank).sum()
        rest = _rest(chunks, pp, replay, weight) + float(pooled @ weight)
        assert fast <= max(slow, rest) * (1 + 1e-9)
        worst = max(worst, fast)
    found = worst_moments(model, pp, vpp, split, replay, representative(pp, vpp, microbatches), overlap)
    assert float((found @ weight).max()) == pytest.approx(worst, rel=1e-9)


def _rest(chunks: tuple[Stage, ...], pp: int, replay: Replay, weight: Weights) -> float:
    counts = stage_counts(chunks, pp, replay)
    stale = sum(float(weight @ b.left()) for c in chunks for b in blocks_of(c, replay))
    return float(sum(weight[COLUMN[k]] * v for k, v in counts.items())) + stale


def test_in_flight_of_interleaved_schedule_is_the_published_count() -> None:
    # megatron/core/pipeline_parallel/schedules.py: min(2(pp-r-1) + (v-1)pp + 1, m v) chunks at the peak.
    for pp, vpp, rank in ((4, 2, 0), (4, 2, 3), (8, 4, 0), (8, 4, 5)):
        held, most = 0, 0
        for forward, _ in passes(pp, vpp, rank, 4 * pp, False):
            held += 1 if forward else -1
            most = max(most, held)
        assert most == 2 * (pp - rank - 1) + (vpp - 1) * pp + 1


def test_a_stage_without_layers_holds_what_it_is_handed() -> None:
    # Published layouts of Llama-3.1 405B leave a virtual stage empty.
    stages = virtual_stages(LLAMA, 2, 2, Split(layout="Et*6||t*3|t*3L"))
    found = rank_moments(chunks_of(stages, 2, 1), 2, 1, 8, Replay(), False)
    assert len(found.counts) == len(found.labels) > 1
