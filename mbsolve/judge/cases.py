"""An entry of a job file made into a job and a plan: completed from the defaults, with what that added told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mbsolve.constraints.job import Job
from mbsolve.constraints.lighter import FORMATS, RECOMPUTE
from mbsolve.constraints.vocabulary import PRECISIONS, Plan
from mbsolve.emit.entry import Entry
from mbsolve.emit.formats import Given, read_entries
from mbsolve.errors import InputError, did_you_mean
from mbsolve.faults import wanted
from mbsolve.judge.completion import defaults_taken
from mbsolve.judge.parts import machine_of, model_of
from mbsolve.models.card import Model, load_model
from mbsolve.models.partial import PartialModel, UnknownDimensionError
from mbsolve.reading import make_job

__all__ = ["Case", "case_of", "read_cases"]

# What stands in for a size that is not known; no rule that reads the size is judged.
PLACEHOLDER = 4096
# No machine is larger; mends that ask for more GPUs would be without end.
MOST = 100_000
# Of the Bridge recipes of Qwen3 and DeepSeek-V3 with graphs of the whole iteration.
RANK_CAPACITY = 1.5
DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp")
# A job is built with this model where its own is only known in part, then given its own.
STAND_IN = "llama3-8b"


@dataclass(frozen=True)
class Case:
    """A configuration to judge.

    Parameters
    ----------
    name : its id in the file.
    job, plan : what is trained and how; sizes in ``unknown`` are placeholders.
    unknown : sizes of the job (``gpus``, ``seq_len``, ``gbs``) that are stated nowhere and have no default.
    completed : field -> value for what was absent and was completed.
    told : what was read loosely or ignored, in words.
    skipped : why there is nothing to judge; None when there is.
    unmodelled : options under which memory and time are another thing; the laws alone are judged.
    open_fields : formats of state and recompute that nothing states, of `constraints.lighter.OPEN_FIELDS`.
    demands : decisions that it states when it leaves the others to the solver; None when it leaves none.
    file : the file that it is from.
    step_seconds : the measured step that it states, not yet judged; None where it states none.
    """

    name: str
    job: Job
    plan: Plan
    unknown: frozenset[str]
    completed: dict[str, Any]
    told: tuple[str, ...] = ()
    skipped: str | None = None
    unmodelled: tuple[str, ...] = ()
    open_fields: tuple[str, ...] = ()
    demands: dict[str, Any] | None = None
    file: str = ""
    step_seconds: Any = None

    @property
    def question(self) -> str | None:
        """The command that solves what is left free; None when nothing is."""
        if self.demands is None:
            return None
        job = self.job
        parts = ["mbsolve", f"--model {job.model.name}", f"--hardware {job.machine.name}"]
        sizes = (("--gpus", "gpus"), ("--seq", "seq_len"), ("--gbs", "gbs"))
        parts += [f"{flag} {getattr(job, name)}" for flag, name in sizes if name not in self.unknown]
        parts += [f"--precision {job.precision}", f"--target {job.target}"]
        parts += [f"--fix {name}={_said(value)}" for name, value in self.demands.items()]
        changed = job.settings.model_dump(exclude_defaults=True)
        return " ".join([*parts, *(f"--set {name}={_said(value)}" for name, value in changed.items())])


def read_cases(path: str | Path, given: Given | None = None) -> list[Case]:
    """Every job of a file; ``given`` fills what it leaves open.

    Raises
    ------
    InputError
        one sentence: the job, the field, its value, and what is allowed.
    """
    entries = read_entries(path, given)
    cases = [case_of(one, str(path) if one.form else f"{path}: job {one.name}") for one in entries]
    return [replace(case, file=str(path)) for case in cases]


def case_of(entry: Entry, where: str) -> Case:
    """Complete an entry.

    Raises
    ------
    InputError
        one sentence that starts with ``where``.
    """
    try:
        return _case(entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the job"
        raise InputError(f"{where}: {field} is {first['input']!r}, but {wanted(first)}.") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _case(entry: Entry) -> Case:
    completed: dict[str, Any] = {}
    told = _told(entry)
    machine = machine_of(entry.hardware, completed)
    model = model_of(entry.model, entry.models, entry.model_changes, completed)
    sizes = dict(entry.sizes)
    unknown = {name for name in ("gpus", "seq_len", "gbs") if name not in sizes}
    for name, value, default in (
        ("precision", entry.precision, "bf16"),
        ("target", entry.target, "bridge"),
        ("gpus_per_node", sizes.get("gpus_per_node"), machine.gpus_per_node),
    ):
        if value is None:
            completed[name] = default
    plan = Plan(**_plan_fields(entry, completed, _has_experts(model)))
    settings = _settings(entry, plan, completed, _has_experts(model))
    for name in DEGREES:
        if getattr(plan, name) > MOST:
            raise InputError(f"{name} is {getattr(plan, name)}, but it must be at most {MOST}.")
    job = make_job(
        model=load_model(STAND_IN) if isinstance(model, PartialModel) else model,
        hardware=machine,
        gpus=sizes.get("gpus", PLACEHOLDER),
        seq_len=sizes.get("seq_len", PLACEHOLDER),
        gbs=sizes.get("gbs", PLACEHOLDER),
        gpus_per_node=sizes.get("gpus_per_node"),
        block_gpus=sizes.get("block_gpus"),
        target=entry.target or "bridge",
        margin=entry.margin,
        settings=settings,
    )
    # A format that the machine lacks is for a rule to say, not a reason to read no further.
    precision = _known_precision(entry.precision or "bf16")
    job = job.model_copy(update={"model": _less_known(model, plan, completed), "precision": precision})
    if "gbs" in unknown and not unknown & {"gpus", "seq_len"}:
        gbs = _default_batch(job, plan)
        if gbs is not None:
            job = job.model_copy(update={"gbs": gbs})
            completed["gbs"] = gbs
            unknown -= {"gbs"}
    completed = {**defaults_taken(entry, job, plan), **completed}
    return Case(
        entry.name,
        job,
        plan,
        frozenset(unknown),
        completed,
        told,
        skipped=entry.skipped,
        unmodelled=tuple(entry.unmodelled),
        open_fields=_open_fields(entry),
        demands=dict(entry.plan) if entry.free else None,
        step_seconds=entry.step_seconds,
    )


def _said(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _open_fields(entry: Entry) -> tuple[str, ...]:
    """What a description of a job, or changes of a recipe that is not seen, leave open about memory.

    In a launcher's own configuration what is absent is off. So it is in a job file that states some format of the state:
    whoever writes that down describes the memory, and would say more.
    """
    whole = entry.form is not None and not entry.on_recipe
    if whole or any(name in entry.settings for name in FORMATS):
        return ()
    closed = entry.plan.get("precision_aware_optimizer") is False
    out = [name for name in FORMATS if not (closed and name in ("moment_dtype", "main_param_dtype"))]
    if not any(name.startswith("recompute") for name in entry.plan):
        out.append(RECOMPUTE)
    return tuple(out)


def _known_precision(word: str) -> str:
    if word not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise InputError(
            f"precision is {word!r}, but it must be one of {allowed}{did_you_mean(word, PRECISIONS)}"
        )
    return word


def _told(entry: Entry) -> tuple[str, ...]:
    """How the file was read, in words."""
    told = [f"read as {entry.form}"] if entry.form else []
    told += [f"{name} was read: {text}" for name, text in entry.read_as.items()]
    told += [f"{name} was ignored: {text}" for name, text in entry.ignored.items()]
    told += [
        f"{name} is not modelled ({text}): memory and time are not judged"
        for name, text in entry.unmodelled.items()
    ]
    if entry.passed:
        options = "option was" if entry.passed == 1 else "options were"
        told.append(f"{entry.passed} other {options} passed over")
    return tuple(told)


def _less_known(model: Model, plan: Plan, completed: dict[str, Any]) -> Model:
    """A partial model without what was completed for it and the plan speaks against: it has experts, or MTP layers."""
    if not isinstance(model, PartialModel):
        return model
    doubtful = []
    if "model.num_experts" in completed and max(plan.ep, plan.etp if plan.ep > 1 else 1) > 1:
        doubtful.append("num_experts")
    if "model.mtp_num_layers" in completed and "m" in (plan.pipeline_layout or ""):
        doubtful.append("mtp_num_layers")
    for name in doubtful:
        del completed[f"model.{name}"]
    return model.without(doubtful)


def _has_experts(model: Model) -> bool:
    """Whether the model is known to have experts."""
    try:
        return bool(model.is_moe)
    except UnknownDimensionError:
        return False


def _plan_fields(entry: Entry, completed: dict[str, Any], experts: bool) -> dict[str, Any]:
    """The stated fields of the plan, and what follows where nothing is said.

    Raises
    ------
    pydantic.ValidationError
        if a stated field is of a wrong type.
    """
    stated = Plan(**entry.plan)
    out: dict[str, Any] = {name: getattr(stated, name) for name in entry.plan}

    def complete(name: str, value: Any) -> None:
        if out.get(name) is None:
            out[name] = completed[name] = value

    for name in ("tp", "cp", "pp", "ep", "mbs"):
        complete(name, 1)
    # An expert grid that is not described means another thing to each launcher: Bridge has its own default under EP.
    as_tp = entry.target == "megatron-lm" or (experts and out["ep"] == 1)
    complete("etp", out["tp"] if as_tp else 1)
    if "sequence_parallel" not in out:
        complete("sequence_parallel", out["tp"] > 1)
    if out.get("recompute_granularity") == "selective" and "recompute_modules" not in out:
        complete("recompute_modules", ("core_attn",))
    if out.get("recompute_granularity") == "full" and entry.on_recipe:
        complete("recompute_method", "uniform")
        complete("recompute_num_layers", 1)
    return out


def _settings(entry: Entry, plan: Plan, completed: dict[str, Any], experts: bool) -> dict[str, Any]:
    """The stated settings, and those without which a graph of the whole iteration cannot hold experts: as recipes do."""
    out = dict(entry.settings)
    described = entry.form is None or entry.on_recipe
    whole = plan.cuda_graph_impl == "full_iteration" and plan.dispatcher == "hybridep"
    if (
        described
        and experts
        and whole
        and entry.target != "megatron-lm"
        and "expert_rank_capacity" not in out
    ):
        out["expert_rank_capacity"] = completed["expert_rank_capacity"] = RANK_CAPACITY
        if "op_fuser" not in out:
            out["op_fuser"] = completed["op_fuser"] = True
    return out


def _default_batch(job: Job, plan: Plan) -> int | None:
    """Sequences of the model's default batch, in whole micro-batches of every data-parallel rank."""
    try:
        tokens = job.model.default_tokens_per_batch()
    except (UnknownDimensionError, ValueError):
        # A model of which only some dimensions are known has no number of parameters.
        return None
    dp = max(1, job.gpus // (plan.tp * plan.cp * plan.pp))
    unit = dp * plan.mbs * (plan.pp if plan.vpp > 1 else 1)
    return max(1, tokens // job.seq_len // unit) * unit
