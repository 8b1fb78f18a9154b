"""The blocks of parameters that a pipeline rank holds, and their optimizer shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.compose import names_of
from mbsolve.constraints.memory.sizes import Value
from mbsolve.models.card import LayerKind, Model
from mbsolve.models.counts import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_extra_parameters,
)
from mbsolve.models.kinds import Mixer


class Parameters(NamedTuple):
    """Parameters of one block on one rank; ``cached`` are those in quantisable linear weights."""

    dense: Value
    expert: Value
    cached: Value


@dataclass(frozen=True)
class Block:
    """Parameters that come and go together: one for each unit of the count ``per``.

    Parameters
    ----------
    name : last part of the term names.
    per : stage count that multiplies it; ``step_<per>`` is the same at the optimizer step only, ``after_<per>`` from
        there to the next forward.
    parameters : function of the model and of parallel sizes.
    sharded_by : parallel sizes over which the distributed optimizer divides it.
    quantisable : whether it has linear weights of which a quantised job keeps copies.
    """

    name: str
    per: str
    parameters: Callable[..., Parameters]
    sharded_by: tuple[str, ...] = ("dp", "cp")
    quantisable: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        """Facts and decisions of `count`."""
        return names_of(self.parameters)

    @property
    def shard_needs(self) -> tuple[str, ...]:
        """Facts and decisions of `shard`."""
        return ("job", *self.needs, *self.sharded_by)

    def count(self, values: Mapping[str, Any]) -> Parameters:
        """Parameters on one rank."""
        return self.parameters(**{n: values[n] for n in self.needs})

    def shard(self, values: Mapping[str, Any]) -> Value:
        """Parameters whose optimizer state this rank keeps."""
        found = self.count(values)
        job: Job = values["job"]
        if not job.settings.distributed_optimizer:
            return np.asarray(found.dense, float) + found.expert
        dense = np.asarray(found.dense, float) / values["dp"] / values["cp"]
        if "edp" not in self.sharded_by:
            return dense
        return dense + np.asarray(found.expert, float) / values["edp"]


# Elsewhere every layer has attention, whose parameters come with the FFN behind it.
def _behind(model: Model) -> Mixer:
    return "none" if model.hybrid else "attention"


def _dense(model: Model, tp: Value) -> Parameters:
    if all(kind.ffn != "dense" for kind in (*model.layers(), model.mtp_layer())):
        return Parameters(0, 0, 0)
    return Parameters(*layer_parameters(model, LayerKind(_behind(model), "dense"), tp))


def _moe(model: Model, tp: Value, ep: Value, etp: Value) -> Parameters:
    if not model.is_moe:
        return Parameters(0, 0, 0)
    return Parameters(*layer_parameters(model, LayerKind(_behind(model), "moe"), tp, ep, etp))


def _mixer(mixer: Mixer) -> Callable[..., Parameters]:
    def count(model: Model, tp: Value) -> Parameters:
        kinds = (*model.layers(), model.mtp_layer())
        if not model.hybrid or all(kind.mixer != mixer for kind in kinds):
            return Parameters(0, 0, 0)
        return Parameters(*layer_parameters(model, LayerKind(mixer, "none"), tp))

    return count


def _mtp(model: Model, tp: Value) -> Parameters:
    projection = 2 * model.hidden_size * model.hidden_size / tp
    return Parameters(mtp_extra_parameters(model, tp), 0, projection)


def _embedding(model: Model, tp: Value) -> Parameters:
    return Parameters(embedding_parameters(model, tp), 0, 0)


def _head(model: Model, tp: Value, pp: Value) -> Parameters:
    """A tied output layer is the embedding itself when one rank has both."""
    alone = head_parameters(model, tp)
    shared = head_parameters(model, tp, embedding_here=True)
    return Parameters(np.where(np.asarray(pp) == 1, shared, alone), 0, 0)


BLOCKS: tuple[Block, ...] = (
    Block("attention_layers", "attention", _mixer("attention")),
    Block("gdn_layers", "gdn", _mixer("gdn")),
    Block("mamba_layers", "mamba", _mixer("mamba")),
    Block("dense_layers", "dense", _dense),
    Block("moe_layers", "moe", _moe, ("dp", "cp", "edp")),
    Block("mtp", "mtp", _mtp),
    Block("embedding", "embedding", _embedding, quantisable=False),
    Block("head", "head", _head, quantisable=False),
)
