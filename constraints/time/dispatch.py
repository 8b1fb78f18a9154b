"""Moving tokens to their experts and back: one pass of each dispatcher."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.rates import (
    COLLECTIVE_LATENCY,
    NOTHING,
    Pass,
    collective_rate,
    sharded_tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model

ALLTOALL_LATENCY: Final = 20e-6
"""Seconds of one pass of the all-to-all dispatcher beside its bytes."""

FLEX_LATENCY: Final = 15e-6
"""Seconds of one pass of DeepEP or HybridEP beside its bytes."""


def choose(dispatcher: Any, *, alltoall: Any, deepep: Any, hybridep: Any, allgather: Any) -> Any:
    """The value of the dispatcher in use, scalar or array."""
    kind = np.asarray(dispatcher)
    flex = np.where(kind == "hybridep", hybridep, deepep)
    return np.where(kind == "alltoall", alltoall, np.where(kind == "allgather", allgather, flex))


def imbalance(job: Job) -> float:
    """Load of the busiest expert rank relative to the mean: 1 under forced balance."""
    natural = job.settings.routing == "natural"
    return job.machine.calibration["natural_routing_factor"] if natural else 1.0


def routed_tokens(job: Job, model: Model, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any) -> Any:
    """Token copies that a rank's experts work on: ``top-k`` for each of its tokens, times the imbalance."""
    own = sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    return own * (model.moe_topk or 0) * imbalance(job)


def _spread(topology: Topology, ep: Any, etp: Any) -> Any:
    """Domains that an expert-parallel group touches; its ranks stand every ``etp`` GPUs."""
    inside = np.maximum(1, topology.domain_gpus // np.asarray(etp))
    return np.maximum(1.0, ep / np.minimum(ep, inside))


def _all_to_all(machine: Machine, topology: Topology, top: int, one: Any, ep: Any, etp: Any) -> Any:
    """Every copy of a token travels alone: the part inside the domain, then the part across."""
    c, domains = machine.calibration, _spread(topology, ep, etp)
    fast = machine.domain_network.bytes_per_second * c["alltoall_fraction"]
    slow = machine.scaleout_network.bytes_per_second * c["scaleout_fraction"]
    inside = one * top * (ep - 1) / ep / domains / fast
    return inside + one * top * (1 - 1 / domains) / slow + ALLTOALL_LATENCY


def _flex(
    machine: Machine, topology: Topology, model: Model, share: float, one: Any, ep: Any, etp: Any
) -> Any:
    """One copy for each distinct destination: NVLink and scale-out work at the same time.

    Group-limited routing reaches at most its number of groups, which are laid on domains.
    """
    top, domains = model.moe_topk or 0, _spread(topology, ep, etp)
    ranks = ep * (1 - (1 - 1 / ep) ** top)
    hit = domains * (1 - (1 - 1 / domains) ** top)
    if model.router_group_topk:
        hit = np.where(domains > 1, np.minimum(hit, model.router_group_topk), hit)
    slow = machine.scaleout_network.bytes_per_second * machine.calibration["scaleout_fraction"]
    inside = one * ranks * (ep - 1) / ep / (machine.domain_network.bytes_per_second * share)
    return np.maximum(inside, one * hit * (1 - 1 / domains) / slow) + FLEX_LATENCY


def dispatch(
    job: Job,
    model: Model,
    machine: Machine,
    topology: Topology,
    tp: Any,
    cp: Any,
    ep: Any,
    etp: Any,
    mbs: Any,
    sequence_parallel: Any,
    dispatcher: Any,
) -> Pass:
    """Dispatch and combine over the expert-parallel group, forward and again backward.

    The all-gather dispatcher, which the fit has not seen, gathers the tokens of the whole expert group (``ep``
    times ``etp`` ranks) and reduce-scatters them back at the rate of a collective, whatever the routing.
    """
    if not model.is_moe:
        return NOTHING
    c = machine.calibration
    one = sharded_tokens(job, tp, cp, mbs, sequence_parallel) * model.routed_width * 2.0
    group = np.asarray(ep) * np.asarray(etp)
    gathered = one * (group - 1) / collective_rate(machine, topology, group) + COLLECTIVE_LATENCY
    load = imbalance(job)
    seconds = choose(
        dispatcher,
        alltoall=_all_to_all(machine, topology, model.moe_topk or 0, one, ep, etp) * load,
        deepep=_flex(machine, topology, model, c["deepep_fraction"], one, ep, etp) * load,
        hybridep=_flex(machine, topology, model, c["hybridep_fraction"], one, ep, etp) * load,
        allgather=gathered,
    )
    return Pass(2.0 * seconds, 2.0 * seconds).where(_communicates(ep, etp, dispatcher))


def _communicates(ep: Any, etp: Any, dispatcher: Any) -> Any:
    """Whether the dispatcher has anyone to talk to; only all-gather serves ``etp`` as well."""
    gathers = np.asarray(dispatcher) == "allgather"
    return np.where(gathers, np.asarray(ep) * np.asarray(etp), ep) > 1


def dispatch_launches(model: Model, ep: Any, etp: Any, dispatcher: Any) -> Pass:
    """Framework ops of dispatch and combine."""
    return Pass(2.0, 2.0).where(_communicates(ep, etp, dispatcher)) if model.is_moe else NOTHING


def expert_tensor_parallel(
    job: Job,
    model: Model,
    machine: Machine,
    topology: Topology,
    tp: Any,
    cp: Any,
    etp: Any,
    mbs: Any,
    sequence_parallel: Any,
    dispatcher: Any,
) -> Pass:
    """All-gather and reduce-scatter of routed tokens over expert tensor parallelism.

    Priced as a tensor-parallel collective with nothing hidden: ours, the published rows have ``etp`` 1 only.
    """
    if not model.is_moe:
        return NOTHING
    routed = routed_tokens(job, model, tp, cp, mbs, sequence_parallel)
    rate = collective_rate(machine, topology, etp)
    one = routed * model.routed_width * 2.0 * (etp - 1) / rate + COLLECTIVE_LATENCY
    return Pass(2.0 * one, 2.0 * one).where(_gathers_apart(etp, dispatcher))


def _gathers_apart(etp: Any, dispatcher: Any) -> Any:
    return (np.asarray(etp) > 1) & (np.asarray(dispatcher) != "allgather")


def expert_tensor_launches(model: Model, etp: Any, dispatcher: Any) -> Pass:
    """Framework ops of those collectives."""
    return Pass(2.0, 2.0).where(_gathers_apart(etp, dispatcher)) if model.is_moe else NOTHING
