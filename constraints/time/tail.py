"""What follows the last micro-batch: the optimizer, its offload to the host, and the fixed cost of a step."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.sizes import STATE_BYTES
from mbsolve.constraints.rule import Source, Term, term
from mbsolve.constraints.time.comm import parameters_of_rank
from mbsolve.constraints.time.rates import CHOSEN, FIT
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model

OFFLOAD_AB: Final = Source("published optimizer-offload A/B rows")

ADAM_BYTES: Final = 30.0
"""Bytes of one Adam update in FP32: gradient 4, weight and both moments read and written 24, BF16 weight 2."""

GRADIENT_BYTES: Final = 8.0
"""Bytes for each local parameter to zero and cast gradients and copy weights."""

LINK_BYTES: Final = 6.0
"""Bytes for each offloaded parameter over the host link: the FP32 gradient down, the BF16 weight up."""


def optimizer_share(
    job: Job, model: Model, tp: Any, cp: Any, pp: Any, ep: Any, etp: Any, dp: Any, edp: Any
) -> Any:
    """Parameters that the mean rank updates: its shard, or all it holds without the distributed optimizer."""
    dense, expert = parameters_of_rank(model, tp, pp, ep, etp)
    if not job.settings.distributed_optimizer:
        return dense + expert
    return dense / (dp * cp) + expert / edp


def adam_bytes(job: Job, precision_aware_optimizer: Any) -> Any:
    """Bytes of one update; the precision-aware optimizer keeps its states in the dtypes of the job."""
    settings = job.settings
    saved = 4 * (4 - STATE_BYTES[settings.moment_dtype]) + 2 * (4 - STATE_BYTES[settings.main_param_dtype])
    return ADAM_BYTES - saved * np.asarray(precision_aware_optimizer, float)


def _stream(machine: Machine) -> float:
    return machine.hbm_bytes_per_second * machine.calibration["optimizer_stream_fraction"]


@term("optimizer.update", row="tail", per="one", source=CHOSEN)
def update(
    job: Job,
    model: Model,
    machine: Machine,
    tp: Any,
    cp: Any,
    pp: Any,
    ep: Any,
    etp: Any,
    dp: Any,
    edp: Any,
    optimizer_offload_fraction: Any,
    precision_aware_optimizer: Any,
) -> Any:
    """Adam on the device over the part of the shard that is not offloaded."""
    own = optimizer_share(job, model, tp, cp, pp, ep, etp, dp, edp)
    kept = 1.0 - np.asarray(optimizer_offload_fraction, float)
    return own * kept * adam_bytes(job, precision_aware_optimizer) / _stream(machine)


@term("optimizer.gradients", row="tail", per="one", source=CHOSEN)
def gradients(model: Model, machine: Machine, tp: Any, pp: Any, ep: Any, etp: Any) -> Any:
    """Zeroing and casting gradients and copying weights, over all local parameters."""
    dense, expert = parameters_of_rank(model, tp, pp, ep, etp)
    return (dense + expert) * GRADIENT_BYTES / _stream(machine)


@term("optimizer.offload", row="tail", per="one", source=OFFLOAD_AB)
def offload(
    job: Job,
    model: Model,
    machine: Machine,
    tp: Any,
    cp: Any,
    pp: Any,
    ep: Any,
    etp: Any,
    dp: Any,
    edp: Any,
    optimizer_offload_fraction: Any,
) -> Any:
    """Adam on the host over the offloaded part of the shard, with its transfers and its fixed cost."""
    c, fraction = machine.calibration, np.asarray(optimizer_offload_fraction, float)
    moved = optimizer_share(job, model, tp, cp, pp, ep, etp, dp, edp) * fraction
    seconds = moved / c["cpu_adam_params_per_second"]
    seconds = seconds + moved * LINK_BYTES / c["optimizer_offload_link_bytes_per_second"]
    return np.where(fraction > 0, c["optimizer_offload_fixed_seconds"] + seconds, 0.0)


@term("fixed.step", row="tail", per="one", source=FIT)
def fixed(machine: Machine) -> Any:
    """Data, logging, gradient norm and synchronisation, once a step."""
    return machine.calibration["fixed_seconds"]


TAIL_TERMS: Final[tuple[Term, ...]] = (update, gradients, offload, fixed)
