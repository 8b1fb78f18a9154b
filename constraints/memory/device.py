"""What the driver counts beside the allocator: context, communicators and the allocator's slack."""

from __future__ import annotations

import numpy as np

from mbsolve.constraints.memory.constants import constant, source_of
from mbsolve.constraints.memory.sizes import Value
from mbsolve.constraints.rule import Term, term


@term("context.cuda", row="context_bytes", per="one", source=source_of("cuda_context"))
def cuda_context() -> Value:
    """CUDA context and library handles."""
    return float(constant("cuda_context"))


@term("context.communicators", row="context_bytes", per="one", source=source_of("communicator"))
def communicators(tp: Value, cp: Value, dp: Value, pp: Value, ep: Value, edp: Value) -> Value:
    """Buffers of the communicators in use: the world, and each parallel dimension above 1."""
    kinds: Value = 1.0
    for size in (tp, cp, dp, pp, ep, edp):
        kinds = kinds + (np.asarray(size) > 1)
    return constant("communicator") * kinds


def reserved_permille() -> int:
    """Bytes that the allocator reserves at the peak, in thousandths of those allocated.

    Source: ``reserved_permille`` in ``constraints/data/memory.yaml``.
    """
    return int(constant("reserved_permille"))


def reserved_factor() -> float:
    """`reserved_permille` as a ratio."""
    return reserved_permille() / 1000


DEVICE_TERMS: tuple[Term, ...] = (cuda_context, communicators)
