"""Words of a launcher that are not known, but look like one that is."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from mbsolve.emit.configtree import DIRECT, KNOWN
from mbsolve.emit.passed import INNOCENT, INNOCENT_KEYS, MATTERS, QUIET, REPLACES
from mbsolve.errors import InputError

__all__ = ["check_flag", "check_key"]

NEAR = 0.82
# Sections of a Megatron-Bridge configuration.
SECTIONS = frozenset(
    [
        *("model", "train", "dataset", "optimizer", "ddp", "mixed_precision", "comm_overlap", "rng", "peft"),
        *("rerun_state_machine", "env_vars", "scheduler", "logger", "tokenizer", "checkpoint", "dist", "ft"),
        *("straggler", "nvrx_straggler", "profiling", "tensor_inspect", "inprocess_restart", "validation"),
        *("optimizer_config_override_provider",),
    ]
)
# Sections that repeat no key of another.
STRICT = ("model", "train", "optimizer", "ddp", "mixed_precision", "comm_overlap")
_LAST = {key.rpartition(".")[2]: key for key in reversed(KNOWN)}


def check_key(where: str, parts: list[str]) -> None:
    """Refuse a key that is a modelled one misspelt, or in another section.

    Raises
    ------
    InputError
        with the key that was meant.
    """
    key, last = ".".join(parts), parts[-1]
    if key in KNOWN or key in QUIET or key in SECTIONS or parts[0] == "env_vars":
        return
    if parts[0] not in SECTIONS:
        meant = _near(key, [*KNOWN, *SECTIONS]) or _LAST.get(last)
    elif last in INNOCENT_KEYS or last in MATTERS or last in REPLACES:
        meant = None
    else:
        own = [known.partition(".")[2] for known in KNOWN if known.startswith(f"{parts[0]}.")]
        near = _near(last, own)
        meant = f"{parts[0]}.{near}" if near else _elsewhere(parts)
    if meant is not None:
        raise InputError(f"{where}: the key {key!r} is not known; did you mean {meant!r}?")


def _elsewhere(parts: list[str]) -> str | None:
    """The key of another section with the same last name; datasets repeat some."""
    meant = _LAST.get(parts[-1])
    return meant if meant in DIRECT and parts[0] in STRICT and len(parts) == 2 else None


def check_flag(where: str, flag: str, known: Collection[str]) -> None:
    """Refuse a flag that is a modelled one misspelt.

    Raises
    ------
    InputError
        with the flag that was meant.
    """
    if flag in INNOCENT or flag.removeprefix("--").replace("-", "_") in (*MATTERS, *REPLACES):
        return
    meant = _near(flag, known)
    if meant is not None:
        raise InputError(f"{where}: the flag {flag!r} is not known; did you mean {meant!r}?")


def _near(word: str, known: Collection[str]) -> str | None:
    if len(word) > 100:
        return None
    close = difflib.get_close_matches(word, known, n=1, cutoff=NEAR)
    return close[0] if close else None
