"""What a published row measured: seconds and bytes, each of the moment that it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Figures", "figures_of"]

GB, GIB = 1e9, 2**30


@dataclass(frozen=True)
class Figures:
    """What was measured; None where it was not.

    Parameters
    ----------
    step_seconds : one optimizer step, or all forward and backward passes of one rank (``passes_only``).
    between_bytes, peak_bytes : allocated between steps, and at the peak of a step.
    peaks_by_rank : peak of every global rank, where each is known.
    stage : pipeline rank of the memory figures: an index, -1 for the last, None for the fullest.
    passes_only : whether ``step_seconds`` leaves out the optimizer and all communication.
    reserved_bytes : reserved by the allocator at the peak of a step.
    tflops_per_gpu : as the stack counts them; where no FLOPs of a token are told, good for ratios only.
    """

    step_seconds: float | None = None
    between_bytes: float | None = None
    peak_bytes: float | None = None
    peaks_by_rank: tuple[float, ...] = ()
    stage: int | None = None
    passes_only: bool = False
    reserved_bytes: float | None = None
    tflops_per_gpu: float | None = None

    def any(self) -> bool:
        """Whether there is anything to compare with."""
        return any(v is not None for v in (self.step_seconds, self.between_bytes, self.peak_bytes))


def figures_of(row: Mapping[str, Any]) -> Figures:
    """The figures of a published row, in bytes and seconds."""
    note = f"{row.get('mem_note') or ''} {row.get('mem_unit_src') or ''}"
    allocated, static = row.get("mem_allocated_gb"), row.get("mem_static_gb")
    peak = None if allocated is None else allocated * GB
    between = None if static is None else static * GB
    if re.search(r"current-vs-peak not stated|not say peak or current|between steps", note):
        # Such figures turned out to be the state between steps.
        peak, between = None, peak
    elif "kind not stated" in note:
        peak = None
    by_rank = tuple(v * GIB for v in row.get("mem_per_rank_allocated_gib") or ())
    peak = max(by_rank) if peak is None and by_rank else peak
    stage = -1 if "last global rank" in note else 0 if re.search(r"\brank[- ]0\b", note) else None
    reserved = row.get("mem_reserved_gb")
    return Figures(
        _seconds(row),
        between,
        peak,
        by_rank,
        stage,
        reserved_bytes=None if reserved is None else reserved * GB,
        tflops_per_gpu=row.get("tflops_per_gpu") or None,
    )


def _seconds(row: Mapping[str, Any]) -> float | None:
    """Step time: as stated, else from TFLOP/s and FLOPs a token, which round less than tokens a second."""
    extra = row.get("extra") or {}
    if row.get("step_time_ms"):
        return float(row["step_time_ms"]) / 1e3
    sizes = [row.get(name) for name in ("gbs", "seq_len", "gpus")]
    if all(sizes):
        gbs, seq, gpus = (float(s) for s in sizes if s)
        if row.get("tflops_per_gpu") and extra.get("gflops_per_token"):
            flops = float(extra["gflops_per_token"]) * 1e9 * gbs * seq
            return float(flops / (row["tflops_per_gpu"] * 1e12 * gpus))
        if row.get("tokens_per_s_per_gpu"):
            return float(gbs * seq / (float(row["tokens_per_s_per_gpu"]) * gpus))
    if extra.get("derived_step_time_ms"):
        return float(extra["derived_step_time_ms"]) / 1e3
    return None
