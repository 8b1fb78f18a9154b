"""The machine card: what the GPUs, their links and their hosts can do, and how well it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mbsolve.cards import (
    CardError,
    card_names,
    card_sources,
    explain,
    find_card,
    plain_values,
    read_mapping,
)

__all__ = ["CALIBRATION", "CardError", "Machine", "Network", "load_machine", "machine_names", "parse_machine"]

DATA = Path(__file__).parent / "data"

FAMILY_CARD = {"hopper": "h100", "b200": "b200", "gb200": "gb200", "x300": "b300"}
"""The shipped card from which a user's card of the same calibration family takes the constants it leaves out."""

CALIBRATION = {
    "gemm_bf16_fraction": "BF16 GEMM rate, share of the dense peak",
    "gemm_fp8_fraction": "FP8 GEMM rate, share of the dense peak",
    "gemm_fp4_fraction": "FP4 GEMM rate, share of the dense peak",
    "fp8_block_factor": "blockwise FP8 GEMM rate, relative to tensor-wise",
    "attention_fraction": "forward attention at long sequences, share of the BF16 peak",
    "attention_small_head_factor": "attention with heads of 64 or less, relative to wider ones",
    "attention_half_length": "tokens at which attention reaches half of its rate",
    "attention_backward_ratio": "backward attention efficiency, relative to forward",
    "elementwise_fraction": "norms, activations, rope, quantising: share of the HBM rate",
    "moe_memory_fraction": "router, permute, expert activation: share of the HBM rate",
    "scan_fraction": "scan of Mamba-2 and gated delta nets, share of the dense BF16 peak",
    "stream_fraction": "weight and gradient streams of a GEMM: share of the HBM rate",
    "kernel_seconds": "gap and ramp of one kernel on the device",
    "host_op_seconds": "host time of one framework op",
    "graph_left": "share of host time left on a block that a scoped CUDA graph captures",
    "alltoall_fraction": "all-to-all dispatcher, share of the NVLink rate",
    "deepep_fraction": "DeepEP, share of the NVLink rate",
    "hybridep_fraction": "HybridEP, share of the NVLink rate",
    "scaleout_fraction": "any dispatcher across domains, share of the scale-out rate",
    "ep_overlap_hidden": "share of expert communication that EP overlap hides",
    "collective_fraction": "TP, CP and DP collectives, share of the link rate",
    "tp_overlap_hidden": "share of TP collectives that TP overlap hides",
    "dp_exposed_fraction": "share of DP collectives that never overlaps",
    "dp_window_fraction": "share of a micro-batch that can hide DP collectives",
    "p2p_exposed_fraction": "share of stage-to-stage transfers that is exposed",
    "fixed_seconds": "data, logging, gradient norm: once a step",
    "cpu_adam_params_per_second": "Adam on the host, parameters a rank",
    "optimizer_offload_fixed_seconds": "optimizer offload: once a step",
    "optimizer_offload_link_bytes_per_second": "optimizer offload: host link of one rank",
    "optimizer_stream_fraction": "GPU optimizer, share of the HBM rate",
    "natural_routing_factor": "busiest expert rank under natural routing, relative to balanced",
    "fp8_launch_factor": "launches of a quantised GEMM, relative to BF16",
    "expert_launch_ops": "framework ops for each local expert of an unfused grouped GEMM",
    "recompute_ops": "framework ops for each recomputed module",
    "host_device_norm": "exponent of the soft maximum of host and device time",
    "activation_offload_exposed": "share of activation-offload transfers that is exposed",
}
"""Names of the constants that the time model reads, with their meaning. Rates are shares of a peak, times seconds."""

PRECISION_CLASS = {
    "bf16": "bf16",
    "fp8_cs": "fp8",
    "fp8_delayed": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}
"""Precision -> the entry of `Machine.matrix_flops` that its GEMMs run at."""

