"""One job as a file states it, with our names: what every reader of a format makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit import spellings as spell
from mbsolve.errors import InputError

__all__ = ["SIZES", "Entry"]

SIZES = ("gpus", "gpus_per_node", "block_gpus", "seq_len", "gbs")


LISTS = ("recompute_modules", "fine_grained_offload_modules", "cuda_graph_scope")


def _is_switch(name: str) -> bool:
    return isinstance(Plan.model_fields[name].default, bool)


@dataclass
class Entry:
    """One job of a file.

    Parameters
    ----------
    name : the entry's ``id``, or its place in the file.
    model, hardware : a name, or a mapping of dimensions; None when absent.
    sizes : `SIZES` that are stated.
    precision, target, margin : None when absent.
    plan, settings : fields of the plan and of the settings that are stated.
    model_changes : fields of the model that the configuration changes.
    read_as : what was named loosely -> how it was read.
    ignored : what nothing here depends on -> why.
    models : models that the file itself defines.
    form : what kind of file it was, in words; None for a job file.
    on_recipe : whether it changes a recipe that is not seen, which may have set what is absent.
    unmodelled : options on which memory and time depend but that are not modelled -> why; the laws are judged alone.
    passed : how many other options it had, on which nothing here depends.
    suggested : ``hardware``, ``gpus``, ``precision`` -> value and where it is from, for when nobody states them.
    skipped : why the entry is no configuration to judge; None when it is one.
    free : whether it leaves the configuration to the solver; what is stated of the plan is then a demand.
    step_seconds : what was measured, as the file has it; None when absent.
    """

    name: str
    model: Any = None
    hardware: Any = None
    sizes: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None
    target: str | None = None
    margin: float | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    model_changes: dict[str, Any] = field(default_factory=dict)
    read_as: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None
    on_recipe: bool = False
    unmodelled: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    suggested: dict[str, tuple[Any, str]] = field(default_factory=dict)
    skipped: str | None = None
    free: bool = False
    step_seconds: Any = None

    def state(self, where: str, name: str, value: Any) -> None:
        """Take a field with our name; None says nothing.

        Raises
        ------
        InputError
            if another spelling gave it another value.
        """
        if value is None:
            return
        if name in spell.PLAN_FIELDS:
            home = self.plan
        elif name in spell.SETTING_FIELDS:
            home = self.settings
        elif name in SIZES:
            home = self.sizes
        else:
            home = self.model_changes
        value = spell.plain(value)
        if name in LISTS and isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, bool) and name in spell.PLAN_FIELDS and not _is_switch(name):
            raise InputError(f"{where}: {name} is {value!r}, but it is no switch.")
        if name in home and home[name] != value:
            raise InputError(f"{where}: {name} is given twice, as {home[name]!r} and as {value!r}.")
        home[name] = value
