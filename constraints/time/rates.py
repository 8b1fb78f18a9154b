"""What every operation is priced with: tokens, matrix products, memory passes and collectives.

All sizes may be scalars or arrays that broadcast; times are seconds of one micro-batch on one rank.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Source
from mbsolve.hardware.card import PRECISION_CLASS, Machine
from mbsolve.hardware.topology import Topology

FIT: Final = Source("fit on measured rows", "benchmarks/fit.py; the constants are in the machine card")
BENCH: Final = Source("H200 micro-benchmark 2026-11-30", "GEMM, attention and RMSNorm sweeps")
CHOSEN: Final = Source("constant of the time model", "not identified by the published rows")
RECOMPUTE_AB: Final = Source("published Moonlight recompute A/B rows")

COLLECTIVE_LATENCY: Final = 8e-6
"""Seconds of one TP collective pass beside its bytes."""

WEIGHT_BYTES: Final = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.56}
"""Bytes of one weight that a GEMM streams; FP4 carries one scale for 16 elements."""


class Pass(NamedTuple):
    """A forward and a backward figure: seconds, or launches. Scalars or arrays."""

    forward: Any
    backward: Any

    def plus(self, *others: Pass) -> Pass:
        """The sum of passes."""
        every = (self, *others)
        return Pass(sum(p.forward for p in every), sum(p.backward for p in every))

    def times(self, factor: Any) -> Pass:
        """Both figures times one factor."""
        return Pass(self.forward * factor, self.backward * factor)

    def where(self, condition: Any) -> Pass:
        """The pass where a condition holds, nothing elsewhere."""
        return Pass(np.where(condition, self.forward, 0.0), np.where(condition, self.backward, 0.0))


NOTHING: Final = Pass(0.0, 0.0)


def tokens(job: Job, cp: Any, mbs: Any) -> Any:
    """Tokens of a micro-batch that enter a tensor-parallel group: ``mbs * seq_len / cp``."""
    return mbs * job.seq_len / cp


def sharded_tokens(job: Job, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any) -> Any:
    """Tokens of a rank outside tensor-parallel regions: a share of `tokens` under sequence parallelism.

    Without sequence parallelism every rank of the group computes norms and residuals of all of them.
    """
    return tokens(job, cp, mbs) / np.where(sequence_parallel, tp, 1)


def gemm_rate(job: Job, machine: Machine, quantised: bool = True) -> float:
    """FLOP/s that matrix products reach in the job's precision, or in BF16 where they are not quantised."""
    form = PRECISION_CLASS[job.precision] if quantised else "bf16"
    rate = machine.matrix_flops[form] * machine.calibration[f"gemm_{form}_fraction"]  # type: ignore[index]
    blockwise = quantised and job.precision == "fp8_block"
    return rate * (machine.calibration["fp8_block_factor"] if blockwise else 1.0)


def stream_rate(machine: Machine) -> Any:
    """Bytes a second of kernels that read and write long runs of memory."""
    return machine.hbm_bytes_per_second * machine.calibration["stream_fraction"]


def gemm(
    job: Job, machine: Machine, m: Any, n: Any, k: Any, *, groups: Any = 1, quantised: bool = True
) -> Pass:
    """Seconds of one linear layer: ``m`` tokens over all ``groups`` weights of ``n`` outputs and ``k`` inputs.

    Forward and data gradient take the larger of arithmetic and weight stream, plus the write of their output;
    the weight gradient adds a read and a write of the main gradient (8 bytes a weight in FP32, 4 in BF16).
    """
    form = PRECISION_CLASS[job.precision] if quantised else "bf16"
    stream = stream_rate(machine)
    arithmetic = 2.0 * m * n * k / gemm_rate(job, machine, quantised)
    weights = 1.0 * groups * n * k
    product = np.maximum(arithmetic, weights * WEIGHT_BYTES[form] / stream)
    accumulate = (8.0 if job.settings.grad_dtype == "fp32" else 4.0) * weights / stream
    backward = product + 2.0 * m * k / stream + arithmetic + accumulate
    return Pass(product + 2.0 * m * n / stream, backward)


def gemm_launches(job: Job, machine: Machine, count: Any, quantised: bool = True) -> Pass:
    """Framework ops of ``count`` linear layers: one forward, two backward, more where operands are quantised."""
    factor = machine.calibration["fp8_launch_factor"] if quantised and job.quantised else 1.0
    return Pass(count * factor, 2.0 * count * factor)


def quantise_bytes(job: Job, machine: Machine) -> float:
    """Bytes moved to quantise one element: the BF16 read, the row and column copies, and the amax pass.

    Current scaling reads twice on Hopper, where no kernel fuses the amax with the cast.
    """
    current = 6.0 if machine.generation == "hopper" else 4.0
    return {
        "fp8_cs": current,
        "fp8_delayed": 4.0,
        "fp8_block": 5.0,
        "mxfp8": 6.0,
        "nvfp4": 8.0,
    }.get(job.precision, 0.0)


def quantise(job: Job, machine: Machine, m: Any, n: Any, k: Any) -> Pass:
    """Seconds to quantise the inputs (forward) and the output gradients (backward) of a linear layer."""
    each = quantise_bytes(job, machine)
    return moved(machine, each * m * k, each * m * n)


def moved(machine: Machine, forward_bytes: Any, backward_bytes: Any, moe: bool = False) -> Pass:
    """Seconds of a memory-bound kernel that moves so many bytes; MoE kernels reach a lower share of the HBM."""
    share = machine.calibration["moe_memory_fraction" if moe else "elementwise_fraction"]
    rate = machine.hbm_bytes_per_second * share
    return Pass(forward_bytes / rate, backward_bytes / rate)


def collective_rate(machine: Machine, topology: Topology, group: Any, stride: Any = 1) -> Any:
    """Bytes a second that a collective reaches for one rank of a group: a share of the network that joins it."""
    c = machine.calibration
    share = np.where(topology.inside(group, stride), c["collective_fraction"], c["scaleout_fraction"])
    return topology.bytes_per_second(group, stride) * share


def tensor_parallel(
    job: Job, machine: Machine, topology: Topology, hidden_size: int, tp: Any, cp: Any, mbs: Any
) -> Pass:
    """Exposed seconds of the tensor-parallel collectives of one sub-block.

    Sequence parallelism: an all-gather and a reduce-scatter forward, and of the three backward passes 1.6 are
    exposed, the rest hides behind weight and data gradients. Without it an all-reduce each way moves the bytes
    of two passes, so both styles are priced alike.
    """
    rate = collective_rate(machine, topology, tp)
    one = tokens(job, cp, mbs) * hidden_size * 2.0 * (tp - 1) / tp / rate + COLLECTIVE_LATENCY
    shown = 1.0 - (machine.calibration["tp_overlap_hidden"] if job.settings.tp_comm_overlap else 0.0)
    return Pass(2.0 * one * shown, 1.6 * one * shown).where(np.asarray(tp) > 1)


def tensor_parallel_launches(tp: Any) -> Pass:
    """Framework ops of those collectives."""
    return Pass(2.0, 3.0).where(np.asarray(tp) > 1)
