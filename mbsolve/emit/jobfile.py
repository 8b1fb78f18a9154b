"""Job files: YAML or JSON, one job or many, in any of the known spellings, into entries with our names.

Nothing is completed or judged here: an entry says what the file states, and what it left open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from mbsolve.emit import spellings as spell
from mbsolve.emit.entry import SIZES, Entry
from mbsolve.emit.passed import MATTERS, REPLACES, matter
from mbsolve.errors import InputError, did_you_mean

LAYERS: Final = "activation_offload_layers"
FALLBACK: Final = "the stack's default"

__all__ = ["Entry", "entries_of", "parse"]


class _Unique(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, for the last would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(path: str | Path, text: str) -> Any:
    """The content of a YAML or JSON file, from its text.

    Raises
    ------
    InputError
        if it cannot be parsed.
    """
    try:
        return json.loads(text) if Path(path).suffix == ".json" else yaml.load(text, _Unique)
    except json.JSONDecodeError as error:
        raise InputError(f"The file {path} is not valid JSON at line {error.lineno}: {error.msg}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise InputError(f"The file {path} is not valid YAML{place}: {problem}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"The file {path} holds a value that cannot be built: {error}.") from error


def entries_of(path: str | Path, raw: Any) -> list[Entry]:
    """The jobs of a file's content: one mapping, a list of them, or a mapping with ``cases`` (and ``models``).

    Raises
    ------
    InputError
        one sentence: the entry, the field, its value, and what is allowed.
    """
    models: Mapping[str, Any] = {}
    if isinstance(raw, Mapping) and "cases" in raw:
        if isinstance(raw.get("models"), Mapping):
            models = raw["models"]
        raw = raw["cases"]
        if not isinstance(raw, list):
            raise InputError(f"{path}: cases must be a list of jobs, but it is {type(raw).__name__}.")
    many = raw if isinstance(raw, list) else [raw]
    if not many:
        raise InputError(f"The file {path} holds no job.")
    return [entry for i, one in enumerate(many, 1) for entry in _entries(path, i, one, models)]


def _entries(path: str | Path, i: int, raw: Any, models: Mapping[str, Any]) -> Iterator[Entry]:
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise InputError(f"{path}: job {i} must be a mapping with model, hardware, gpus and config.")
    name = str(raw.get("id") or i)
    where = f"{path}: job {name}"
    raw = _own_names(where, raw)
    for key in raw:
        if key not in spell.JOB_KEYS and key not in spell.ENTRY_NOTES:
            raise InputError(f"{where} has an unknown field {key!r}{did_you_mean(key, spell.JOB_KEYS)}")
    if "model" not in raw:
        raise InputError(f"{where} lacks the field 'model'.")
    config = raw.get("config") or {}
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: config must be a mapping, but it is {config!r}.")
    candidates = config.get("candidates")
    if candidates is not None:
        rest = {k: v for k, v in config.items() if k != "candidates"}
        for label, one in _candidates(where, candidates):
            yield _entry(path, f"{name}.{label}", raw, {**rest, **one}, models)
        return
    yield _entry(path, name, raw, config, models)


def _own_names(where: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with its sizes under our names.

    Raises
    ------
    InputError
        if two spellings give two values.
    """
    out = {key: value for key, value in raw.items() if key not in spell.ENTRY_SPELLINGS}
    for key, name in spell.ENTRY_SPELLINGS.items():
        value = raw.get(key)
        if value is None:
            continue
        if out.get(name) not in (None, value):
            raise InputError(f"{where}: {name} is given twice, as {out[name]!r} and as {value!r}.")
        out[name] = value
    return out


