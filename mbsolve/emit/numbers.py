"""The number formats in a launcher's configuration: the precision recipe, gradients, moments, main parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mbsolve.emit.entry import Entry
from mbsolve.emit.literals import dtype_of
from mbsolve.emit.megatron_bridge import PRECISION_RECIPES
from mbsolve.errors import InputError, did_you_mean

__all__ = ["NUMBERS", "RECIPES", "gradients", "read_precision"]

NUMBERS: Final = (
    *(
        f"{section}.{key}"
        for section in ("mixed_precision", "model")
        for key in ("fp8", "fp8_recipe", "fp4", "fp4_recipe")
    ),
    "mixed_precision.fp16",
    "model.fp16",
    "model.bf16",
    "mixed_precision.fp8_param_gather",
    "mixed_precision.fp4_param_gather",
    "mixed_precision.fp8_param",
    "mixed_precision.grad_reduce_in_fp32",
    "mixed_precision.accumulated_in_fp32",
    "ddp.grad_reduce_in_fp32",
    "optimizer.main_grads_dtype",
    "optimizer.main_params_dtype",
    "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype",
)
# Recipe of Megatron-Bridge -> our word.
RECIPES: Final[Mapping[str, str]] = {name: word for word, (name, _) in PRECISION_RECIPES.items()}
VARIANTS: Final = ("nemotron_h_", "nanov2_", "nemotron_3_super_", "nemotron_3_ultra_")
FP8: Final[Mapping[str, str]] = {
    "delayed": "fp8_delayed",
    "tensorwise": "fp8_cs",
    "blockwise": "fp8_block",
    "mxfp8": "mxfp8",
}
Get = Callable[[str], Any]


def _recipe(name: str) -> tuple[str, bool] | None:
    """Our word for a precision recipe, and whether it computes in FP16."""
    for variant in VARIANTS:
        name = name.removeprefix(variant)
    half = name.startswith("fp16_")
    word = RECIPES.get("bf16_" + name.removeprefix("fp16_") if half else name)
    return None if word is None else (word, half)


def read_precision(where: str, out: Entry, get: Get, tree: Mapping[str, Any]) -> None:
    """Read the precision, and whether parameters are kept in it.

    Raises
    ------
    InputError
        for a recipe that is not known.
    """
    node = tree.get("mixed_precision")
    word, half, gathered = None, False, None
    if isinstance(node, str):
        found = _recipe(node)
        if found is None:
            raise InputError(
                f"{where}: mixed_precision is {node!r}, but it must be one of {', '.join(RECIPES)}"
                f"{did_you_mean(node, RECIPES)}"
            )
        word, half = found
    elif node is not None and not isinstance(node, Mapping):
        raise InputError(f"{where}: mixed_precision is {node!r}, but it must be the name of a recipe.")
    elif isinstance(node, Mapping):
        found = _recipe(str(node.get("_target_", "")).rpartition(".")[2])
        word, half = found or (None, False)
    if word is not None:
        fields = PRECISION_RECIPES[word][1]
        gathered = fields.get("fp4_param_gather", fields.get("fp8_param_gather"))
    told, kind = _formats(get)
    if told is not None:
        word = told
    if kind is not None:
        out.unmodelled["fp8_recipe"] = f"{kind} is another one than those that are known"
    if half or get("mixed_precision.fp16") or get("model.fp16"):
        out.read_as["precision"] = "fp16 as bf16"
        word = word or "bf16"
    if word is None:
        return
    out.precision = word
    if word == "bf16":
        return
    keys = ("fp4_param_gather",) if word == "nvfp4" else ("fp8_param_gather", "fp8_param")
    for key in (*keys, "fp8_param_gather"):
        value = get(f"mixed_precision.{key}")
        if value is not None:
            gathered = value
            break
    out.state(where, "fp8_param", gathered)


def _formats(get: Get) -> tuple[str | None, Any]:
    """Our word for the formats that are named one by one; or the recipe that we have no word for."""
    for section in ("mixed_precision", "model"):
        fp8, recipe = get(f"{section}.fp8"), get(f"{section}.fp8_recipe")
        fp4 = get(f"{section}.fp4"), get(f"{section}.fp4_recipe")
        if fp4[0]:
            return "nvfp4", None
        if fp8:
            recipe = str(recipe or "delayed")
            return (FP8[recipe], None) if recipe in FP8 else (None, recipe)
        if get(f"{section}.bf16"):
            return "bf16", None
    return None, None


def gradients(where: str, out: Entry, get: Get) -> None:
    """Read the formats of gradients, moments and main parameters.

    Raises
    ------
    InputError
        for values that contradict each other.
    """
    wide = get("mixed_precision.grad_reduce_in_fp32")
    forced = get("mixed_precision.accumulated_in_fp32")
    overall = get("ddp.grad_reduce_in_fp32")
    main = dtype_of(get("optimizer.main_grads_dtype"))
    wide = overall if wide is None else wide
    wide = forced if wide is None else wide
    if wide is None:
        out.state(where, "grad_dtype", main)
    else:
        out.state(where, "grad_dtype", "fp32" if wide else "bf16")
    out.state(where, "main_param_dtype", dtype_of(get("optimizer.main_params_dtype")))
    first, second = (dtype_of(get(f"optimizer.{key}")) for key in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    if first is None and second is None:
        return
    first, second = first or "fp32", second or "fp32"
    if first != second or first == "fp8":
        both = f"{first} and {second}" if first != second else "fp8"
        out.unmodelled["exp_avg_dtype"] = f"moments in {both}"
        return
    out.state(where, "moment_dtype", first)
