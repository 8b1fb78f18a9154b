"""Megatron-Bridge's formats: override lists, the call of ``run_recipe.py``, and the configuration saved with a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mbsolve.emit.configtree import fill_entry
from mbsolve.emit.entry import Entry
from mbsolve.emit.hydra import KEY, Tree, assign, split_words
from mbsolve.emit.launcher import read_launcher
from mbsolve.emit.literals import literal
from mbsolve.emit.misspelt import check_key
from mbsolve.emit.recipes import card_named, read_recipe, task
from mbsolve.emit.script import Call, unknown_in
from mbsolve.errors import InputError

__all__ = ["call_entry", "dump_entry", "is_dump", "is_list", "list_entry"]

SCRIPT: Final = "run_recipe.py"
# Short options of the script -> the key that they set; a KEY=VALUE counts more.
SHORT: Final[Mapping[str, str]] = {
    "-tp": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size",
    "-ep": "model.expert_model_parallel_size",
    "-etp": "model.expert_tensor_parallel_size",
    "-mb": "train.micro_batch_size",
    "-gb": "train.global_batch_size",
}
# A saved configuration has the first and one of the second.
DUMP: Final = (
    "model",
    ("train", "dataset", "optimizer", "ddp", "mixed_precision", "comm_overlap", "checkpoint"),
)
# Sizes without which a model section is no model of its own.
OWN_MODEL: Final = ("num_layers", "hidden_size", "num_attention_heads")


def is_list(text: str) -> bool:
    """Whether a text is a list of overrides: nothing but KEY=VALUE with sections, and options of the script."""
    words = _words(text)
    keys = [found["key"] for word in words if (found := KEY.fullmatch(word.removeprefix("~")))]
    if not any("." in key or key in ("mixed_precision", "comm_overlap") for key in keys):
        return False
    return KEY.fullmatch(words[0]) is not None or words[0].startswith(("-", "~"))


def _words(text: str) -> list[str]:
    lines = text.replace("\\\r\n", "\n").replace("\\\n", "\n").splitlines()
    return [word for line in lines if not line.lstrip().startswith("#") for word in split_words(line)]


def list_entry(path: str | Path, text: str) -> Entry:
    """The entry of an override list.

    Raises
    ------
    InputError
        one sentence: the key, its value, and what is allowed.
    """
    where, out = str(path), Entry(Path(path).name, form="a Megatron-Bridge override list", on_recipe=True)
    _arguments(where, out, _words(text))
    return out


def call_entry(path: str | Path, call: Call) -> Entry:
    """The entry of a command line that calls ``run_recipe.py``.

    Raises
    ------
    InputError
        one sentence: the key, its value, and what is allowed.
    """
    where, out = str(path), Entry(Path(path).name, form="a Megatron-Bridge command line", on_recipe=True)
    at = next(i for i, word in enumerate(call.words) if word.endswith(SCRIPT))
    read_launcher(where, out, call, at)
    _arguments(where, out, call.words[at + 1 :])
    return out


def _arguments(where: str, out: Entry, words: Sequence[str]) -> None:
    tree: Tree = {}
    short: dict[str, str] = {}
    options: dict[str, str] = {}
    rest = list(words)
    keys: list[list[str]] = []
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and not KEY.fullmatch(word):
            name, equals, value = word.partition("=")
            if not equals and rest and not rest[0].startswith("-") and not KEY.fullmatch(rest[0]):
                value = rest.pop(0)
            (short if name in SHORT else options)[name] = value
            continue
        unknown = unknown_in(word)
        if unknown is not None and not KEY.fullmatch(word):
            out.ignored[f"${unknown}"] = "what it holds is not in the file"
            continue
        keys.append(_override(where, tree, word, unknown))
        out.passed += unknown is not None
    for name, value in short.items():
        section, _, field = SHORT[name].partition(".")
        _known(where, SHORT[name], value)
        if section in tree and not isinstance(tree[section], dict):
            raise InputError(f"{where}: {name} cannot be set, because {section} is {tree[section]!r}.")
        tree.setdefault(section, {}).setdefault(field, literal(value))
    for parts in keys:
        check_key(where, parts)
    _selection(where, out, options)
    model = tree.get("model")
    model = model if isinstance(model, dict) else {}
    whole = out.model is None and all(model.get(name) is not None for name in OWN_MODEL)
    fill_entry(where, out, tree, whole=whole)


def _override(where: str, tree: Tree, word: str, unknown: str | None) -> list[str]:
    """Lay one override onto the tree; what a variable holds matters only where the key is read."""
    if unknown is not None:
        found = KEY.fullmatch(word)
        parts = found["key"].split(".") if found else []
        if found and ".".join(parts) in _matters():
            _known(where, found["key"], word)
        return parts or ["env_vars"]
    try:
        parts = assign(tree, word) or []
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not parts:
        raise InputError(
            f"{where}: {_short(word)} must be KEY=VALUE, as in model.tensor_model_parallel_size=4."
        )
    return parts


def _matters() -> frozenset[str]:
    from mbsolve.emit.configtree import KNOWN

    return frozenset((*KNOWN, "mixed_precision", "comm_overlap"))


def _known(where: str, key: str, value: str) -> None:
    unknown = unknown_in(value)
    if unknown is not None:
        raise InputError(f"{where}: {key} is set by ${unknown}, but the file does not say its value.")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _selection(where: str, out: Entry, options: dict[str, str]) -> None:
    """The options that choose a recipe."""
    recipe = options.pop("--recipe", None)
    stem, mode = options.pop("--model", None), options.pop("--mode", None)
    if recipe and unknown_in(recipe) is None:
        read_recipe(out, recipe)
    elif stem and unknown_in(stem) is None:
        out.model = card_named(stem)
    if mode:
        task(out, mode)
    out.passed += len(options)


def is_dump(raw: Any) -> bool:
    """Whether the content of a YAML file is a saved configuration."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get(DUMP[0]), Mapping):
        return False
    if str(raw.get("_target_", "")).endswith("ConfigContainer"):
        return True
    return any(isinstance(raw.get(key), Mapping) for key in DUMP[1]) and "config" not in raw


def dump_entry(path: str | Path, raw: Mapping[str, Any]) -> Entry:
    """The entry of a saved configuration.

    Raises
    ------
    InputError
        one sentence: the key, its value, and what is allowed.
    """
    where, out = str(path), Entry(Path(path).name, form="a saved Megatron-Bridge configuration")
    tree = {str(key): value for key, value in raw.items()}
    model = tree["model"]
    whole = all(model.get(name) is not None for name in OWN_MODEL)
    tokenizer = tree.get("tokenizer")
    if whole and model.get("vocab_size") is None and isinstance(tokenizer, Mapping):
        tree["model"] = {**model, "vocab_size": tokenizer.get("vocab_size")}
    if tree.get("comm_overlap", 0) is None:
        # Nothing overlaps then but what the sections of the model and of data parallelism say.
        del tree["comm_overlap"]
    fill_entry(where, out, tree, whole=whole)
    return out