Positive = Annotated[int, Field(strict=True, ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Precision = Literal["bf16", "fp8_cs", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4"]


class Network(BaseModel):
    """One level of the network.

    Parameters
    ----------
    name
        The name for people.
    gpus
        GPUs that reach each other over it; None: all.
    bytes_per_second
        Rate of one GPU in one direction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gpus: Positive | None
    bytes_per_second: Rate


class Machine(BaseModel):
    """A kind of GPU server as a card describes it.

    Parameters
    ----------
    name, title, aliases
        The card's own name, the name for people, and other names that find it.
    generation, compute_capability, device_name
        What rules about kernels ask for, and what the driver calls the GPU.
    calibration_family
        Which fit the rates in `calibration` come from.
    gpus_per_node
        GPUs of one host; at least 1.
    hbm_bytes, hbm_bytes_per_second
        Memory that the driver gives a process, and its rate.
    host_ram_bytes_per_node, host_link_bytes_per_second, host_link, host_cpu
        Host memory, and the link between one GPU and its host in one direction.
    matrix_flops
        ``bf16``, ``fp8``, ``fp4`` -> dense peak in FLOP/s; a format that the GPU lacks is left out.
    networks
        The fast domain, then the scale-out network (``gpus`` None).
    block_gpus
        GPUs of a domain that one job uses as a block by default (64 of an NVL72); None: the whole domain.
    supported_precisions
        Precisions with kernels on this GPU.
    calibration
        The constants of `CALIBRATION`; the fp8 and fp4 ones only where `matrix_flops` has the format.
    sources
        Field (inside a field with dots) -> where its value comes from.

    Raises
    ------
    pydantic.ValidationError
        If a field is of a wrong type or the fields contradict each other (`parse_machine` raises `CardError`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    title: str
    aliases: tuple[str, ...] = ()
    generation: Literal["ampere", "hopper", "blackwell"]
    calibration_family: Literal["hopper", "b200", "gb200", "x300"]
    compute_capability: tuple[Positive, Annotated[int, Field(strict=True, ge=0)]]
    device_name: str
    gpus_per_node: Positive
    hbm_bytes: Positive
    hbm_bytes_per_second: Rate
    host_ram_bytes_per_node: Positive
    matrix_flops: dict[Literal["bf16", "fp8", "fp4"], Rate]
    networks: tuple[Network, ...]
    block_gpus: Positive | None = None
    host_link_bytes_per_second: Rate
    host_link: str
    host_cpu: Literal["x86", "grace"]
    supported_precisions: tuple[Precision, ...]
    calibration: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    sources: dict[str, str] = Field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash by name, because some fields are dicts; equality still compares every field."""
        return hash(self.name)

    @model_validator(mode="after")
    def _networks_are_nested(self) -> Machine:
        reaches = [network.gpus for network in self.networks]
        if len(reaches) != 2 or reaches[0] is None or reaches[1] is not None:
            raise ValueError(
                f"networks reach {reaches} GPUs, but a domain and then an unlimited one (null) are needed."
            )
        if self.block_gpus is not None and self.block_gpus > reaches[0]:
            raise ValueError(f"block_gpus is {self.block_gpus}, but a domain has {reaches[0]} GPUs.")
        return self

    @model_validator(mode="after")
    def _formats_are_known(self) -> Machine:
        if "bf16" not in self.matrix_flops:
            raise ValueError("matrix_flops lacks bf16, but every machine needs it.")
        for precision in self.supported_precisions:
            if PRECISION_CLASS[precision] not in self.matrix_flops:
                raise ValueError(
                    f"supported_precisions has {precision}, but matrix_flops lacks {PRECISION_CLASS[precision]}."
                )
        for name, value in self.calibration.items():
            divides = name.endswith(("_fraction", "_ratio", "_factor", "_per_second", "_length"))
            if value == 0 and divides and "exposed" not in name:
                raise ValueError(
                    f"calibration has {name} 0, but the time model divides by it: it must be above 0."
                )
            share = name.endswith(("_fraction", "_hidden", "_left", "_exposed"))
            if value > 1 and share:
                raise ValueError(f"calibration has {name} {value:g}, but it is a share: at most 1.")
        absent = {f"gemm_{form}_fraction" for form in ("fp8", "fp4") if form not in self.matrix_flops}
        wanted = [name for name in CALIBRATION if name not in absent]
        for name in wanted:
            if name not in self.calibration:
                raise ValueError(f"calibration lacks {name}, but the time model needs it.")
        for name in self.calibration:
            if name not in wanted:
                raise ValueError(
                    f"calibration has {name}, but it is not among the constants of this machine."
                )
        return self

    @property
    def domain_network(self) -> Network:
        """The fast network of one domain."""
        return self.networks[0]

    @property
    def scaleout_network(self) -> Network:
        """The network between domains."""
        return self.networks[-1]


def _with_family(raw: Mapping[str, object], default: str) -> dict[str, object]:
    """Fill the calibration that a card leaves out from the shipped card of its family."""
    own, family = raw.get("calibration", {}), plain_values(raw.get("calibration_family"))
    base = FAMILY_CARD.get(family) if isinstance(family, str) else None
    if base is None or not isinstance(own, dict):
        return dict(raw)
    shipped, formats = load_machine(base), plain_values(raw.get("matrix_flops"))
    formats = formats if isinstance(formats, dict) else {}
    filled: dict[str, object] = {
        name: {"value": value, "source": f"card {base}: {shipped.sources[f'calibration.{name}']}"}
        for name, value in shipped.calibration.items()
        if name not in ("gemm_fp8_fraction", "gemm_fp4_fraction") or name.split("_")[1] in formats
    }
    own = {
        name: leaf if isinstance(leaf, dict) else {"value": leaf, "source": default}
        for name, leaf in own.items()
    }
    return {**raw, "calibration": {**filled, **own}}


def parse_machine(
    raw: Mapping[str, object], where: str = "The machine", *, complete_from_family: bool = True
) -> Machine:
    """Build a machine from the mapping of a card or of a job file.

    Parameters
    ----------
    raw
        Field -> value or ``{value: ..., source: ...}``; a top-level ``source`` is the default source.
    where
        How the error names the card; it starts a sentence.
    complete_from_family
        Whether constants that ``calibration`` leaves out come from the shipped card of the same family.

    Raises
    ------
    CardError
        One sentence: the field, its value, and what is allowed.
    """
    default = raw.get("source", where)
    if not isinstance(default, str):
        raise CardError(f"{where}: source is {default!r}, but it must be a text.")
    fields = [field for field in Machine.model_fields if field != "sources"]
    try:
        if complete_from_family:
            raw = _with_family(raw, default)
        values = plain_values({key: value for key, value in raw.items() if key != "source"})
        found = card_sources(raw, (f for f in fields if f not in ("name", "title", "aliases")), default)
        return Machine.model_validate({"sources": found, **(values if isinstance(values, dict) else {})})
    except ValidationError as error:
        raise CardError(explain(error, where, fields)) from error
    except RecursionError as error:
        raise CardError(f"{where} contains itself.") from error


@lru_cache(maxsize=64)
def _shipped(path: Path) -> Machine:
    return parse_machine(read_mapping(path), f"The machine card {path.stem}", complete_from_family=False)


def machine_names() -> tuple[str, ...]:
    """Return the names of the shipped cards, sorted."""
    return card_names(DATA)


def load_machine(name_or_path: str | Path) -> Machine:
    """Return the card of a name, an alias or a YAML file.

    Parameters
    ----------
    name_or_path
        A shipped name or alias (case and ``-``, ``_``, ``.`` do not count), or the path of a card: anything
        with a ``/``, ending in ``.yaml`` or ``.yml``, or naming a file that exists.

    Raises
    ------
    CardError
        If there is no such card, or the file is no valid card.
    """
    path = find_card(name_or_path, DATA, "machine")
    return _shipped(path) if path.parent == DATA else parse_machine(read_mapping(path), f"The card {path}")
