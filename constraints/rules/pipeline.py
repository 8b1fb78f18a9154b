"""Rules of pipeline stages without a layout, and of the interleaved schedule."""

from __future__ import annotations

from typing import Any

from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, megatron
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model

BLOCK = "megatron/core/transformer/transformer_block.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"


def _sized(split: Split) -> bool:
    return split.first is not None or split.last is not None


def _even(split: Split) -> bool:
    return split.layout is None and not _sized(split) and not split.counted


def _middle(split: Split, pp: int, layers: int) -> tuple[int, int]:
    """Layers and ranks that the given ends leave over."""
    given = [n for n in (split.first, split.last) if n is not None]
    return layers - sum(given), pp - len(given)


def _ends(split: Split, pp: int, model: Model) -> dict[str, Any]:
    """How sized ends are said, and what they leave over."""
    given = [f"{name} {n}" for name, n in (("first", split.first), ("last", split.last)) if n is not None]
    layers, ranks = _middle(split, pp, model.num_layers)
    return {"ends": " and ".join(given), "left": layers, "ranks": ranks}


@rule(
    "vpp-needs-pp",
    because="VPP = {vpp} needs more than one pipeline rank, but PP = {pp}",
    source=megatron("megatron/core/parallel_state.py:830"),
)
def interleaving_needs_pipeline(vpp: int, pp: int) -> bool:
    """Virtual stages need pipeline parallelism."""
    return vpp == 1 or pp > 1


@rule(
    "pp-divides-layers",
    because="{model.num_layers} layers do not split over PP = {pp} (remainder {left}); give first or last stage "
    "layers, count the embedding or the loss as a layer, or give a layout",
    source=megatron(f"{BLOCK}:158"),
    figures=lambda pp, model: {"left": model.num_layers % pp},
)
def layers_split(pp: int, split: Split, model: Model) -> bool:
    """Without an uneven split the layers split evenly over the pipeline ranks."""
    return not _even(split) or model.num_layers % pp == 0


@rule(
    "vpp-divides-stage-layers",
    because="{model.num_layers} layers over PP = {pp} are {each_rank} a stage, which do not split into VPP = {vpp} chunks",
    source=megatron(f"{BLOCK}:176"),
    figures=lambda pp, model: {"each_rank": model.num_layers // pp},
)
def stages_split(pp: int, vpp: int, split: Split, model: Model) -> bool:
    """Without an uneven split the layers of a pipeline rank split evenly over its chunks."""
    if not _even(split) or model.num_layers % pp:
        return True
    return model.num_layers // pp % vpp == 0


@rule(
    "split-with-embedding-or-loss",
    because="{model.num_layers} layers and {split.counted} for embedding and loss do not split over PP = {pp} stages of "
    "VPP = {vpp} chunks",
    source=megatron(f"{CONFIG}:2384"),
)
def counted_layers_split(pp: int, vpp: int, split: Split, model: Model) -> bool:
    """Where embedding or loss count as layers, all of them split evenly over the pipeline ranks and their chunks."""
    if not split.counted or split.layout is not None or _sized(split):
        return True
    return (model.num_layers + split.counted) % (pp * vpp) == 0


@rule(
    "split-flags-vs-uneven",
    because="first {split.first} or last {split.last} stage layers are given, and the embedding ({split.embedding}) or "
    "the loss ({split.loss}) counts as a layer too",
    source=megatron(f"{CONFIG}:2237"),
)
def counted_ends_or_sized_ends(split: Split) -> bool:
    """Sized ends exclude counted embeddings and losses."""
    return not split.counted or not _sized(split)


@rule(
    "first-stage-positive",
    because="the first stage has {split.first} layers, but it needs at least 1",
    source=megatron(f"{CONFIG}:2304"),
)
def first_stage_has_layers(split: Split) -> bool:
    """A first stage that is sized has layers."""
    return split.first is None or split.first > 0


@rule(
    "last-stage-positive",
    because="the last stage has {split.last} layers, but it needs at least 1",
    source=megatron(f"{CONFIG}:2323"),
)
def last_stage_has_layers(split: Split) -> bool:
    """A last stage that is sized has layers."""
    return split.last is None or split.last > 0


@rule(
    "first-stage-vpp",
    because="{split.first} layers of the first stage do not split into VPP = {vpp} chunks",
    source=megatron(f"{CONFIG}:2313"),
)
def first_stage_splits(split: Split, vpp: int) -> bool:
    """The layers of a sized first stage split evenly over its chunks."""
    return split.first is None or split.first % vpp == 0


@rule(
    "last-stage-vpp",
    because="{split.last} layers of the last stage do not split into VPP = {vpp} chunks",
    source=megatron(f"{CONFIG}:2332"),
)
def last_stage_splits(split: Split, vpp: int) -> bool:
    """The layers of a sized last stage split evenly over its chunks."""
    return split.last is None or split.last % vpp == 0


@rule(
    "uneven-more-stages-than-pp",
    because="{ends} stage layers size more stages than PP = {pp} has; the stack would build these only and leave out "
    "the rest of {model.num_layers} layers",
    source=megatron(f"{CONFIG}:2341"),
    figures=_ends,
)
def sized_stages_exist(pp: int, split: Split, model: Model) -> bool:
    """No more stages are sized than there are pipeline ranks.

    The stack accepts the contrary in silence, and trains a smaller model.
    """
    return split.layout is not None or _middle(split, pp, model.num_layers)[1] >= 0


@rule(
    "uneven-middle-exists",
    because="{ends} of {model.num_layers} layers leave {left} for the {ranks} other stages of PP = {pp}",
    source=megatron(f"{CONFIG}:2341"),
    figures=_ends,
)
def middle_exists(pp: int, split: Split, model: Model) -> bool:
    """Sized ends leave middle layers if and only if they leave middle stages."""
    layers, ranks = _middle(split, pp, model.num_layers)
    if split.layout is not None or not _sized(split) or ranks < 0:
        return True
    return layers >= 0 and (layers == 0) == (ranks == 0)


@rule(
    "uneven-middle-divisible",
    because="{ends} of {model.num_layers} layers leave {left}, which do not split over the {ranks} other stages of "
    "PP = {pp} with VPP = {vpp} chunks each",
    source=megatron(f"{CONFIG}:2348"),
    figures=_ends,
)
def middle_splits(pp: int, vpp: int, split: Split, model: Model) -> bool:
    """The layers between sized ends split evenly over the middle stages and their chunks."""
    layers, ranks = _middle(split, pp, model.num_layers)
    if split.layout is not None or not _sized(split) or ranks < 1 or layers < 1:
        return True
    return layers % ranks == 0 and layers // ranks % vpp == 0


@rule(
    "interleaved-group-size",
    because="VPP = {vpp} needs at least PP = {pp} micro-batches, but there are {microbatches}",
    source=megatron(f"{SCHEDULES}:1161"),
)
def microbatches_fill_the_group(vpp: int, pp: int, microbatches: int) -> bool:
    """With virtual stages there are at least PP micro-batches."""
    return vpp == 1 or microbatches >= pp


@rule(
    "interleaved-group-remainder",
    because="VPP = {vpp} takes the micro-batches in groups of PP = {pp}, which {microbatches} is no multiple of",
    source=megatron(f"{SCHEDULES}:1173"),
)
def microbatches_leave_no_rest(vpp: int, pp: int, microbatches: int) -> bool:
    """With virtual stages, more micro-batches than PP are a multiple of it, which is the default group."""
    return vpp == 1 or microbatches < pp or microbatches % pp == 0
