"""What EP overlap hides of moving tokens: two micro-batches take turns, one computes while the other communicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.core_attention import core
from mbsolve.constraints.time.dispatch import dispatch
from mbsolve.constraints.time.experts import experts
from mbsolve.constraints.time.rates import Pass
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model


def exposed_dispatch(
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
    ep_overlap: Any,
    dispatcher: Any,
) -> Pass:
    """Exposed dispatch and combine over the expert-parallel group, forward and again backward.

    With EP overlap a share of it is hidden, but never more than the other micro-batch computes meanwhile: its experts,
    and its attention where a layer has both.
    """
    whole = dispatch(job, model, machine, topology, tp, cp, ep, etp, mbs, sequence_parallel, dispatcher)
    if not model.is_moe:
        return whole
    beside = experts(job, model, machine, tp, cp, ep, etp, mbs, sequence_parallel)
    if not model.hybrid:
        beside = beside.plus(core(job, model, machine, tp, cp, mbs))
    most = machine.calibration["ep_overlap_hidden"]
    pairs = zip(whole, beside, strict=True)
    overlapped = (np.maximum((1.0 - most) * moved, moved - work) for moved, work in pairs)
    on = np.asarray(ep_overlap, bool)
    return Pass(*(np.where(on, less, moved) for less, moved in zip(overlapped, whole, strict=True)))
