"""The core of attention, full or windowed, and what context parallelism exchanges for it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.rates import NOTHING, Pass, collective_rate, stream_rate, tokens
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model

RING_HIDDEN: Final = 0.8
"""Share of the attention of one ring step that can hide the transfer of the next keys and values."""

RING_EXPOSED: Final = 0.1
"""Share of a ring transfer that never hides."""

SMALL_HEAD: Final = 64
"""Widest head that attention kernels run at the lower rate of the card."""


def latent_widths(model: Model) -> tuple[int, int, int, int]:
    """Latent width, and the nope, rope and value widths of a head."""
    widths = (model.kv_lora_rank, model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim)
    latent, nope, rope, value = (int(w or 0) for w in widths)
    return latent, nope, rope, value


def head_widths(model: Model) -> tuple[int, int]:
    """Widths of a query-key head and of a value head."""
    if not model.mla:
        return model.head_dim, model.head_dim
    _, nope, rope, value = latent_widths(model)
    return nope + rope, value


def _reach(job: Job, cp: Any) -> Any:
    """Tokens that one attention kernel runs over: a rank's own in a ring, the whole sequence of some heads otherwise."""
    return job.seq_len if job.settings.cp_comm_type == "a2a" else job.seq_len / np.asarray(cp)


def _core(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, window: int | None) -> Pass:
    """Causal attention over half of the sequence, or over a window; efficiency grows with the length of a kernel."""
    c, seq = machine.calibration, job.seq_len
    query, value = head_widths(model)
    context = min(window, seq / 2) if window else seq / 2
    flops = 2.0 * tokens(job, cp, mbs) * context * (model.num_attention_heads / tp) * (query + value)
    span = np.minimum(window or seq, _reach(job, cp))
    small = c["attention_small_head_factor"] if query <= SMALL_HEAD else 1.0
    share = c["attention_fraction"] * small * span / (span + c["attention_half_length"])
    forward = flops / (machine.matrix_flops["bf16"] * share)
    more = (3 * query + 2 * value) / (query + value) / c["attention_backward_ratio"]
    return Pass(forward, forward * more)


def core(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Core attention over the whole sequence; the backward pass multiplies five times for two."""
    return _core(job, model, machine, tp, cp, mbs, None)


def window_core(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Core attention over a sliding window."""
    window = model.sliding_window
    return _core(job, model, machine, tp, cp, mbs, window) if window else NOTHING


def _exchange(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any, attention: Pass
) -> Pass:
    """Exposed exchange of context parallelism.

    All-to-all swaps queries, keys, values and the output before and after, and hides nothing. The ring passes
    keys and values on (their gradients back), behind the attention of the previous step; all-gather moves the same
    bytes before the attention starts. The hierarchical exchange, which a rule refuses, is priced as the ring.
    """
    every, rate = tokens(job, cp, mbs), collective_rate(machine, topology, cp, tp)
    heads, (query, value) = model.num_attention_heads, head_widths(model)
    if job.settings.cp_comm_type == "a2a":
        swapped = 2.0 * every * (heads / tp) * (2 * query + 2 * value) * (cp - 1) / cp / rate
        return Pass(swapped, swapped).where(np.asarray(cp) > 1)
    widths = heads * (query + value) if model.mla else 2 * model.num_query_groups * model.head_dim
    ring = 2.0 * every * widths / tp * (cp - 1) / rate
    if job.settings.cp_comm_type == "all_gather":
        return Pass(ring, 2.0 * ring).where(np.asarray(cp) > 1)
    hidden = RING_HIDDEN * (cp - 1) / cp
    forward = np.maximum(RING_EXPOSED * ring, ring - hidden * attention.forward)
    backward = np.maximum(RING_EXPOSED * ring, 2.0 * ring - hidden * attention.backward)
    return Pass(forward, backward).where(np.asarray(cp) > 1)


def exchange(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any
) -> Pass:
    """Exposed context-parallel exchange of full attention."""
    return _exchange(job, model, machine, topology, tp, cp, mbs, core(job, model, machine, tp, cp, mbs))


def window_exchange(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any
) -> Pass:
    """Exposed context-parallel exchange of windowed attention, which the ring does not shorten."""
    if not model.sliding_window:
        return NOTHING
    mine = window_core(job, model, machine, tp, cp, mbs)
    return _exchange(job, model, machine, topology, tp, cp, mbs, mine)


def merge(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Memory passes around each step of a ring: partial results rescaled and added, halves of operands copied.

    Of the steps of causal attention the mean rank computes half with all of its queries and half of the keys, half
    with half of its queries: a sum over outputs or gradients reads two tensors and writes one (6 bytes an element)
    of which three quarters take part, and half of the operands are made contiguous first (4 bytes).
    """
    if job.settings.cp_comm_type in ("a2a", "all_gather"):
        return NOTHING
    heads, (query, value) = model.num_attention_heads / tp, head_widths(model)
    groups = heads if model.mla else model.num_query_groups / np.minimum(tp, model.num_query_groups)
    every = tokens(job, cp, mbs) * (cp - 1)
    sums, copies = 6.0 * 0.75 * every, 4.0 * 0.5 * every
    forward = sums * heads * value + copies * heads * query
    backward = sums * (heads * query + groups * (query + value)) + copies * heads * (query + 2 * value)
    stream = stream_rate(machine)
    return Pass(forward / stream, backward / stream).where(np.asarray(cp) > 1)


def window_merge(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """The same around windowed attention, whose ring is as long."""
    return merge(job, model, machine, tp, cp, mbs) if model.sliding_window else NOTHING


def exchange_launches(job: Job, cp: Any) -> Pass:
    """Framework ops of the exchange: four collectives, or those of each ring step with its attention and sums."""
    at_once = job.settings.cp_comm_type in ("a2a", "all_gather")
    ops = Pass(4.0, 4.0) if at_once else Pass(3.0 * cp, 5.0 * cp)
    return ops.where(np.asarray(cp) > 1)
