"""Rules of explicit pipeline layouts."""

from __future__ import annotations

import re
from functools import lru_cache

from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, megatron
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model

LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"


@lru_cache(maxsize=4096)
def _stages(text: str) -> tuple[str, ...]:
    """Virtual stages as the stack reads them: groups are unrolled once, then single symbols once."""
    flat = text.replace(",", "")
    flat = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), flat)
    flat = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), flat)
    return tuple(flat.split("|"))


def virtual_stage_texts(text: str) -> tuple[str, ...]:
    """Return the virtual stages of a layout, each a string of symbols."""
    return _stages(text)


def stage_count(text: str) -> int:
    """Return the number of virtual stages of a layout."""
    return len(_stages(text))


def _symbols(text: str) -> str:
    return "".join(_stages(text))


@rule(
    "layout-chars",
    because="layout {split.layout} has other symbols than E t m L | , after x*n and (..)*n are unrolled once",
    source=megatron(f"{LAYOUT}:316"),
)
def layout_is_spelt(split: Split) -> bool:
    """A layout has only the symbols E t m L | and repeats x*n, (..)*n that are not nested."""
    return split.layout is None or set(_symbols(split.layout)) <= set("EtmL")


@rule(
    "layout-stage-count",
    because="layout {split.layout} has {stages} stages, which is no multiple of PP = {pp}",
    source=megatron(f"{LAYOUT}:42"),
    figures=lambda split: {"stages": len(_stages(split.layout or ""))},
)
def layout_fills_ranks(split: Split, pp: int) -> bool:
    """The stages of a layout are a multiple of PP."""
    return split.layout is None or len(_stages(split.layout)) % pp == 0


@rule(
    "layout-vpp-match",
    because="layout {split.layout} has {stages} stages, not PP x VPP = {pp} x {vpp}",
    source=megatron(f"{CONFIG}:2281"),
    figures=lambda split: {"stages": len(_stages(split.layout or ""))},
)
def layout_agrees_with_vpp(split: Split, pp: int, vpp: int) -> bool:
    """VPP is the number of stages of the layout divided by PP."""
    if split.layout is None or len(_stages(split.layout)) % pp:
        return True
    return len(_stages(split.layout)) == pp * vpp


@rule(
    "layout-first-last",
    because="layout {split.layout} must start with its one E and end with its one L",
    source=megatron(f"{LAYOUT}:97"),
)
def layout_has_ends(split: Split) -> bool:
    """A layout starts with the only E and ends with the only L."""
    if split.layout is None:
        return True
    symbols = _symbols(split.layout)
    return symbols[:1] == "E" and symbols[-1:] == "L" and symbols.count("E") == symbols.count("L") == 1


@rule(
    "layout-decoder-count",
    because="layout {split.layout} has {count} decoder layers (t), but the model has {model.num_layers}",
    source=megatron(f"{LAYOUT}:108"),
    figures=lambda split: {"count": _symbols(split.layout or "").count("t")},
)
def layout_has_all_layers(split: Split, model: Model) -> bool:
    """A layout has one t for each decoder layer."""
    return split.layout is None or _symbols(split.layout).count("t") == model.num_layers


@rule(
    "layout-mtp-count",
    because="layout {split.layout} has {count} MTP layers (m), but the model has {model.mtp_num_layers}",
    source=megatron(f"{LAYOUT}:114"),
    figures=lambda split: {"count": _symbols(split.layout or "").count("m")},
)
def layout_has_all_mtp(split: Split, model: Model) -> bool:
    """A layout has one m for each MTP layer."""
    return split.layout is None or _symbols(split.layout).count("m") == model.mtp_num_layers


@rule(
    "layout-mtp-order",
    because="layout {split.layout} has a t after an m; MTP layers come last",
    source=megatron(f"{LAYOUT}:119"),
)
def mtp_follows_layers(split: Split) -> bool:
    """In a layout no decoder layer follows an MTP layer."""
    return split.layout is None or not re.search("m.*t", _symbols(split.layout))


@rule(
    "layout-mtp-last-vstage",
    because="in layout {split.layout} the MTP layers are not all in one of the last {pp} stages",
    source=megatron(f"{LAYOUT}:125"),
)
def mtp_is_in_the_last_chunk(split: Split, pp: int) -> bool:
    """In a layout all MTP layers are in one stage, which is the last virtual stage of its rank."""
    if split.layout is None:
        return True
    stages = _stages(split.layout)
    holding = [index for index, stage in enumerate(stages) if "m" in stage]
    return not holding or (len(holding) == 1 and holding[0] >= len(stages) - pp)


@rule(
    "layout-excludes-other-splits",
    because="layout {split.layout} is given together with first {split.first} or last {split.last} stage layers, or "
    "with the embedding ({split.embedding}) or the loss ({split.loss}) counted as a layer",
    source=megatron(f"{CONFIG}:2245"),
)
def layout_stands_alone(split: Split) -> bool:
    """A layout excludes first and last stage layers, and counted embeddings and losses."""
    return split.layout is None or (split.first is None and split.last is None and not split.counted)
