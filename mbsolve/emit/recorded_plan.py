"""The parallel configuration of a published row, in our fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mbsolve.constraints.placement import PlacementError
from mbsolve.constraints.rules.layout import virtual_stage_texts
from mbsolve.constraints.vocabulary import (
    DISPATCHERS,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
)
from mbsolve.emit.recorded import counted_ends
from mbsolve.emit.small_models import Unmodelled

__all__ = ["PER_STEP", "recorded_plan"]

# Without these only what is held between steps can be told, which does not depend on them: size -> stand-in.
PER_STEP: Final[Mapping[str, int]] = {"seq_len": 4096, "mbs": 1}


def _listed(row: Mapping[str, Any], name: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    listed = tuple(row.get(name) or ())
    for one in listed:
        if one not in known:
            raise Unmodelled(f"{what} {one} is not modelled")
    return listed


def _word(row: Mapping[str, Any], name: str, known: Sequence[str]) -> str | None:
    word: str | None = row.get(name)
    if word is not None and word not in known:
        raise Unmodelled(f"{name} {word} is not known")
    return word


def _vpp_of_layout(row: Mapping[str, Any]) -> int:
    """Virtual stages of a rank in a row's layout; 1 without one."""
    if not row.get("pp_layout"):
        return 1
    try:
        return max(1, len(virtual_stage_texts(row["pp_layout"])) // int(row["pp"]))
    except PlacementError:
        return 1  # for the placement to say


def recorded_plan(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the plan that a row records; what it leaves open is as it most likely ran.

    Raises
    ------
    Unmodelled
        naming what is not modelled.
    """
    scope = row.get("cuda_graph_scope") or ()
    impl = _word(row, "cuda_graph_impl", GRAPH_IMPLS) or "none"
    if "full_iteration" in scope:
        # An implementation since; a scope in older releases.
        impl, scope = "full_iteration", ()
    modules = _listed(row, "recompute_modules", RECOMPUTE_MODULES, "recompute of")
    granularity = row.get("recompute_granularity") or ("selective" if modules else None)
    out = {
        "tp": row["tp"],
        "cp": row["cp"],
        "pp": row["pp"],
        "vpp": row.get("vpp") or _vpp_of_layout(row),
        "ep": row.get("ep") or 1,
        "etp": row.get("etp"),
        "mbs": row.get("mbs") or PER_STEP["mbs"],
        "sequence_parallel": None if row.get("sp") is None else bool(row["sp"]) and row["tp"] > 1,
        "pipeline_layout": row.get("pp_layout"),
        **counted_ends(row),
        "recompute_granularity": granularity,
        "recompute_modules": modules if granularity == "selective" else (),
        "dispatcher": _word(row, "dispatcher", DISPATCHERS) or "alltoall",
        "ep_overlap": bool(row.get("ep_overlap")),
        "delay_wgrad": bool(row.get("delay_wgrad")),
        "optimizer_offload_fraction": row.get("optimizer_offload_fraction") or 0.0,
        "activation_offload_layers": row.get("activation_offload_layers") or 0,
        "fine_grained_offload_modules": _listed(
            row, "fine_grained_offload_modules", OFFLOAD_MODULES, "offload of"
        ),
        "cuda_graph_impl": impl,
        "cuda_graph_scope": _listed({"s": scope}, "s", GRAPH_SCOPES, "a CUDA graph of"),
    }
    if granularity == "full":
        method = ((row.get("extra") or {}).get("arch") or {}).get("recompute_method")
        out |= {
            # One layer without a method is a checkpoint around each; a larger number, that many of a stage.
            "recompute_method": method
            or ("block" if (row.get("recompute_num_layers") or 1) > 1 else "uniform"),
            "recompute_num_layers": row.get("recompute_num_layers") or 1,
        }
    return {name: value for name, value in out.items() if value is not None}
