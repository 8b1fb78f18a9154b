"""Megatron-LM's command line: the flags of one call of ``pretrain_gpt.py``, in a shell script or alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mbsolve.emit.configtree import fill_entry
from mbsolve.emit.entry import Entry
from mbsolve.emit.hydra import Tree
from mbsolve.emit.launcher import read_launcher
from mbsolve.emit.literals import literal
from mbsolve.emit.megatron_flags import DEFAULTS, LISTS, SWITCHES, VALUES
from mbsolve.emit.misspelt import check_flag
from mbsolve.emit.passed import MATTERS, REPLACES, matter
from mbsolve.emit.script import Call, unknown_in
from mbsolve.errors import InputError

__all__ = ["SCRIPT", "flags_entry", "is_flags"]

SCRIPT: Final = re.compile(r"(?:^|/)pretrain_(?:gpt|mamba|hybrid)\.py$")
KNOWN: Final = (*VALUES, *LISTS, *SWITCHES)
# Flags that are texts even where they look like a number or nothing.
TEXTS: Final = ("model.pipeline_model_parallel_layout", "model.moe_layer_freq")
EXPERTS: Final = ("model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend")


def is_flags(text: str) -> bool:
    """Whether a text is the flags alone, without the call."""
    lines = [line.strip() for line in text.splitlines()]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def flags_entry(path: str | Path, call: Call) -> Entry:
    """The entry of a call.

    Raises
    ------
    InputError
        one sentence: the flag, its value, and what is allowed.
    """
    where, out = str(path), Entry(Path(path).name, form="a Megatron-LM command line")
    at = next(i for i, word in enumerate(call.words) if SCRIPT.search(word))
    read_launcher(where, out, call, at)
    tree = _tree(where, out, call.words[at + 1 :])
    whole = tree["model"].get("num_layers") is not None or "hybrid_layer_pattern" in tree["model"]
    if not whole:
        # The defaults of a model that is not described here are not its own.
        tree["model"] = {k: v for k, v in tree["model"].items() if f"model.{k}" not in _ARCHITECTURE_DEFAULTS}
    fill_entry(where, out, tree, whole=whole, flags=True)
    _batch(where, out)
    if out.plan.get("tp", 1) == 1 and out.plan.get("sequence_parallel"):
        out.plan["sequence_parallel"] = False
        out.read_as["sequence_parallel"] = "off, as the program sets it without tensor parallelism"
    return out


_ARCHITECTURE_DEFAULTS: Final = frozenset(
    key
    for key in DEFAULTS
    if key.startswith("model.")
    and key.partition(".")[2]
    in (
        *("add_bias_linear", "add_qkv_bias", "gated_linear_unit", "share_embeddings_and_output_weights"),
        *("normalization", "position_embedding_type", "qk_layernorm", "moe_router_topk", "moe_layer_freq"),
        *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "kv_lora_rank", "qk_head_dim"),
        *("qk_pos_emb_head_dim", "v_head_dim"),
    )
)


def _tree(where: str, out: Entry, words: Sequence[str]) -> Tree:
    said: dict[str, Any] = {}
    for flag, values in _flags(out, words):
        if flag in SWITCHES:
            key, value = SWITCHES[flag]
            said[key] = value
            _strays(where, out, flag, values, 0)
        elif flag in LISTS:
            for one in values:
                _known(where, flag, one)
            if not values:
                raise InputError(f"{where}: {flag} has no value.")
            said[LISTS[flag]] = [literal(one) for one in values]
        elif flag in VALUES:
            key = VALUES[flag]
            if not values:
                raise InputError(f"{where}: {flag} has no value.")
            _known(where, flag, values[0])
            said[key] = values[0] if key in TEXTS else literal(values[0])
            _strays(where, out, flag, values, 1)
        else:
            _other(where, out, flag, values)
    return _nested(_completed(said))


def _flags(out: Entry, words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The flags with the words that follow each; the last of several counts."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        elif unknown_in(word) is not None:
            out.ignored[f"${unknown_in(word)}"] = "what it holds is not in the file"
    return found


def _known(where: str, flag: str, value: str) -> None:
    unknown = unknown_in(value)
    if unknown is not None:
        raise InputError(f"{where}: {flag} is set by ${unknown}, but the file does not say its value.")


def _strays(where: str, out: Entry, flag: str, values: list[str], most: int) -> None:
    """Words behind a flag that takes fewer: more flags in a variable, or a mistake."""
    for word in values[most:]:
        unknown = unknown_in(word)
        if unknown is None:
            count = "no value" if most == 0 else "one value"
            raise InputError(f"{where}: {flag} takes {count}, but {word!r} follows it.")
        out.ignored[f"${unknown}"] = "what it holds is not in the file"


def _other(where: str, out: Entry, flag: str, values: list[str]) -> None:
    """A flag that is not modelled."""
    name = flag.removeprefix("--").replace("-", "_")
    value: Any = literal(values[0]) if values else True
    if matter(name, value):
        if name in REPLACES:
            out.unmodelled[name] = REPLACES[name]
        else:
            out.ignored[name] = MATTERS[name]
    else:
        check_flag(where, flag, KNOWN)
        out.passed += 1
    for word in values[1:]:
        if unknown_in(word) is not None:
            out.ignored[f"${unknown_in(word)}"] = "what it holds is not in the file"


def _completed(said: dict[str, Any]) -> dict[str, Any]:
    """The flags over the program's defaults."""
    out = {**DEFAULTS, **said}
    if not said.get("model.group_query_attention"):
        out.pop("model.num_query_groups", None)
    if not said.get("model.num_moe_experts"):
        for key in EXPERTS:
            out.pop(key)
    if said.get("model.cpu_offloading_num_layers"):
        out["model.cpu_offloading"] = True
    hidden, gated = out.get("model.hidden_size"), out["model.gated_linear_unit"]
    if "model.ffn_hidden_size" not in out and isinstance(hidden, int):
        out["model.ffn_hidden_size"] = hidden * 8 // 3 // 64 * 64 if gated else hidden * 4
    half = "model.fp16" in said
    if not half and "model.bf16" not in said:
        out["mixed_precision.fp32"] = True
    if "model.fp8" in said:
        out.setdefault("model.fp8_recipe", "delayed")
    if out.get("optimizer.main_grads_dtype", "fp32") == "fp32":
        out.setdefault("mixed_precision.grad_reduce_in_fp32", True)
    for key in ("model.fp8_param_gather", "mixed_precision.fp8_param_gather"):
        if "model.fp8" in said:
            out.setdefault(key, False)
    return out


def _nested(said: dict[str, Any]) -> Tree:
    tree: Tree = {"model": {}}
    for key, value in said.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    return tree


def _batch(where: str, out: Entry) -> None:
    """Without a global batch there is one micro-batch for every data-parallel rank."""
    sizes = [out.sizes.get("gpus"), *(out.plan.get(name, 1) for name in ("tp", "cp", "pp", "mbs"))]
    if "gbs" in out.sizes or not all(isinstance(one, int) and one > 0 for one in sizes):
        return
    gpus, tp, cp, pp, mbs = sizes
    batch = max(1, gpus // (tp * cp * pp)) * mbs
    out.state(where, "gbs", batch)
    out.read_as["gbs"] = f"{batch}, one micro-batch for every data-parallel rank"
