"""The counts of a moment: how many of everything a pipeline rank holds at it, by name and column."""

from __future__ import annotations

from typing import Final

import numpy as np

from mbsolve.constraints.placement import STAGE_COUNTS
from mbsolve.constraints.schedule import Ints

__all__ = ["COLUMN", "HELD", "MOMENT_COUNTS", "POOL", "POOLED", "ZERO", "at"]

# Counts that exist beside the stage counts, for memory rows only.
LIVE = (
    "live_attention",
    "live_gdn",
    "live_mamba",
    "live_dense",
    "live_moe",
    "live_mtp",
    "live_unit",
    "live_head",
    "live_logits",
)
STALE = ("stale_moe", "stale_unit")
# The most layer halves that are ever held at once: what graphs captured for them keep through the whole step.
POOL = ("pool_attention", "pool_gdn", "pool_mamba", "pool_dense", "pool_moe")
AT = (
    "at_forward_attention",
    "at_forward_gdn",
    "at_forward_mamba",
    "at_forward_dense",
    "at_forward_moe",
    "at_nograd_attention",
    "at_nograd_gdn",
    "at_nograd_mamba",
    "at_nograd_dense",
    "at_nograd_moe",
    "at_backward_dense",
    "at_backward_moe",
    "at_backward_attention",
    "at_backward_gdn",
    "at_backward_mamba",
    "at_loss",
    "at_loss_backward",
    "at_embedding_grad",
    "at_rest",
    "at_optimizer",
    "p2p",
    "received",
    "rest_moe",
    # Stage counts again, at the optimizer step only.
    "step_attention",
    "step_gdn",
    "step_mamba",
    "step_dense",
    "step_moe",
    "step_mtp",
    "step_embedding",
    "step_head",
    # And again, from the optimizer step to the next forward.
    "after_attention",
    "after_gdn",
    "after_mamba",
    "after_dense",
    "after_moe",
    "after_mtp",
    "after_embedding",
    "after_head",
)
MOMENT_COUNTS = STAGE_COUNTS + LIVE + STALE + POOL + AT
COLUMN = {name: i for i, name in enumerate(MOMENT_COUNTS)}
POOLED: Final = [COLUMN[name] for name in POOL]
HELD: Final = [COLUMN[name.replace("pool", "live")] for name in POOL]

ZERO = np.zeros(len(MOMENT_COUNTS), np.int64)


def at(name: str) -> Ints:
    """One of a count, and none of the others."""
    v = np.zeros(len(MOMENT_COUNTS), np.int64)
    v[COLUMN[name]] = 1
    return v
