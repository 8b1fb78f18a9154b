"""What a user gives, made into a job: names, paths, numbers and NAME=VALUE texts; one sentence when it is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mbsolve.cards import CardError
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import PRECISIONS, TARGETS, Settings
from mbsolve.errors import InputError, did_you_mean
from mbsolve.faults import wanted
from mbsolve.hardware.card import Machine, load_machine
from mbsolve.models.card import Model, load_model

__all__ = ["InputError", "assignments", "did_you_mean", "job_of", "make_job", "parse_value"]

JOB_FIELDS = ("precision", "margin", "target", "gbs", "gpus_per_node", "block_gpus")
"""Fields of a job, beside its settings, that a NAME=VALUE text may set."""

MOST_GPUS = 2**20
MOST = 2**40
"""The largest numbers that are taken for more than a slip of the pen."""

NUMBERS = ("gpus", "seq_len", "gbs", "gpus_per_node", "block_gpus", "margin")


def make_job(
    model: str | Path | Model = "dsv3",
    hardware: str | Path | Machine = "h100",
    gpus: int = 256,
    seq_len: int | None = None,
    gbs: int | None = None,
    gpus_per_node: int | None = None,
    precision: str = "bf16",
    margin: float | None = None,
    block_gpus: int | None = None,
    target: str = "bridge",
    settings: Mapping[str, Any] | Settings | None = None,
) -> Job:
    """Make a job from names and numbers.

    Parameters
    ----------
    model, hardware
        Name of a shipped card, path of a card, or the card itself.
    gpus, seq_len
        Whole numbers of at least 1; without a ``seq_len`` the card's published one, or 4,096.
    gbs
        Sequences a step, at least 1; from the card's tokens a batch when absent.
    gpus_per_node, block_gpus
        At least 1; the card's figures when absent.
    margin
        Share of the device memory that is kept free, from 0 to below 1; 0.03 when absent.
    settings
        Fields of `Settings` that differ from their defaults.

    Raises
    ------
    InputError
        One sentence: the field, its value, and what is allowed.
    """
    try:
        card = model if isinstance(model, Model) else load_model(model)
        machine = hardware if isinstance(hardware, Machine) else load_machine(hardware)
    except CardError as error:
        raise InputError(str(error)) from error
    if seq_len is None:
        seq_len = card.default_seq_len()
    fields: dict[str, Any] = {"gpus": _whole("gpus", gpus), "seq_len": _whole("seq_len", seq_len)}
    for name, count in (("gbs", gbs), ("gpus_per_node", gpus_per_node), ("block_gpus", block_gpus)):
        if count is not None:
            fields[name] = _whole(name, count)
    if margin is not None:
        fields["margin"] = _share("margin", margin)
    fields["precision"] = _choice("precision", precision, PRECISIONS)
    fields["target"] = _choice("target", target, TARGETS)
    if precision not in machine.supported_precisions:
        raise InputError(
            f"precision is {precision!r}, but {machine.title} supports {', '.join(machine.supported_precisions)}."
        )
    return Job(model=card, machine=machine, settings=_settings(settings), **fields)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}, but it must be a whole number of at least 1.")
    most = MOST_GPUS if name == "gpus" else MOST
    if value > most:
        raise InputError(f"{name} is {value}, but at most {most} is allowed.")
    return value


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} is {value!r}, but it must be a number from 0 to below 1.")
    return float(value)


def _choice(name: str, value: object, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise InputError(
            f"{name} is {value!r}, but it must be one of {', '.join(allowed)}{did_you_mean(str(value), allowed)}"
        )
    return str(value)


def _settings(given: Mapping[str, Any] | Settings | None) -> Settings:
    if isinstance(given, Settings):
        return given
    known = list(Settings.model_fields)
    for name in given or {}:
        if name not in known:
            raise InputError(
                f"{name!r} is no setting{did_you_mean(name, known).rstrip('.')}; known: {', '.join(known)}."
            )
    try:
        return Settings(**(given or {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{first['loc'][0]} is {first['input']!r}, but {wanted(first)}.") from error


def parse_value(text: str) -> Any:
    """Read a value as typed: an integer, a number, true/false, none/null, ``[a,b]`` or ``a,b``, else the text."""
    text = text.strip()
    if text.casefold() in ("none", "null"):
        return None
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        return [parse_value(item) for item in text[1:-1].split(",") if item.strip()]
    if "," in text:
        return [parse_value(item) for item in text.split(",") if item.strip()]
    return text


def assignments(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE texts.

    Raises
    ------
    InputError
        If a text has no name or no value.
    """
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not name or not equals or not value.strip():
            raise InputError(f"{option} {text!r} must be NAME=VALUE, for example {option} tp=4.")
        if name in out and out[name] != _value(name, value):
            raise InputError(f"{option} gives {name} two values, {out[name]!r} and {value.strip()!r}.")
        out[name] = _value(name, value)
    return out


def _value(name: str, text: str) -> Any:
    value = parse_value(text)
    # "none" is a word of its own here, and a layout may hold commas.
    if name == "cuda_graph_impl" and value is None:
        return "none"
    return text.strip() if name == "pipeline_layout" and value is not None else value


def job_of(fixes: Sequence[str], sets: Sequence[str], **options: Any) -> tuple[Job, dict[str, Any]]:
    """The job and the fixed decisions that ``--fix``, ``--set`` and the other options ask for.

    A setting or a field of the job may be given by ``--fix`` or ``--set``. Options that are None count as absent;
    numbers may be given as texts.

    Raises
    ------
    InputError
        One sentence, also when two options contradict each other.
    """
    fixed, changed = assignments("--fix", fixes), assignments("--set", sets)
    given = {
        name: parse_value(value) if name in NUMBERS and isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }
    settings: dict[str, Any] = {}
    decisions: dict[str, Any] = {}
    for option, values in (("--fix", fixed), ("--set", changed)):
        for name, value in values.items():
            home = given if name in JOB_FIELDS else settings
            if option == "--fix" and name not in JOB_FIELDS and name not in Settings.model_fields:
                home = decisions
            if name in home and home[name] != value:
                raise InputError(
                    f"{option} gives {name} the value {value!r}, but it has been given {home[name]!r}."
                )
            home[name] = value
    return make_job(**given, settings=settings), decisions
