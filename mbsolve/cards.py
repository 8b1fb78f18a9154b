"""Read the cards of models and machines: YAML in, plain values with their sources out, one sentence when a card is wrong."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from mbsolve.faults import wanted

__all__ = [
    "CardError",
    "card_names",
    "card_sources",
    "did_you_mean",
    "explain",
    "find_card",
    "plain_values",
    "read_mapping",
]


class CardError(ValueError):
    """A card, or its name, that cannot be used; the message is one sentence."""


def _spelling(name: str) -> str:
    """Return the spelling under which names are compared: lower case, without ``-``, ``_``, ``.`` and spaces."""
    return "".join(letter for letter in name.casefold() if letter not in "-_. ")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of the known words, or an empty string."""
    spellings = {_spelling(candidate): candidate for candidate in known}
    nearest = difflib.get_close_matches(_spelling(word), spellings, n=1, cutoff=0.5)
    return f"; did you mean {spellings[nearest[0]]!r}?" if nearest else ""


def read_mapping(path: Path) -> dict[str, object]:
    """Read a YAML file that holds one mapping with words as keys.

    Raises
    ------
    CardError
        If the file cannot be read, is not YAML, or holds something else.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CardError(f"The card {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CardError(f"The card {path} is not text in UTF-8.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise CardError(f"The card {path} is not valid YAML{place}: {problem}.") from error
    except (ValueError, RecursionError) as error:
        raise CardError(f"The card {path} holds a value that YAML cannot build: {error}.") from error
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise CardError(f"The card {path} must be a mapping from field names to values.")
    return raw


def _is_sourced(value: object) -> bool:
    return isinstance(value, dict) and "value" in value and set(value) <= {"value", "source"}


def plain_values(raw: object) -> object:
    """Return the card with every ``{value: v, source: s}`` leaf replaced by ``v``."""
    if isinstance(raw, dict):
        return raw["value"] if _is_sourced(raw) else {key: plain_values(value) for key, value in raw.items()}
    return [plain_values(value) for value in raw] if isinstance(raw, list) else raw


def card_sources(raw: Mapping[str, object], fields: Iterable[str], default: str) -> dict[str, str]:
    """Return field -> source: the source of each ``{value, source}`` leaf, the default for the other fields.

    Leaves inside a field are named with dots (``matrix_flops.bf16``, ``networks.0.gpus``).
    """
    found = dict.fromkeys(fields, default)

    def walk(value: object, name: str) -> None:
        if isinstance(value, dict):
            if _is_sourced(value):
                found[name] = str(value.get("source") or default)
            else:
                for key, inner in value.items():
                    walk(inner, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{name}.{index}")

    walk({key: value for key, value in raw.items() if key != "source"}, "")
    return found


def explain(error: ValidationError, where: str, fields: Iterable[str]) -> str:
    """Say the first thing that is wrong with a card in one sentence: field, value, and what is allowed."""
    # A word that no field has is named first: it is often why another field is missing.
    found = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    first, *others = found
    field = ".".join(str(part) for part in first["loc"])
    more = f" ({len(others)} more like this)" if others else ""
    match first["type"]:
        case "missing":
            return f"{where} lacks the field {field!r}{more}."
        case "extra_forbidden":
            return f"{where} has an unknown field {field!r}{did_you_mean(field, fields) or '.'}"
        case "value_error":
            return f"{where}: {first.get('ctx', {}).get('error', first['msg'])}"
    return f"{where}: {field} is {first['input']!r}, but {wanted(first)}{more}."


def card_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the cards in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


@lru_cache(maxsize=8)
def _known_words(folder: Path) -> dict[str, str]:
    """Return every name and alias of a folder's cards -> the card's name."""
    known = {}
    for name in card_names(folder):
        aliases = plain_values(read_mapping(folder / f"{name}.yaml").get("aliases", []))
        known.update({str(word): name for word in (name, *(aliases if isinstance(aliases, list) else []))})
    return known


def find_card(name_or_path: str | Path, folder: Path, what: str) -> Path:
    """Return the file of a card that is named, nicknamed, or given as a path.

    ``what`` (model, machine) names the kind of card in the error.

    A string is a path if it has a ``/``, ends in ``.yaml``, ``.yml`` or ``.json``, or is no known name but exists as
    a file or folder.

    Raises
    ------
    CardError
        If the name is unknown; the sentence proposes the nearest one.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in name or name.endswith((".yaml", ".yml", ".json")):
        return Path(name)
    stems = {_spelling(stem): stem for stem in card_names(folder)}
    if _spelling(name) in stems:
        return folder / f"{stems[_spelling(name)]}.yaml"
    known = _known_words(folder)
    by_spelling = {_spelling(word): card for word, card in known.items()}
    if _spelling(name) in by_spelling:
        return folder / f"{by_spelling[_spelling(name)]}.yaml"
    if os.path.exists(name):
        return Path(name)
    raise CardError(
        f"There is no {what} {name!r} among {', '.join(card_names(folder))}{did_you_mean(name, known) or '.'}"
    )
