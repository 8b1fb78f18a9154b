"""Which format a file is in, by its content; and what the command line adds to what the file leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mbsolve.cards import CardError
from mbsolve.emit.entry import Entry
from mbsolve.emit.jobfile import entries_of, parse
from mbsolve.emit.read_bridge import SCRIPT, call_entry, dump_entry, is_dump, is_list, list_entry
from mbsolve.emit.read_megatron import SCRIPT as PRETRAIN
from mbsolve.emit.read_megatron import flags_entry, is_flags
from mbsolve.emit.script import MARK, Call, calls
from mbsolve.errors import InputError
from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model

__all__ = ["Given", "read_entries"]

MOST: Final = 4_000_000
# Fields that a launcher's options say otherwise than a card, or that no layer needs.
LOOSE: Final = ("ffn_hidden_size", "aux_loss", "learned_positions")


@dataclass(frozen=True)
class Given:
    """What the command line says of every job of its files.

    Parameters
    ----------
    model, hardware : names or paths of cards.
    gpus, seq_len : sizes.
    """

    model: str | None = None
    hardware: str | None = None
    gpus: Any = None
    seq_len: Any = None


def read_entries(path: str | Path, given: Given | None = None) -> list[Entry]:
    """The jobs of a file: a job file, an override list or saved configuration of Megatron-Bridge, or a script.

    Parameters
    ----------
    given
        What fills in where the file says nothing.

    Raises
    ------
    InputError
        one sentence: the entry, the field, its value, and what is allowed.
    """
    entries = _entries(path, _text(path))
    for entry in entries:
        where = str(path) if entry.form else f"{path}: job {entry.name}"
        _fill(where, entry, given or Given())
        if entry.form and entry.model is None:
            raise InputError(f"{where} does not say which model it trains: name it with --model.")
        if entry.form and isinstance(entry.model, dict) and "vocab_size" not in entry.model:
            entry.read_as["vocab_size"] = "unknown, so memory is not judged; --model names a card that has it"
    return entries


def _text(path: str | Path) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"The file {path} is not text in UTF-8.") from error
    except ValueError as error:
        raise InputError(f"The file {path!s:.200} cannot be read: {error}.") from error
    return text


def _entries(path: str | Path, text: str) -> list[Entry]:
    try:
        raw, fault = parse(path, text), None
    except InputError as error:
        raw, fault = None, error
    if isinstance(raw, dict) and _is_written(path, raw):
        return [dump_entry(path, raw)] if is_dump(raw) else entries_of(path, raw)
    if isinstance(raw, list):
        return entries_of(path, raw)
    if MARK not in text and len(text) < MOST and Path(path).suffix != ".json":
        entry = _launched(path, text)
        if entry is not None:
            return [entry]
    if fault is not None:
        raise fault
    return entries_of(path, raw)


def _is_written(path: str | Path, raw: dict[Any, Any]) -> bool:
    """Whether somebody wrote a mapping as one: to YAML a script with a colon in it can look like one too."""
    if Path(path).suffix in (".yaml", ".yml", ".json"):
        return True
    return all(isinstance(key, str) and not any(letter.isspace() for letter in key) for key in raw)


def _launched(path: str | Path, text: str) -> Entry | None:
    """The entry of a launcher's format, or None when the text is in none of them."""
    if is_list(text):
        return list_entry(path, text)
    if is_flags(text):
        flags = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        text = "pretrain_gpt.py " + flags.replace("\\\n", " ").replace("\n", " ")
    if "pretrain_" not in text and SCRIPT not in text:
        return None
    try:
        found = calls(text, lambda word: _program(word) is not None)
    except InputError as error:
        raise InputError(f"The file {path} cannot be read as a shell script: {error}") from error
    readers = [(reader, call) for call in found if (reader := _reader(call)) is not None]
    if len(readers) > 1:
        raise InputError(f"The file {path} trains {len(readers)} times, but one call is read at a time.")
    return readers[0][0](path, readers[0][1]) if readers else None


def _program(word: str) -> str | None:
    """Which program a word calls, or holds a call of."""
    for part in word.split():
        if PRETRAIN.search(part):
            return "megatron-lm"
        if part.endswith(SCRIPT):
            return "bridge"
    return None


def _reader(call: Call) -> Callable[[str | Path, Call], Entry] | None:
    kinds = [kind for word in call.words if (kind := _program(word)) and not any(map(str.isspace, word))]
    if not kinds:
        return None
    return flags_entry if kinds[0] == "megatron-lm" else call_entry


def _fill(where: str, entry: Entry, given: Given) -> None:
    """Take what the command line says where the file says nothing, then what the file only suggests."""
    for name, value in (("gpus", given.gpus), ("seq_len", given.seq_len)):
        option = "--seq" if name == "seq_len" else "--gpus"
        if value is None:
            continue
        if entry.sizes.setdefault(name, value) != value:
            raise InputError(f"{where}: {option} is {value}, but the file says {entry.sizes[name]!r}.")
    try:
        if given.hardware is not None:
            _hardware(where, entry, given.hardware)
        if given.model is not None:
            _model(where, entry, given.model)
    except CardError as error:
        raise InputError(str(error)) from error
    for name, (value, source) in entry.suggested.items():
        if name == "gpus" and "gpus" not in entry.sizes:
            entry.sizes["gpus"] = value
        elif name == "hardware" and entry.hardware is None:
            entry.hardware = value
        elif name == "precision" and entry.precision is None:
            entry.precision = value
        else:
            continue
        entry.read_as[name] = f"{value}, from the name of {source}"


def _hardware(where: str, entry: Entry, name: str) -> None:
    card, own = load_machine(name), entry.hardware
    if isinstance(own, dict):
        own = None if own.get("gpu") == "any" else own.get("gpu", "described in it")
    if own is None:
        entry.hardware = name
    elif own == "described in it" or load_machine(str(own)) != card:
        raise InputError(f"{where}: --hardware is {name}, but the file says {own}.")


def _model(where: str, entry: Entry, name: str) -> None:
    card, own = load_model(name), entry.model
    if own is None:
        entry.model = name
        return
    if isinstance(own, dict) and "dims" in own and entry.form:
        for field, value in own.items():
            known = getattr(card, field, value)
            if field not in ("name", "dims", *LOOSE) and known != value:
                raise InputError(
                    f"{where}: {field} is {value!r}, but {known!r} in {card.name}, which --model names."
                )
        entry.model = name
        return
    named = own.get("name") if isinstance(own, dict) else own
    try:
        same = load_model(str(named)) == card
    except CardError:
        same = False
    if not same:
        raise InputError(f"{where}: --model is {name}, but the file says {named}.")
