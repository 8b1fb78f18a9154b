"""The model and the machine of a job file: a name, a name with changes, or dimensions of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mbsolve.cards import CardError
from mbsolve.emit.spellings import DIMENSIONS, MODEL_NOTES
from mbsolve.errors import InputError, did_you_mean
from mbsolve.hardware.card import Machine, load_machine, parse_machine
from mbsolve.models.card import Model, load_model, parse_model
from mbsolve.models.partial import partial_model

__all__ = ["machine_of", "model_of"]

DEFAULT_MACHINE = "h100"
# What a GPU is sold with, taken as GiB, is so much more than a process gets of it: up to this, the card's own figure holds.
NOMINAL = 1.08
GB, GIB = 10**9, 2**30
MEMORY: Final = re.compile(r"(\d+)gi?b", re.IGNORECASE)
# Parts of the name of a GPU that tell its board, its maker or its memory.
SUFFIX: Final = re.compile(r"\d+gi?b|nvidia|sxm\d?|nvl\d*|hbm\d\w?|tensor|core|gpu", re.IGNORECASE)
# More gigabytes or GPUs than this are a slip of the pen.
MOST = 10**6
# Dimensions that make a model of its own out of an unknown name.
FEW = 3


def machine_of(raw: Any, completed: dict[str, Any]) -> Machine:
    """The machine that a job file names or describes.

    Parameters
    ----------
    raw : a name, None, or a mapping: ``gpu`` (a name, or ``any``) with ``hbm_gb`` and ``nvlink_domain``, or fields of a
        machine card.
    completed : takes what was absent.

    Raises
    ------
    InputError
        one sentence.
    """
    try:
        if raw in (None, "any") or (
            isinstance(raw, Mapping) and raw.get("gpu") in (None, "any") and "gpu" in raw
        ):
            completed["hardware"] = DEFAULT_MACHINE
            machine = load_machine(DEFAULT_MACHINE)
        elif isinstance(raw, str):
            machine = load_machine(raw)
        elif isinstance(raw, Mapping) and "gpu" in raw:
            machine, memory = _named(str(raw["gpu"]))
            if memory is not None and raw.get("hbm_gb") is None:
                raw = {**raw, "hbm_gb": memory}
        elif isinstance(raw, Mapping):
            return parse_machine(raw, "hardware")
        else:
            raise InputError(f"hardware is {raw!r}, but it must be a name or a mapping.")
        return _sized(machine, raw) if isinstance(raw, Mapping) else machine
    except CardError as error:
        raise InputError(str(error)) from error


def _named(name: str) -> tuple[Machine, int | None]:
    """The machine of a name as shops and reports write it, and the memory that the name states."""
    try:
        return load_machine(name), None
    except CardError as error:
        words = [word for word in re.split(r"[-_ ]+", name) if not SUFFIX.fullmatch(word)]
        sizes = [int(found[1]) for word in re.split(r"[-_ ]+", name) if (found := MEMORY.fullmatch(word))]
        try:
            return load_machine("-".join(words)), sizes[0] if sizes else None
        except CardError:
            raise error from None


def _sized(machine: Machine, raw: Mapping[str, Any]) -> Machine:
    """The machine with the memory and the NVLink domain that are stated."""
    for key in raw:
        if key not in ("gpu", "hbm_gb", "nvlink_domain"):
            allowed = ("gpu", "hbm_gb", "nvlink_domain")
            raise InputError(f"hardware has an unknown field {key!r}{did_you_mean(key, allowed)}")
    changes: dict[str, Any] = {}
    memory, domain = raw.get("hbm_gb"), raw.get("nvlink_domain")
    for name, value in (("hbm_gb", memory), ("nvlink_domain", domain)):
        if value is None:
            continue
        numeric = not isinstance(value, bool) and isinstance(value, int | float)
        if not numeric or not 0 < value < MOST:
            raise InputError(f"hardware.{name} is {value!r}, but it must be a number above 0.")
        if name == "nvlink_domain" and value != int(value):
            raise InputError(f"hardware.{name} is {value!r}, but it must be a whole number of GPUs.")
    if memory is not None and not 1 <= memory * GIB / machine.hbm_bytes <= NOMINAL:
        changes["hbm_bytes"] = int(memory * GB)
    if domain is not None and domain != machine.domain_network.gpus:
        networks = [
            n.model_copy(update={"gpus": int(domain)}) if n is machine.domain_network else n
            for n in machine.networks
        ]
        changes["networks"] = tuple(networks)
        changes["block_gpus"] = None
    return machine.model_copy(update=changes) if changes else machine


def model_of(
    raw: Any, models: Mapping[str, Any], changes: Mapping[str, Any], completed: dict[str, Any]
) -> Model:
    """The model that a job file names or describes.

    A shipped name may be followed by dimensions that differ from its card. Another name needs dimensions, there or
    under ``models``; those that are still missing are unknown (`partial_model`).

    Raises
    ------
    InputError
        one sentence.
    """
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise InputError(f"model is {raw!r}, but it must be a name, or a mapping with name and dimensions.")
    name = raw["name"]
    own = models.get(name)
    stated = {**(own if isinstance(own, Mapping) else {}), **raw}
    try:
        card: Model | None = load_model(name)
        missing = None
    except CardError as error:
        card, missing = None, error
    values = {**_dimensions(stated, card), **changes}
    # A name with a change or two is a misspelt card, not a model of its own.
    if missing is not None and own is None and "dims" not in raw and len(values) < FEW:
        raise InputError(str(missing)) from missing
    if card is not None:
        differing = {k: v for k, v in values.items() if getattr(card, k) != v}
        if not differing:
            return card
        # A stranger to the card's own sums: its published figures no longer hold.
        dumped = card.model_dump() | differing | {"published_params": None}
        return _parsed({k: v for k, v in dumped.items() if k != "sources"})
    return _described(name, values, completed)


def _parsed(values: Mapping[str, Any]) -> Model:
    try:
        return parse_model(values, "model")
    except CardError as error:
        raise InputError(str(error)) from error


def _dimensions(raw: Mapping[str, Any], card: Model | None) -> dict[str, Any]:
    """Fields of the card that a mapping states, by any spelling."""
    known = [f for f in Model.model_fields if f != "sources"]
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in MODEL_NOTES or key in ("name", "title", "aliases"):
            continue
        name = DIMENSIONS.get(key, key)
        if name == "shared_experts":
            continue
        if name not in known:
            raise InputError(
                f"model has an unknown field {key!r}{did_you_mean(key, [*DIMENSIONS, 'shared_experts', *known])}"
            )
        if value is not None or name == "q_lora_rank":
            out[name] = value
    shared = raw.get("shared_experts")
    if shared is not None:
        width = out.get("moe_ffn_hidden_size") or (card.moe_ffn_hidden_size if card else None)
        whole = isinstance(shared, int) and not isinstance(shared, bool) and shared >= 0
        if not whole or (shared and not isinstance(width, int)):
            raise InputError(f"model: shared_experts is {shared!r}, but it must be a number, beside moe_ffn.")
        out["shared_expert_ffn_hidden_size"] = shared * width if shared and width else None
    return out


def _described(name: str, values: dict[str, Any], completed: dict[str, Any]) -> Model:
    """A model that has no card."""

    def complete(field: str, value: Any) -> None:
        if field not in values:
            values[field] = value
            completed[f"model.{field}"] = value

    complete("attention", "mla" if values.get("kv_lora_rank") else "gqa")
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    if heads is not None:
        complete("num_query_groups", heads)
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            complete("head_dim", values.get("qk_nope_head_dim") or hidden // heads)
    complete("tie_embeddings", False)
    complete("qk_layernorm", values["attention"] == "mla")
    if values.get("num_experts") and values["attention"] == "gqa" and "first_k_dense" not in values:
        complete("first_k_dense", 0)
    required = [f for f, info in Model.model_fields.items() if info.is_required() and f != "title"]
    missing = [f for f in required if f not in values and f != "name"]
    if values.get("num_experts"):
        missing += [f for f in ("moe_topk", "moe_ffn_hidden_size") if f not in values]
    if not values.get("num_experts") and "ffn_hidden_size" not in values:
        missing.append("ffn_hidden_size")
    if missing:
        for field, nothing in (("num_experts", None), ("mtp_num_layers", 0), ("first_k_dense", 0)):
            complete(field, nothing)
        try:
            return partial_model(name, values)
        except CardError as error:
            raise InputError(str(error)) from error
    return _parsed({"title": name, **values, "name": name})
