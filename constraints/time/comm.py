"""Communication outside the layers: gradients, parameters, and the transfers between pipeline stages."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Term, term
from mbsolve.constraints.time.rates import CHOSEN, FIT, collective_rate, sharded_tokens
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model
from mbsolve.models.counts import embedding_parameters, layer_parameters, mtp_extra_parameters

TRANSFERS: Final = 4
"""Stage-to-stage transfers of a chunk and micro-batch: a send and a receive, forward and backward."""

TRANSFER_LATENCY: Final = 10e-6
"""Seconds of one stage-to-stage transfer beside its bytes."""


def parameters_of_rank(model: Model, tp: Any, pp: Any, ep: Any, etp: Any) -> tuple[Any, Any]:
    """(dense, expert) parameters of the mean pipeline rank, with one vocabulary matrix beside its layers."""
    kinds = Counter(model.layers())
    kinds[model.mtp_layer()] += model.mtp_num_layers
    tp, ep, etp = np.asarray(tp), np.asarray(ep), np.asarray(etp)
    dense = mtp_extra_parameters(model, tp) * model.mtp_num_layers
    expert: Any = 0.0
    for kind, count in kinds.items():
        mine = layer_parameters(model, kind, tp, ep, etp)
        dense = dense + count * mine.dense
        expert = expert + count * mine.expert
    return dense / pp + embedding_parameters(model, tp), expert / pp


def _collective(
    machine: Machine, topology: Topology, parameters: Any, bytes_each: float, group: Any, stride: Any
) -> Any:
    """Seconds of a reduce-scatter or all-gather of so many parameters."""
    rate = collective_rate(machine, topology, group, stride)
    return parameters * bytes_each * (np.asarray(group) - 1) / group / rate


def _gradient_bytes(job: Job) -> float:
    """Bytes of one gradient; a plain all-reduce, without the distributed optimizer, moves them twice."""
    each = 4.0 if job.settings.grad_dtype == "fp32" else 2.0
    return each if job.settings.distributed_optimizer else 2.0 * each


def _parameter_bytes(job: Job) -> float:
    """Bytes of one gathered parameter; nothing is gathered without the distributed optimizer."""
    if not job.settings.distributed_optimizer:
        return 0.0
    return 1.0 if job.settings.fp8_param else 2.0


@term("dp.grad_reduce.dense", row="grad_reduce", per="one", source=FIT)
def dense_gradients(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, pp: Any, dp: Any
) -> Any:
    """Reduce-scatter of the dense gradients over data and context parallelism."""
    dense, _ = parameters_of_rank(model, tp, pp, 1, 1)
    return _collective(machine, topology, dense, _gradient_bytes(job), dp * cp, tp)


@term("dp.grad_reduce.expert", row="grad_reduce", per="one", source=FIT)
def expert_gradients(
    job: Job, model: Model, machine: Machine, topology: Topology, pp: Any, ep: Any, etp: Any, edp: Any
) -> Any:
    """Reduce-scatter of the expert gradients over expert data parallelism."""
    _, expert = parameters_of_rank(model, 1, pp, ep, etp)
    return _collective(machine, topology, expert, _gradient_bytes(job), edp, ep * etp)


@term("dp.param_gather.dense", row="param_gather", per="one", source=FIT)
def dense_parameters(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, pp: Any, dp: Any
) -> Any:
    """All-gather of the dense parameters over data and context parallelism."""
    dense, _ = parameters_of_rank(model, tp, pp, 1, 1)
    return _collective(machine, topology, dense, _parameter_bytes(job), dp * cp, tp)


@term("dp.param_gather.expert", row="param_gather", per="one", source=FIT)
def expert_parameters(
    job: Job, model: Model, machine: Machine, topology: Topology, pp: Any, ep: Any, etp: Any, edp: Any
) -> Any:
    """All-gather of the expert parameters over expert data parallelism."""
    _, expert = parameters_of_rank(model, 1, pp, ep, etp)
    return _collective(machine, topology, expert, _parameter_bytes(job), edp, ep * etp)


@term("pipeline.transfer", row="transfer", per="chunks", source=CHOSEN)
def stage_transfer(
    job: Job,
    model: Model,
    machine: Machine,
    topology: Topology,
    tp: Any,
    cp: Any,
    mbs: Any,
    sequence_parallel: Any,
) -> Any:
    """Exposed sends and receives of one chunk; over the scale-out network unless the job fits one domain."""
    inside = job.gpus <= topology.domain_gpus
    network = machine.domain_network if inside else machine.scaleout_network
    size = 2.0 * model.hidden_size * sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    one = size / network.bytes_per_second + TRANSFER_LATENCY
    return TRANSFERS * machine.calibration["p2p_exposed_fraction"] * one


COMM_TERMS: Final[tuple[Term, ...]] = (
    dense_gradients,
    expert_gradients,
    dense_parameters,
    expert_parameters,
    stage_transfer,
)
