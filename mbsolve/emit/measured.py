"""Published measurements, one JSON object a row, into entries to evaluate and figures to compare with.

What a row does not record is taken as its source most likely ran it, and told. What mbsolve does not model is a
reason, so that no row is left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mbsolve.emit.figures import Figures, figures_of
from mbsolve.emit.habits import Habits
from mbsolve.emit.jobfile import Entry
from mbsolve.emit.recorded import (
    finetuned_leanly,
    open_fields,
    recipe_graphs,
    recorded_settings,
)
from mbsolve.emit.recorded_plan import PER_STEP, recorded_plan
from mbsolve.emit.rowschema import OddRowError, published_fields
from mbsolve.emit.small_models import Flagged, Unmodelled, flagged_model
from mbsolve.emit.spellings import PRECISIONS
from mbsolve.hardware.card import CardError, load_machine

__all__ = ["Measured", "completed_row", "measured_row"]

# Stacks on Megatron-Core, by how a row's framework begins; and one that is not, though it begins so.
STACKS: Final = ("megatron", "nemo", "primus")
FOREIGN: Final = ("nemo-automodel",)
PLAIN_SCHEDULES: Final = ("1f1b", "1f1b-interleaved")
# "FP8" without a recipe: what the stack of that time took.
UNSTATED_FP8: Final[Mapping[str, str]] = {"NeMo": "fp8_delayed"}
REQUIRED: Final = ("hardware", "gpus", "precision", "tp", "pp", "cp")
OUTCOMES: Final = ("ok", "oom")
# Tiers of models so small that a step takes as long as its kernels take to launch.
LAUNCH_BOUND: Final = ("C-ci-small",)


@dataclass
class Measured:
    """One row: who says it, what was run, what was seen.

    Parameters
    ----------
    id, tier, hardware, precision, moe, knobs_recorded : as the row has them.
    entry : the configuration; None when ``reason`` says why there is none.
    figures : what was measured.
    no_time, no_peak : why the time, or the peak, is not compared though it was measured.
    habits : what the memory of the run has that a planned run has not.
    outcome : ``ok``, or ``oom`` where the run ended for lack of memory.
    open_fields : formats of state, and recompute, that nothing states, of `constraints.lighter.OPEN_FIELDS`.
    record : the row as it was read.
    least_batch : whether the length or the micro-batch is not recorded, and the least that is usual stands in for it.
    """

    id: str
    tier: str
    hardware: str
    precision: str
    moe: bool | None
    knobs_recorded: bool | None
    figures: Figures = field(default_factory=Figures)
    entry: Entry | None = None
    reason: str | None = None
    no_time: str | None = None
    no_peak: str | None = None
    habits: Habits = field(default_factory=Habits)
    outcome: str = "ok"
    open_fields: tuple[str, ...] = ()
    least_batch: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)


def completed_row(row: Measured, assumed: Mapping[str, Any]) -> Measured:
    """The row read again, for a ratio with another one: what it leaves open is taken from ``assumed``."""
    open_ = {name: value for name, value in assumed.items() if row.record.get(name) is None}
    return measured_row({**row.record, **open_}, as_ratio=True)


def measured_row(row: Mapping[str, Any], as_ratio: bool = False) -> Measured:
    """Read one row of the schema of published measurements.

    Parameters
    ----------
    as_ratio : whether it is compared with another row only, for which TFLOP/s are enough.
    """
    try:
        row = published_fields(row)
    except OddRowError as odd:
        return Measured(
            str(row.get("id")), str(row.get("tier")), "unknown", "unknown", None, None, reason=str(odd)
        )
    out = Measured(
        id=str(row.get("id")),
        tier=str(row.get("tier")),
        hardware=str(row.get("hardware")),
        precision=str(row.get("precision")),
        moe=row.get("moe"),
        knobs_recorded=row.get("knobs_recorded"),
        record=row,
    )
    out.figures = figures_of(row)
    row = _with_defaults(row)
    out.reason = _out_of_scope(row)
    out.outcome = str(row.get("outcome") or "ok")
    if out.outcome == "oom":
        # What was allocated when the run ended is no peak of a step.
        out.figures = Figures()
    enough = out.figures.any() or (as_ratio and out.figures.tflops_per_gpu is not None)
    if out.reason is None and out.outcome == "ok" and not enough:
        out.reason = "nothing was measured that is predicted"
    if out.reason is None:
        try:
            out.entry = _entry(row, out)
        except Unmodelled as why:
            out.reason = str(why)
    return out


def _with_defaults(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with what its source has as default where it does not say.

    One node for continuous integration; no context parallelism for a run that ended for lack of memory.
    """
    if row.get("outcome") == "oom" and row.get("cp") is None:
        row = {**row, "cp": 1}
    if row.get("gpus") is not None or row.get("tier") not in LAUNCH_BOUND or row.get("hardware") is None:
        return row
    try:
        return {**row, "gpus": load_machine(str(row["hardware"])).gpus_per_node}
    except CardError:
        return row  # for the reader of the machine to say


