"""Prices on memory: what they answer to, and how far they move in a round of the dual."""

from __future__ import annotations

import numpy as np

from mbsolve.solver.tables import Floats


def active(over: Floats, price: Floats) -> Floats:
    """The part of an excess that a price answers to: what is over, and what is priced already."""
    return ((over > 0) | (price > 0)) * over


def stride(
    value: Floats,
    estimate: Floats,
    target: float,
    over: Floats,
    over_host: Floats,
    device: Floats,
    host: Floats,
) -> Floats:
    """Length of the next price step (Polyak), towards the target or the best that fitted."""
    aim = target if np.isfinite(target) else 0.0
    # Where nothing fitted yet the prices must keep growing: the shape may not fit at all.
    goal = np.maximum(aim, np.where(np.isfinite(estimate), estimate, np.abs(value) * 1.5))
    with np.errstate(invalid="ignore"):
        gap = np.maximum(goal * 1.005 - value, 1e-3 * np.abs(value))
    norm = (active(over, device) ** 2).sum(axis=1) + (active(over_host, host) ** 2).sum(axis=1)
    return np.where(np.isfinite(gap) & (norm > 0), gap / np.maximum(norm, 1e-12), 0.0)[:, None]
