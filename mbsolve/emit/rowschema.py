"""The types of the fields that are read of measured rows; an odd value is told, not guessed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["OddRowError", "probe_fields", "published_fields", "published_names"]

# More GPUs or tokens than this are a slip of the pen.
MOST = 2**40
MOST_GPUS = 2**20

Count = Annotated[int, Field(ge=1, le=MOST)] | None
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


PROBE_NEEDS = ("gpus", "seq_len")


class OddRowError(ValueError):
    """A row has a value that cannot be read; the message names the field and the value."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    id: str
    model: str
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    seq_len: Count = None
    mbs: Count = None
    tp: Count = None
    pp: Count = None
    vpp: Count = None
    cp: Count = None
    ep: Count = None
    etp: Count = None
    recompute_granularity: str | None = None
    recompute_modules: list[str] | None = None
    recompute_num_layers: Annotated[int, Field(ge=0)] | None = None
    optimizer_offload_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    activation_offload_layers: Annotated[int, Field(ge=0)] | None = None
    outcome: str | None = None


Format = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"] | None


class _Extra(BaseModel):
    """What the reader takes from the free part of a published row."""

    model_config = ConfigDict(extra="allow", strict=True)

    arch: dict[str, Any] | None = None
    mtp_num_layers: Annotated[int, Field(ge=0, le=64)] | None = None
    gflops_per_token: Amount = None
    derived_step_time_ms: Amount = None
    pp_algorithm: str | None = None
    opt_exp_avg_dtype: Format = None
    optimizer_moments: Format = None
    opt_main_params_dtype: Format = None
    cp_comm_type: str | None = None


class _Published(_Row):
    tier: str
    hardware: str | None = None
    precision: str | None = None
    gpus_per_node: Count = None
    gbs: Count = None
    pp_layout: str | None = None
    sp: bool | None = None
    fsdp: bool | None = None
    dist_opt: bool | None = None
    dispatcher: str | None = None
    ep_overlap: bool | None = None
    delay_wgrad: bool | None = None
    fine_grained_offload_modules: list[str] | None = None
    cuda_graph_impl: str | None = None
    cuda_graph_scope: list[str] | None = None
    routing: str | None = None
    task: str | None = None
    model_params_note: str | None = None
    framework: str | None = None
    mem_note: str | None = None
    mem_unit_src: str | None = None
    moe: bool | None = None
    knobs_recorded: bool | None = None
    step_time_ms: Amount = None
    tokens_per_s_per_gpu: Amount = None
    tflops_per_gpu: Amount = None
    mem_allocated_gb: Amount = None
    mem_static_gb: Amount = None
    mem_reserved_gb: Amount = None
    mem_per_rank_allocated_gib: list[Annotated[float, Field(gt=0)]] | None = None
    extra: _Extra | None = None


class _Probe(_Row):
    num_microbatches: Annotated[int, Field(ge=1)]
    hardware: str | None = None
    num_layers_override: Count = None
    dense_first_layers: Annotated[int, Field(ge=0)] | None = None
    mtp_layers: Annotated[int, Field(ge=0)] | None = None
    pp_rank: Annotated[int, Field(ge=0)] | None = None
    fp8: dict[str, Any] | None = None
    pipeline_layout: str | None = None
    recompute_method: str | None = None
    precision_aware_optimizer: bool | None = None
    optimizer_fp8_recipe: str | None = None
    store_param_remainders: bool | None = None
    grad_dtype: str | None = None
    main_param_dtype: str | None = None
    moment_dtype: str | None = None
    layer_pattern: str | None = None
    linear_attention_freq: list[int] | None = None
    cuda_graph_impl: str | None = None
    cuda_graph_scope: list[str] | None = None
    fine_grained_offload_modules: list[str] | None = None
    activation_offload_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    inherited_gib: float | None = None
    between_steps_gib: Amount = None
    peak_allocated_gib: Amount = None
    peak_reserved_gib: Amount = None
    fwd_bwd_ms: Amount = None


def _fields(schema: type[_Row], raw: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return schema.model_validate(dict(raw)).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise OddRowError(f"the row lacks {field}") from error
        raise OddRowError(f"the row has an odd {field}: {str(first['input'])[:40]!r}") from error


def published_names() -> tuple[str, ...]:
    """The names of the fields that are read of a published measurement."""
    return tuple(_Published.model_fields)


def published_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a published measurement.

    Raises
    ------
    OddRowError
        naming the field that cannot be read.
    """
    return _fields(_Published, raw)


def probe_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a probe.

    Raises
    ------
    OddRowError
        naming the field that cannot be read.
    """
    found = _fields(_Probe, raw)
    for name in PROBE_NEEDS:
        if found[name] is None:
            raise OddRowError(f"the row lacks {name}")
    return found
