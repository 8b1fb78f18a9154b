"""The one rounding: seconds and bytes to whole quanta, always against the plan.

The solver compares whole numbers only; the plain evaluation can be asked for the very same numbers, so a
plan found and a plan checked agree with ``==``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

SECONDS_PER_QUANTUM: Final = 1e-8
BYTES_PER_QUANTUM: Final = 1024
# A value this close above a whole number (relative to a quantum) is that number: scalar and array arithmetic
# may differ in the last bit.
_SLACK: Final = 1e-6
PERMILLE: Final = 1000


def quanta(value: Any, unit: str) -> Any:
    """Whole quanta of ``value`` (``bytes`` or ``seconds``), rounded up; scalar or array."""
    size = BYTES_PER_QUANTUM if unit == "bytes" else SECONDS_PER_QUANTUM
    return np.ceil(np.asarray(value, float) / size - _SLACK).astype(np.int64)


def permille_up(share: float) -> int:
    """A share as a whole number of thousandths, rounded up."""
    return math.ceil(share * PERMILLE - _SLACK)


def permille_down(share: float) -> int:
    """A share as a whole number of thousandths, rounded down."""
    return math.floor(share * PERMILLE + _SLACK)
