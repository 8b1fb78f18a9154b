"""Words of a launcher that are not known, but look like one that is."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from mbsolve.emit.configtree import KNOWN
from mbsolve.emit.passed import INNOCENT, MATTERS, QUIET, REPLACES
from mbsolve.errors import InputError

__all__ = ["check_flag", "check_key"]

NEAR = 0.85
# Sections of a Megatron-Bridge configuration.
SECTIONS = frozenset(
    [
        *("model", "train", "dataset", "optimizer", "ddp", "mixed_precision", "comm_overlap", "rng", "peft"),
        *("rerun_state_machine", "env_vars", "scheduler", "logger", "tokenizer", "checkpoint", "dist", "ft"),
        *("straggler", "nvrx_straggler", "profiling", "tensor_inspect", "inprocess_restart", "validation"),
        *("optimizer_config_override_provider",),
    ]
)
_LAST = {key.rpartition(".")[2]: key for key in reversed(KNOWN)}


def check_key(where: str, parts: list[str]) -> None:
    """Refuse a key that is a modelled one misspelt, or in another section.

    Raises
    ------
    InputError
        with the key that was meant.
    """
    key = ".".join(parts)
    if key in KNOWN or key in QUIET or parts[0] == "env_vars":
        return
    known_section = len(parts) > 1 and parts[0] in SECTIONS
    meant = None
    if not known_section or len(parts) == 2:
        meant = _near(key, [*KNOWN, *SECTIONS] if len(parts) == 1 else KNOWN)
    if meant is None and not known_section:
        meant = _LAST.get(parts[-1])
    if meant is not None and key not in SECTIONS:
        raise InputError(f"{where}: the key {key!r} is not known; did you mean {meant!r}?")


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
