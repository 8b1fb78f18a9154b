"""What is asked: a model, a machine, a size, and the settings that the mathematics of the run depends on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from mbsolve.constraints.anchor import Anchor
from mbsolve.constraints.vocabulary import Settings
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model


class Job(BaseModel, frozen=True, extra="forbid"):
    """A training job to be configured.

    Parameters
    ----------
    model, machine : the cards of what is trained and of the GPUs it is trained on.
    gpus : number of GPUs, at least 1; any integer.
    seq_len : tokens of one sequence, at least 1.
    gbs : sequences of one step (global batch size), at least 1.
    gpus_per_node : GPUs that share a host; the card's figure when absent.
    block_gpus : GPUs of an NVLink domain that the scheduler places together; the card's figure when absent.
    precision : numeric format of the matrix products.
    margin : fraction of the device memory that is kept free.
    anchor : a measured run of the same model and machine that evaluated times are scaled by; None for none.
    """

    model: Model
    machine: Machine
    gpus: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    gbs: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)
    block_gpus: int | None = Field(default=None, ge=1)
    precision: Literal["bf16", "fp8_cs", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4"] = "bf16"
    target: Literal["bridge", "bridge-0.6", "megatron-lm"] = "bridge"
    margin: float = Field(default=0.03, ge=0.0, lt=1.0)
    settings: Settings = Settings()
    anchor: Anchor | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            data = dict(data)
            machine, model = data.get("machine"), data.get("model")
            if data.get("gpus_per_node") is None and isinstance(machine, Machine):
                data["gpus_per_node"] = machine.gpus_per_node
            if data.get("gbs") is None and isinstance(model, Model) and data.get("seq_len"):
                data["gbs"] = max(1, model.default_tokens_per_batch() // int(data["seq_len"]))
        return data

    @cached_property
    def topology(self) -> Topology:
        """Which network a group of ranks spans."""
        return Topology(
            self.machine, gpus=self.gpus, gpus_per_node=self.gpus_per_node, block_gpus=self.block_gpus
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The names that rules and terms may ask for beside decisions."""
        return {"job": self, "model": self.model, "machine": self.machine, "topology": self.topology}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Job:
        """A copy with some fields changed; what was derived from the old fields is not carried over."""
        out = super().model_copy(update=update, deep=deep)
        derived: dict[str, Any] = vars(out)
        for name in ("topology", "facts"):
            derived.pop(name, None)
        return out

    def __getstate__(self) -> dict[Any, Any]:
        """What is pickled: the fields, without what was derived from them."""
        state = super().__getstate__()
        own = type(self).model_fields
        return {**state, "__dict__": {name: value for name, value in vars(self).items() if name in own}}

    @property
    def time_factor(self) -> float:
        """What a predicted time is multiplied with before it is shown."""
        return 1.0 if self.anchor is None else self.anchor.factor

    @property
    def quantised(self) -> bool:
        """Whether matrix products run in 8 or 4 bits."""
        return self.precision != "bf16"

    @property
    def nodes(self) -> int:
        """Hosts that the job occupies."""
        return -(-self.gpus // self.gpus_per_node)


def derive(job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """Data-parallel sizes and micro-batches that follow from a layout; scalars or integer arrays.

    Returns ``dp``, ``edp`` and ``microbatches`` (each at least 1; floor division, so a layout that does not
    divide must be refused by its rule before the sizes mean anything).
    """
    dense = values["tp"] * values["cp"] * values["pp"]
    expert = values["etp"] * values["ep"] * values["pp"]
    dp = job.gpus // dense
    edp = job.gpus // expert
    dp = dp + (dp == 0)
    edp = edp + (edp == 0)
    microbatches = job.gbs // (dp * values["mbs"])
    return {"dp": dp, "edp": edp, "microbatches": microbatches + (microbatches == 0)}
