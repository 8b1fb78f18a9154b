"""What the name of a Megatron-Bridge recipe says: the model, and what it was written for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mbsolve.cards import CardError
from mbsolve.emit.entry import Entry
from mbsolve.hardware.card import machine_names
from mbsolve.models.card import load_model

__all__ = ["card_named", "read_recipe"]

TASK: Final = re.compile(r"_(?:\d+k_)?(pretrain|sft|peft|lora|dora)(?=_|$)")
FORMATS: Final[Mapping[str, str]] = {
    "bf16": "bf16",
    "fp8cs": "fp8_cs",
    "fp8mx": "mxfp8",
    "fp8sc": "fp8_block",
    "nvfp4": "nvfp4",
}
ADAPTERS: Final = ("peft", "lora", "dora")


def card_named(name: str) -> str | None:
    """The shipped card that a name or an alias means; None when there is none."""
    if not re.fullmatch(r"[\w.-]{1,80}", name) or name.endswith((".yaml", ".yml", ".json")):
        return None
    try:
        found = load_model(name).name
    except (CardError, OSError):
        return None
    return found


def read_recipe(out: Entry, recipe: str) -> None:
    """Take from a recipe's name the model and the task, and propose the precision, the GPUs and the machine."""
    recipe = recipe.rpartition(".")[2]
    found = TASK.search(recipe)
    stem, rest = (recipe[: found.start()], recipe[found.end() :]) if found else (recipe, "")
    card = card_named(stem.removesuffix("_config"))
    if card is not None:
        out.model = card
        out.read_as["recipe"] = f"{recipe} as the model {card}; what it sets itself is not known here"
    task(out, found[1] if found else "pretrain")
    words = rest.split("_")
    for word in words:
        if word in FORMATS:
            out.suggested["precision"] = (FORMATS[word], f"the recipe {recipe}")
        elif word in machine_names():
            out.suggested["hardware"] = (word, f"the recipe {recipe}")
        elif re.fullmatch(r"[1-9]\d{0,5}gpu", word):
            out.suggested["gpus"] = (int(word[:-3]), f"the recipe {recipe}")


def task(out: Entry, word: str) -> None:
    """Tell what a task other than pretraining means."""
    if word in ADAPTERS:
        out.unmodelled["peft"] = "adapters are trained, not all parameters"
    elif word == "sft":
        out.ignored["sft"] = "fine-tuning is judged as pretraining"