def _candidates(where: str, raw: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Several configurations of one job: a list, or a mapping from their names."""
    named = raw.items() if isinstance(raw, Mapping) else enumerate(raw, 1) if isinstance(raw, list) else None
    if named is None:
        raise InputError(
            f"{where}: candidates must be a list or a mapping of configurations, but it is {raw!r}."
        )
    for label, one in named:
        if not isinstance(one, Mapping):
            raise InputError(f"{where}: candidate {label} must be a mapping, but it is {one!r}.")
        yield str(label), one


def _entry(
    path: str | Path, name: str, raw: Mapping[str, Any], config: Mapping[str, Any], models: Mapping[str, Any]
) -> Entry:
    where = f"{path}: job {name}"
    out = Entry(name, model=raw["model"], hardware=raw.get("hardware"), models=models)
    for key in (*SIZES, "mbs"):
        out.state(where, key, raw.get(key))
    out.target, out.margin = raw.get("target"), raw.get("margin")
    out.step_seconds = raw.get("step_seconds")
    if raw.get("precision") is not None:
        out.precision = _precision(out, str(raw["precision"]))
    if "free" in config:
        out.skipped, out.free = "it leaves the configuration free: solve it", True
    _config(where, out, {key: value for key, value in config.items() if key != "free"})
    _state_dtypes(where, out, raw.get("state_dtypes"))
    return out


def _precision(out: Entry, word: str) -> str:
    word = word.lower().replace("-", "_")
    if word in spell.LOOSE_PRECISIONS:
        out.read_as["precision"] = f"{word} as {spell.LOOSE_PRECISIONS[word]}"
        return spell.LOOSE_PRECISIONS[word]
    return spell.PRECISIONS.get(word, word)


def _config(where: str, out: Entry, config: Mapping[str, Any]) -> None:
    """Read the configuration of an entry into its plan, settings and sizes."""
    rest = {k: v for k, v in config.items() if k not in ("name", "id", "note", "notes", "measured", "expect")}
    _dispatcher(where, out, rest)
    _recompute(where, out, rest.pop("recompute", None))
    for switches, amounts, target, alone in spell.AMOUNTS:
        _amount(where, out, rest, switches, amounts, target, alone)
    for key, value in rest.items():
        if key in spell.OUT_OF_SCOPE:
            if value:
                out.ignored[key] = spell.OUT_OF_SCOPE[key]
            continue
        if key in spell.PASSED_OVER:
            out.passed += 1
            continue
        if key in REPLACES or key in MATTERS:
            if matter(key, value):
                into = out.unmodelled if key in REPLACES else out.ignored
                into[key] = REPLACES.get(key) or MATTERS[key]
            continue
        name = spell.RENAMED.get(key, key)
        known = name in spell.PLAN_FIELDS or name in spell.SETTING_FIELDS or name in SIZES
        if not known and name != "mtp_num_layers":
            raise InputError(
                f"{where}: config has an unknown field {key!r}{did_you_mean(key, spell.known_spellings())}"
            )
        out.state(where, name, value)


def _amount(
    where: str,
    out: Entry,
    rest: dict[str, Any],
    switches: tuple[str, ...],
    amounts: tuple[str, ...],
    target: str,
    alone: float | None,
) -> None:
    """Read a switch and the amount that it turns on: off means none, whatever the amount."""
    given = {name: rest.pop(name) for name in switches if name in rest}
    stated = [(name, rest.pop(name)) for name in amounts if name in rest]
    for name, on in given.items():
        if on is not None and not isinstance(on, bool):
            raise InputError(f"{where}: {name} is {on!r}, but it must be true or false.")
    if False in given.values():
        return
    known = [value for _, value in stated if value is not None]
    for value in known:
        out.state(where, target, value)
    if True in given.values() and not known:
        if alone is None:
            raise InputError(f"{where}: {next(iter(given))} is on, but {amounts[1]} is missing.")
        out.state(where, target, alone)
        out.read_as[next(iter(given))] = (
            f"{target} {alone:g}, {'the fewest' if target == LAYERS else FALLBACK}"
        )


def _dispatcher(where: str, out: Entry, rest: dict[str, Any]) -> None:
    """Read the dispatcher by its name, and by the launcher's type and backend; both must say the same."""
    backend = rest.pop("flex_backend", None)
    backend = rest.pop("moe_flex_dispatcher_backend", None) or backend
    for key in ("dispatcher", "moe_token_dispatcher_type"):
        word = rest.pop(key, None)
        word = spell.DISPATCHERS.get(str(word), word)
        if word == "flex":
            if backend is None:
                out.read_as[key] = "flex as deepep, the stack's default backend"
            word = backend or "deepep"
        out.state(where, "dispatcher", word)


def _recompute(where: str, out: Entry, raw: Any) -> None:
    if raw is None or raw is False or raw in ("none", "off"):
        return
    if raw in ("selective", "full"):
        out.state(where, "recompute_granularity", raw)
        if raw == "full":
            out.state(where, "recompute_method", "uniform")
            out.state(where, "recompute_num_layers", 1)
            out.read_as["recompute"] = "full as uniform, one layer at a time"
        return
    if not isinstance(raw, Mapping):
        raise InputError(
            f"{where}: recompute is {raw!r}, but it must be a mapping with granularity, method, num_layers, modules."
        )
    for key, value in raw.items():
        if key not in spell.RECOMPUTE:
            raise InputError(
                f"{where}: recompute has an unknown field {key!r}{did_you_mean(str(key), spell.RECOMPUTE)}"
            )
        out.state(where, spell.RECOMPUTE[key], None if value == "none" else value)


def _state_dtypes(where: str, out: Entry, raw: Any) -> None:
    """Read the formats of parameters, gradients and optimizer state."""
    if raw is None:
        return
    if not isinstance(raw, Mapping):
        raise InputError(f"{where}: state_dtypes must be a mapping, but it is {raw!r}.")
    first, second = raw.get("exp_avg"), raw.get("exp_avg_sq")
    if first is not None and second is not None and first != second:
        raise InputError(
            f"{where}: state_dtypes.exp_avg is {first!r} and exp_avg_sq {second!r}, but one format is priced for both."
        )
    for key, value in raw.items():
        if key not in spell.STATE_DTYPES:
            known = did_you_mean(str(key), spell.STATE_DTYPES)
            raise InputError(f"{where}: state_dtypes has an unknown field {key!r}{known}")
        name = spell.STATE_DTYPES[key]
        if value is None:
            continue
        if isinstance(value, str):
            if value not in spell.DTYPES:
                allowed = ", ".join(sorted(set(spell.DTYPES.values())))
                raise InputError(
                    f"{where}: state_dtypes.{key} is {value!r}, but it must be one of {allowed}"
                    f"{did_you_mean(value, spell.DTYPES)}"
                )
            value = spell.DTYPES[value]
        if name == "param":
            out.state(where, "fp8_param", value == "fp8")
        else:
            out.state(where, name, value)
    low = out.settings.get("moment_dtype", "fp32") != "fp32" or out.settings.get("main_param_dtype") == "fp16"
    if low and "precision_aware_optimizer" not in out.plan:
        # Moments and masters in less than 32 bits exist under that optimizer only.
        out.plan["precision_aware_optimizer"] = True
        out.read_as["precision_aware_optimizer"] = "on, which state in less than 32 bits needs"
