"""Training steps of one rank of a job on one GPU, collectives faked: read into entries and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mbsolve.emit.figures import Figures
from mbsolve.emit.jobfile import Entry
from mbsolve.emit.measured import Measured
from mbsolve.emit.rowschema import OddRowError, probe_fields
from mbsolve.emit.small_models import Unmodelled

__all__ = ["probe_row"]

GIB = 2**30
HARDWARE: Final = "h200"
TIER: Final = "probe"
FP8: Final[Mapping[str, str]] = {
    "tensorwise": "fp8_cs",
    "current": "fp8_cs",
    "delayed": "fp8_delayed",
    "blockwise": "fp8_block",
    "mxfp8": "mxfp8",
}

ALIGNMENT: Final = 16
"""Rows of an expert that a quantised product of these recipes takes at a time."""

# What the job's settings can be, of the formats that a probe can have had.
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "grad_dtype": ("fp32", "bf16"),
    "main_param_dtype": ("fp32", "fp16"),
    "moment_dtype": ("fp32", "bf16", "fp16", "fp8"),
}

# The probed models balance their experts by force; only these configured an auxiliary loss beside it.
WITH_AUX_LOSS: Final = ("dsv3", "nemotron_3_nano", "qwen3_next")

# A pattern without E leaves these of the model's card unused.
WITHOUT_EXPERTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        ("num_experts", "moe_topk", "moe_ffn_hidden_size", "shared_expert_ffn_hidden_size"), None
    ),
    "router_score_function": "softmax",
    "aux_loss": False,
}


def probe_row(row: Mapping[str, Any]) -> Measured:
    """Read one probe; its memory is what it allocated itself, less what an earlier one of the process left behind."""
    try:
        row = probe_fields(row)
    except OddRowError as odd:
        return Measured(str(row.get("id")), TIER, "unknown", "unknown", None, None, reason=str(odd))
    inherited = (row.get("inherited_gib") or 0.0) * GIB
    out = Measured(
        id=str(row.get("id")),
        tier=TIER,
        hardware=str(row.get("hardware") or HARDWARE),
        precision="bf16" if not row.get("fp8") else "fp8",
        moe=bool(row.get("expert_params_this_rank")),
        knobs_recorded=True,
    )
    if row.get("outcome", "ok") != "ok":
        out.reason = f"the run ended with {row['outcome']}"
        return out
    if row.get("first_optimizer_collected") is False:
        out.reason = (
            "the offloaded optimizer that the stack builds twice was not collected yet the first time"
        )
        return out
    seconds = row.get("fwd_bwd_ms")
    between, reserved = row.get("between_steps_gib"), row.get("peak_reserved_gib")
    peak = row.get("peak_allocated_gib")
    out.figures = Figures(
        step_seconds=None if seconds is None else (seconds - (row.get("fill_ms") or 0.0)) / 1e3,
        between_bytes=None if between is None else between * GIB - inherited,
        peak_bytes=None if peak is None else peak * GIB - inherited,
        reserved_bytes=None if reserved is None else reserved * GIB - inherited,
        stage=int(row.get("pp_rank") or 0),
        passes_only=True,
    )
    if row.get("initialised") is False or row.get("collectives_filled") is False:
        out.no_time = "products of zeros run faster than those of a training step"
    try:
        out.entry = _entry(row, out)
        out.precision = str(out.entry.precision)
    except Unmodelled as why:
        out.reason = str(why)
    return out


def _entry(row: Mapping[str, Any], out: Measured) -> Entry:
    entry = Entry(out.id, hardware=out.hardware, target="bridge")
    fp8 = row.get("fp8")
    entry.precision = "bf16"
    if fp8:
        recipe = str(fp8.get("recipe"))
        if recipe not in FP8:
            raise Unmodelled(f"the FP8 recipe {recipe} is not modelled")
        entry.precision = FP8[recipe]
        entry.settings["fp8_param"] = bool(fp8.get("fp8_param"))
        # The faked peers route as this rank does, so each expert's rows are a multiple of their number: where that is
        # one of the quantised product's alignment, nothing is padded, as if the router had done it.
        if row.get("expert_params_this_rank") and (row.get("ep") or 1) % ALIGNMENT == 0:
            entry.settings["router_padding"] = True
    _optimizer(row, entry)
    changes: dict[str, Any] = {"mtp_num_layers": row.get("mtp_layers") or 0}
    changes["aux_loss"] = str(row["model"]) in WITH_AUX_LOSS
    if row.get("num_layers_override") is not None:
        changes["num_layers"] = int(row["num_layers_override"])
    if row.get("dense_first_layers") is not None:
        changes["first_k_dense"] = int(row["dense_first_layers"])
    changes |= _layers(row)
    entry.model = {"name": str(row["model"]), **changes}
    if row.get("layer_pattern") and "E" not in row["layer_pattern"]:
        entry.model_changes = dict(WITHOUT_EXPERTS)
    plan = {
        name: row.get(name)
        for name in (
            *("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "pipeline_layout"),
            *("recompute_granularity", "recompute_method", "recompute_num_layers"),
            *("activation_offload_layers", "optimizer_offload_fraction", "precision_aware_optimizer"),
            *("cuda_graph_impl", "dispatcher", "ep_overlap", "delay_wgrad"),
        )
    }
    for name in ("cp_comm_type", "expandable_segments"):
        if row.get(name) is not None:
            entry.settings[name] = row[name]
    if row.get("activation_offload_fraction") not in (None, 1.0):
        raise Unmodelled("offloading a part of the activations of a module is not modelled")
    for name in ("fine_grained_offload_modules", "cuda_graph_scope"):
        plan[name] = tuple(row.get(name) or ())
    plan["recompute_modules"] = tuple(row.get("recompute_modules") or ())
    plan["sequence_parallel"] = (row.get("tp") or 1) > 1
    if plan["recompute_granularity"] != "selective":
        plan["recompute_modules"] = ()
    entry.plan = {name: value for name, value in plan.items() if value is not None}
    dp = int(row["gpus"]) // ((row.get("tp") or 1) * (row.get("cp") or 1) * (row.get("pp") or 1))
    entry.sizes = {
        "gpus": int(row["gpus"]),
        "seq_len": int(row["seq_len"]),
        "gbs": int(row["num_microbatches"]) * dp * int(row.get("mbs") or 1),
    }
    return entry


def _layers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds of layers of a hybrid model, where they are others than the model's own."""
    linear, pattern = row.get("linear_attention_freq"), row.get("layer_pattern")
    if linear is not None:
        if not all(linear):
            raise Unmodelled("gated delta net layers in another order than the model's own are not modelled")
        # The last layer of a period has full attention.
        return {"linear_attention_period": len(linear) + 1}
    return {} if pattern is None else {"layer_pattern": pattern}


def _optimizer(row: Mapping[str, Any], entry: Entry) -> None:
    """Formats of the optimizer's state, and who keeps its master weights.

    A launcher hands its FP8 recipe to the optimizer also where nothing is quantised, and the precision-aware one
    keeps masters after it; the probes set it as one of the two launchers does.
    """
    for name, known in FORMATS.items():
        value = row.get(name)
        if value is None:
            continue
        if value not in known:
            raise Unmodelled(f"{name} {value} is not modelled")
        entry.settings[name] = value
    if row.get("store_param_remainders") is False:
        raise Unmodelled("precision-aware masters that are kept whole are not modelled")
    unsaid = row.get("optimizer_fp8_recipe") is None and not row.get("optimizer_offload_fraction")
    if row.get("precision_aware_optimizer") and unsaid:
        entry.target = "megatron-lm"