def _extra(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return row.get("extra") or {}


def _out_of_scope(row: Mapping[str, Any]) -> str | None:
    """Why a row is not one of a configuration that mbsolve models; None when it is."""
    extra, framework = _extra(row), str(row.get("framework") or "")
    if str(row.get("tier")).startswith("D-analytic"):
        return "an estimate, not a measurement"
    if framework and (framework.startswith(FOREIGN) or not framework.startswith(STACKS)):
        return f"another stack: {framework.split(' ')[0]}"
    if row.get("outcome") not in (None, *OUTCOMES):
        return f"the run ended with {str(row.get('outcome')).split(' ')[0].split(':')[0]}"
    if row.get("task") == "lora":
        return "LoRA is not modelled"
    if row.get("fsdp"):
        return "FSDP is not modelled"
    if extra.get("pp_algorithm") not in (None, *PLAIN_SCHEDULES):
        return f"the pipeline schedule {extra['pp_algorithm']} is not modelled"
    missing = [name for name in REQUIRED if row.get(name) is None]
    if missing:
        return f"not recorded: {missing[0]}"
    return None


def _entry(row: Mapping[str, Any], out: Measured) -> Entry:
    """The configuration of a row.

    Raises
    ------
    Unmodelled
        naming what is not modelled.
    """
    extra = _extra(row)
    entry = Entry(out.id, hardware=out.hardware, precision=_precision(row))
    entry.target = "megatron-lm" if str(row.get("framework")).startswith("megatron-lm") else "bridge"
    flagged = _flagged(row)
    if flagged is None:
        entry.model = _model(row)
    else:
        entry.model = flagged.model
        out.habits, out.no_peak = flagged.habits, flagged.no_peak
        if out.tier in LAUNCH_BOUND:
            out.no_time = "the step of a small model takes the time of its launches"
    for name in ("gpus", "gpus_per_node", "seq_len", "gbs"):
        if row.get(name) is not None:
            entry.sizes[name] = int(row[name])
    if row.get("gbs") is None:
        out.no_time = "not recorded: gbs"
    open_sizes = [name for name in PER_STEP if row.get(name) is None]
    if open_sizes:
        if out.figures.between_bytes is None and out.outcome == "ok":
            raise Unmodelled(f"not recorded: {open_sizes[0]}")
        out.no_time = f"not recorded: {open_sizes[0]}"
        out.least_batch = True
        out.figures = replace(out.figures, peak_bytes=None, peaks_by_rank=())
        entry.sizes["seq_len"] = row.get("seq_len") or PER_STEP["seq_len"]
    entry.plan = recorded_plan(row)
    entry.plan |= recipe_graphs(row)
    if finetuned_leanly(row):
        out.habits = Habits(transposed_weights=False)
    out.open_fields = () if flagged else open_fields(row)
    entry.settings = recorded_settings(row) | (flagged.settings if flagged else {})
    if flagged is not None and "num_experts" not in flagged.model:
        # Their grid is not built where there are no experts.
        entry.plan |= {"ep": 1, "etp": 1}
    if extra.get("opt_use_precision_aware_optimizer") is not None:
        entry.plan["precision_aware_optimizer"] = bool(extra["opt_use_precision_aware_optimizer"])
    elif entry.settings.get("moment_dtype", "fp32") != "fp32":
        entry.plan["precision_aware_optimizer"] = True
    return entry


def _precision(row: Mapping[str, Any]) -> str:
    word = str(row["precision"])
    if word in ("bf16", "fp16", "mxfp8", "nvfp4", "fp8_cs", "fp8_block", "fp8_delayed"):
        return "bf16" if word == "fp16" else word
    if word in PRECISIONS:
        return PRECISIONS[word]
    if word.startswith("fp8"):
        return next((p for era, p in UNSTATED_FP8.items() if era in word), "fp8_cs")
    raise Unmodelled(f"precision not stated: {word.split(' ')[0]}")


def _flagged(row: Mapping[str, Any]) -> Flagged | None:
    """The model, settings and habits of a row that keeps the launcher flags of its run; None for another row."""
    arch = _extra(row).get("arch")
    if not arch or not str(row.get("framework")).startswith("megatron-lm"):
        return None
    try:
        return flagged_model(row, arch)
    except (TypeError, ValueError) as odd:
        raise Unmodelled(f"the row has an odd extra.arch: {odd}") from odd


def _model(row: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a row: a name, with what differs from its card."""
    extra, note = _extra(row), str(row.get("model_params_note") or "")
    changes: dict[str, Any] = {}
    layers = re.search(r"reduced to (\d+) layers", note)
    if layers:
        changes["num_layers"] = int(layers[1])
    if "w/o MTP" in note:
        changes["mtp_num_layers"] = 0
    elif extra.get("mtp_num_layers") is not None:
        changes["mtp_num_layers"] = int(extra["mtp_num_layers"])
    return {"name": str(row["model"]), **changes}
