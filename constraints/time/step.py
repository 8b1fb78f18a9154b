"""From rows to a step: how the device and host times of the stages add up.

Everything here exists twice only in the number it is fed: floating seconds for a report, whole quanta for
the solver. The laws themselves (soft maximum, exposure, pipeline) are written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from mbsolve.constraints.job import Job

SOFT_SCALE: Final = 1 << 14
_ANGLES: Final = 16
HIDDEN_HOST: Final = 0.2
"""Host time of a pass, as a share of its device time, up to which the launches run ahead and cost nothing at all."""


def _tangents(norm: float) -> tuple[tuple[int, int], ...]:
    """Tangents of ``(device**n + host**n)**(1/n)`` at evenly spaced directions, in units of 1/SOFT_SCALE.

    Those that would charge for a host within `HIDDEN_HOST` are left out.
    """
    out = []
    for i in range(_ANGLES + 1):
        angle = math.pi / 2 * i / _ANGLES
        device, host = math.cos(angle), math.sin(angle)
        size = (device**norm + host**norm) ** (1 / norm)
        a, b = (device / size) ** (norm - 1), (host / size) ** (norm - 1)
        # A gain that exists on the curve only must not buy graphs for a pass that waits for no launch.
        if not i or a + b * HIDDEN_HOST <= 1:
            out.append((round(SOFT_SCALE * a), round(SOFT_SCALE * b)))
    return tuple(out)


# The exponent 3 is a choice of the fit (docs/accuracy.md): adding host and device doubles the error, a hard
# maximum adds 15% to it. The tangents stay within 0.4% of the smooth curve.
TANGENTS: Final = _tangents(3.0)


def soft_max(device: float, host: float) -> float:
    """Time of a pass whose device work and host launches overlap: the largest of the tangents."""
    return max(a * device + b * host for a, b in TANGENTS) / SOFT_SCALE


def soft_max_quanta(device: int, host: int) -> int:
    """`soft_max` in whole quanta, rounded up."""
    return max(-(-(a * device + b * host) // SOFT_SCALE) for a, b in TANGENTS)


def exposure(job: Job, pp: int, vpp: int, overlapped: bool) -> tuple[float, float]:
    """(least exposed share, micro-batches of the first stage that hide it) of a data-parallel collective.

    Without overlap everything is exposed. Without virtual stages a rank's last backward hides the gradients of the
    layers that it has left behind. With them the gradients of a chunk are ready while the last ``pp`` micro-batches
    still pass the rank's other chunks. Parameters come in the same way before the first micro-batches.
    """
    if not overlapped:
        return 1.0, 0.0
    c = job.machine.calibration
    passing = 1.0 if vpp == 1 else max(1.0, pp * (vpp - 1) / vpp)
    return c["dp_exposed_fraction"], c["dp_window_fraction"] * passing


def exposed(total: float, share: float, hides: float, window: float) -> float:
    """Seconds of a data-parallel collective that the step waits for."""
    return max(share * total, total - hides * window)


@dataclass(frozen=True)
class StagePass:
    """Seconds of one micro-batch on one pipeline rank."""

    forward_device: float
    forward_host: float
    backward_device: float
    backward_host: float
    transfer: float

    def times(self, factor: float) -> StagePass:
        """The same passes, so many times as long."""
        return StagePass(*(factor * getattr(self, f.name) for f in fields(self)))

    @property
    def forward(self) -> float:
        """Forward pass."""
        return soft_max(self.forward_device, self.forward_host)

    @property
    def backward(self) -> float:
        """Backward pass, recompute included."""
        return soft_max(self.backward_device, self.backward_host)

    @property
    def forward_window(self) -> float:
        """What a forward pass takes at least: behind it parameters can be gathered."""
        return max(self.forward_device, self.forward_host)

    @property
    def backward_window(self) -> float:
        """What a backward pass takes at least: behind it gradients can be reduced."""
        return max(self.backward_device, self.backward_host)

    @property
    def total(self) -> float:
        """One micro-batch, forward and backward, with its exposed transfer."""
        return self.forward + self.backward + self.transfer


@dataclass(frozen=True)
class Step:
    """The parts of a step, in seconds; they add up to `seconds`."""

    pipeline: float
    bubble: float
    grad_reduce: float
    param_gather: float
    tail: float
    slowest: int

    def times(self, factor: float) -> Step:
        """The same step, so many times as long."""
        scaled = {f.name: factor * getattr(self, f.name) for f in fields(self) if f.name != "slowest"}
        return replace(self, **scaled)

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.pipeline + self.bubble + self.grad_reduce + self.param_gather + self.tail


def step_of(
    job: Job,
    pp: int,
    vpp: int,
    microbatches: int,
    stages: Sequence[StagePass],
    grad_reduce: float,
    param_gather: float,
    tail: float,
) -> Step:
    """Step time of interleaved 1F1B: the slowest stage sets the pace, the bubble is the mean stage's.

    Collectives of the gradients and parameters hide behind passes of the first stage.
    """
    totals = [s.total for s in stages]
    slowest = max(range(len(totals)), key=totals.__getitem__)
    reduce_share, reduce_hides = exposure(job, pp, vpp, job.settings.overlap_grad_reduce)
    gather_share, gather_hides = exposure(job, pp, vpp, job.settings.overlap_param_gather)
    return Step(
        pipeline=microbatches * totals[slowest],
        bubble=(pp - 1) / vpp * sum(totals) / len(totals),
        grad_reduce=exposed(grad_reduce, reduce_share, reduce_hides, stages[0].backward_window),
        param_gather=exposed(param_gather, gather_share, gather_hides, stages[0].forward_window),
        tail=tail,
        slowest=slowest,
    )
