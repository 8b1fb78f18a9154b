"""Settings of a published run: those that its row records, and those that its kind of recipe is known for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mbsolve.constraints.lighter import RECOMPUTE
from mbsolve.emit.spellings import DTYPES
from mbsolve.models.card import CardError, load_model

__all__ = ["counted_ends", "finetuned_leanly", "open_fields", "recipe_graphs", "recorded_settings"]

# Tuned throughput runs, by tier, by stack, or because the row tells its TFLOP/s: their recipes reduce gradients in BF16
# (226 of the 231 pretraining rows that record it).
TUNED: Final = ("A-published-table", "A-card-perf")
TUNED_STACK: Final = "nemo-2"
# Models whose pretraining recipes keep BF16 moments under the precision-aware optimizer (all rows that record it).
LEAN_STATE: Final = ("DeepSeek-V3", "DeepSeek-V4", "Moonlight")
WIDE_GRADIENTS: Final = (
    "ddp_grad_reduce_in_fp32",
    "mp_grad_reduce_in_fp32",
    "grad_accum_fp32",
    "accumulate_allreduce_grads_in_fp32",
)
# Models whose pretraining recipes, in Megatron-Bridge, NeMo 2 and the Megatron MoE model zoo, count the embedding and the
# loss as layers of the split.
COUNTED_ENDS: Final = ("Llama-3.1-405B", "Qwen3-235B-A22B")
# The precision recipes of Megatron-Bridge that store the weights of linear layers quantised
# (src/megatron/bridge/training/mixed_precision.py); blockwise FP8 and NVFP4 do not.
QUANTISED_WEIGHTS: Final = ("fp8_cs", "fp8_delayed", "mxfp8")
# The finetuning recipes of its performance suite (src/megatron/bridge/perf_recipes/llama): BF16 gradients, no transposed
# copies of quantised weights, and under FP8 CUDA graphs of the MLP.
LEAN_FINETUNING: Final = "Llama-3-"
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "tp_comm_overlap": ("tp_comm_overlap",),
    "overlap_grad_reduce": ("ddp_overlap_grad_reduce", "overlap_grad_reduce"),
    "overlap_param_gather": ("ddp_overlap_param_gather", "overlap_param_gather"),
    "op_fuser": ("use_transformer_engine_op_fuser",),
    "fp8_output_proj": ("fp8_output_proj",),
    "cp_comm_type": ("cp_comm_type",),
    "shared_expert_overlap": ("moe_shared_expert_overlap",),
    "permute_fusion": ("moe_permute_fusion",),
    "fp8_param": ("mp_fp8_param_gather",),
    "grad_accumulation_fusion": ("gradient_accumulation_fusion",),
    "expandable_segments": ("expandable_segments",),
}


def finetuned_leanly(row: Mapping[str, Any]) -> bool:
    """Whether a row is of the finetuning recipes of the performance suite."""
    tuned = str(row.get("tier")).startswith("A-") and str(row.get("framework")).startswith("megatron-bridge")
    return tuned and row.get("task") == "sft" and str(row.get("model")).startswith(LEAN_FINETUNING)


def recipe_graphs(row: Mapping[str, Any]) -> dict[str, Any]:
    """CUDA graphs that a row does not record but its recipe has."""
    replayed = "mlp" in (row.get("recompute_modules") or ())
    bf16 = str(row.get("precision")) == "bf16"
    if row.get("cuda_graph_impl") is not None or bf16 or replayed or not finetuned_leanly(row):
        return {}
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("mlp",)}


def open_fields(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Formats of state, and recompute, that a row does not state; its recipe may have had any that its family has."""
    extra = row.get("extra") or {}
    said = {
        "grad_dtype": any(extra.get(key) is not None for key in WIDE_GRADIENTS),
        "moment_dtype": any(
            extra.get(key) is not None
            for key in ("opt_use_precision_aware_optimizer", "opt_exp_avg_dtype", "optimizer_moments")
        ),
        "fp8_param": extra.get("mp_fp8_param_gather") is not None,
        RECOMPUTE: row.get("recompute_granularity") is not None,
    }
    return tuple(name for name, known in said.items() if not known)


def counted_ends(row: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the embedding and the loss count as layers of the split: as the row says, else as its recipe has it.

    What no row says is taken of a recipe only where the layers split evenly with both, and do not without.
    """
    extra = row.get("extra") or {}
    said = {name: extra.get(f"account_for_{name}_in_pipeline_split") for name in ("embedding", "loss")}
    if set(said.values()) == {None}:
        said = dict.fromkeys(said, _recipe_counts_ends(row))
    return {f"{name}_in_split": bool(value) for name, value in said.items()}


def _recipe_counts_ends(row: Mapping[str, Any]) -> bool:
    name, stages = str(row["model"]), (row.get("pp") or 1) * (row.get("vpp") or 1)
    whole = row.get("pp_layout") is None and "reduced" not in str(row.get("model_params_note"))
    if not whole or row.get("task") != "pretrain" or not name.startswith(COUNTED_ENDS):
        return False
    try:
        layers = load_model(name).num_layers
    except CardError:
        return False  # for the reader of the model to say
    return layers % stages != 0 and (layers + 2) % stages == 0


def recorded_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a row records, or that its source is known for."""
    extra = row.get("extra") or {}
    arch = extra.get("arch") or {}
    found: dict[str, Any] = {}
    for name, keys in SETTINGS.items():
        value = next((v for v in (extra.get(k, arch.get(k)) for k in keys) if v is not None), None)
        if value is not None:
            found[name] = value
    if found.get("cp_comm_type") == "allgather":
        found["cp_comm_type"] = "all_gather"
    wide = next((v for v in (extra.get(k, arch.get(k)) for k in WIDE_GRADIENTS) if v is not None), None)
    tuned = str(row.get("tier")) in TUNED or str(row.get("framework")).startswith(TUNED_STACK)
    tuned = tuned or (row.get("task") == "pretrain" and bool(row.get("tflops_per_gpu")))
    if wide is None:
        wide = not tuned and not finetuned_leanly(row)
    bridge = str(row.get("framework")).startswith("megatron-bridge")
    if "fp8_param" not in found and bridge and str(row.get("precision")) in QUANTISED_WEIGHTS:
        found["fp8_param"] = True
    found["grad_dtype"] = "fp32" if wide else "bf16"
    if extra.get("opt_use_precision_aware_optimizer") is not False:
        moments = extra.get("opt_exp_avg_dtype") or extra.get("optimizer_moments")
        if moments is None and tuned and str(row["model"]).startswith(LEAN_STATE):
            moments = "bf16"
        if moments:
            found["moment_dtype"] = DTYPES[str(moments)]
        if extra.get("opt_main_params_dtype"):
            found["main_param_dtype"] = DTYPES[str(extra["opt_main_params_dtype"])]
    if row.get("dist_opt") is not None:
        found["distributed_optimizer"] = bool(row["dist_opt"])
    found["routing"] = "natural" if row.get("routing") == "natural" else "balanced"
    # All releases on record have a Transformer Engine before 2.20.
    found["logits_copies"] = 1
    # 27 of the 38 tuned dense rows with TP that record it overlap its collectives.
    if "tp_comm_overlap" not in found and tuned and (row.get("tp") or 1) > 1 and row.get("moe") is False:
        found["tp_comm_overlap"] = True
    if arch.get("no_gradient_accumulation_fusion"):
        found["grad_accumulation_fusion"] = False
    return found
