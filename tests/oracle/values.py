"""Values as launch lines spell them, and where an error comes from."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def built(value: Any) -> Any:
    """A parsed value; what has a target is made of it, as Bridge's parser does."""
    if not isinstance(value, dict):
        return [*value] if isinstance(value, list) else value
    module, _, name = value["_target_"].rpartition(".")
    made = getattr(import_module(module), name)
    fields = {key: built(field) for key, field in value.items() if key[0] != "_"}
    return made if value.get("_call_") is False else made(**fields)


def place(error: BaseException) -> str:
    """File and line of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    file = Path(trace.tb_frame.f_code.co_filename).as_posix()
    cut = file.rfind("megatron/")
    return f"{file[cut:] if cut >= 0 else Path(file).name}:{trace.tb_lineno}"


def rewritten(config: Any, overrides: Sequence[str]) -> dict[str, list[str]]:
    """The arguments that the stack did not leave as they were: what was asked, what it came to."""
    out = {}
    for text in overrides:
        key, _, asked = text.partition("=")
        owner, _, field = key.rpartition(".")
        if owner in ("model", "optimizer", "ddp", "train", "dataset"):
            got = spelt(getattr(getattr(config, owner), field))
            if asked.strip('"') != got and not got.startswith("torch."):
                out[key] = [asked, got]
    return out


def spelt(value: Any) -> str:
    """A value as the launch lines spell it."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(spelt, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(getattr(value, "name", value))
