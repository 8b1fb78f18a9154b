"""Where the layers go: virtual pipeline stages, and what each pipeline rank therefore holds."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import LayerKind, Model

# Counts of one pipeline rank that a term may be multiplied by (`Term.per`), beside those of `moments`.
STAGE_COUNTS = (
    "one",
    "chunks",
    "attention",
    "window_attention",
    "gdn",
    "mamba",
    "dense",
    "moe",
    "mtp",
    "embedding",
    "head",
    "logits",
    "replayed_attention",
    "replayed_window_attention",
    "replayed_gdn",
    "replayed_mamba",
    "replayed_dense",
    "replayed_moe",
    "offloaded_attention",
    "offloaded_gdn",
    "offloaded_mamba",
    "offloaded_dense",
    "offloaded_moe",
    "has_attention",
    "has_gdn",
    "has_mamba",
    "has_dense",
    "has_moe",
    "has_mtp",
    "has_head",
)


class Item(NamedTuple):
    """One piece of a virtual stage: a decoder layer, an MTP layer, the embedding or the head."""

    what: str  # "layer", "mtp", "embedding", "head"
    kind: LayerKind | None = None


Stage = tuple[Item, ...]


def halves_of(kind: LayerKind) -> tuple[str, ...]:
    """The halves that a layer has, its mixer first; windowed attention counts as attention."""
    mixer = "attention" if kind.mixer == "window_attention" else kind.mixer
    return tuple(half for half in (mixer, kind.ffn) if half != "none")


class Replay(NamedTuple):
    """Which layers of every virtual stage are checkpointed whole, or offloaded to the host."""

    method: str = "none"  # none, uniform, block
    num_layers: int = 0
    offloaded: int = 0


class PlacementError(ValueError):
    """The split does not place every layer exactly once."""


def expand_layout(text: str) -> list[str]:
    """Virtual stages of a layout string, repeats unrolled; each stage is a string over ``E t m L``."""
    flat = text.replace(",", "").replace(" ", "")
    while True:
        step = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), flat)
        step = re.sub(r"([A-Za-z|])\*(\d+)", lambda m: m.group(1) * int(m.group(2)), step)
        if step == flat:
            break
        flat = step
    flat = flat.replace("(", "").replace(")", "")
    return flat.split("|")


@lru_cache(maxsize=4096)
def virtual_stages(model: Model, pp: int, vpp: int, split: Split) -> tuple[Stage, ...]:
    """Contents of the ``pp x vpp`` virtual stages; stage ``c * pp + r`` is chunk ``c`` of pipeline rank ``r``.

    Raises
    ------
    PlacementError
        if the split does not hold exactly the model's layers in that many stages.
    """
    layers, mtp, count = model.layers(), model.mtp_num_layers, pp * vpp
    extra = [Item("mtp", model.mtp_layer())] * mtp
    if split.layout is not None:
        texts = expand_layout(split.layout)
        if len(texts) != count or sum(t.count("t") for t in texts) != len(layers):
            raise PlacementError(
                f"layout {split.layout!r} has {len(texts)} stages and {sum(t.count('t') for t in texts)} layers; "
                f"{count} stages and {len(layers)} layers are needed"
            )
        unknown = set("".join(texts)) - set("EtmL")
        if unknown:
            raise PlacementError(
                f"layout {split.layout!r} has {', '.join(sorted(unknown))} beside E, t, m and L"
            )
        rest = iter(layers)
        symbols = {"E": Item("embedding"), "L": Item("head"), "m": extra[0] if extra else Item("mtp")}
        return tuple(
            tuple(Item("layer", next(rest)) if s == "t" else symbols[s] for s in text) for text in texts
        )
    sizes = _sizes(len(layers), pp, vpp, split)
    out: list[Stage] = []
    at = 0
    for size in sizes:
        out.append(tuple(Item("layer", kind) for kind in layers[at : at + size]))
        at += size
    out[0] = (Item("embedding"), *out[0])
    out[-1] = (*out[-1], *extra, Item("head"))
    return tuple(out)


def _sizes(layers: int, pp: int, vpp: int, split: Split) -> list[int]:
    """Layers of each virtual stage under an even split, one that counts the ends as layers, or uneven ends."""
    count = pp * vpp
    if split.counted and not (split.first or split.last):
        each, rest = divmod(layers + split.counted, count)
        sizes = [each] * count
        sizes[0] -= split.embedding
        sizes[-1] -= split.loss
        if rest or min(sizes) < 0:
            raise PlacementError(
                f"{layers} layers and {split.counted} for embedding and loss do not split over {count} stages"
            )
        return sizes
    if not (split.first or split.last):
        if count > layers:
            raise PlacementError(f"{layers} layers do not fill {count} virtual stages")
        return [layers // count + (1 if i < layers % count else 0) for i in range(count)]
    per_rank = [0] * pp
    middle = list(range(pp))
    if split.first:
        per_rank[0] = split.first
        middle.remove(0)
    if split.last:
        per_rank[-1] = split.last
        if pp - 1 in middle:
            middle.remove(pp - 1)
    rest = layers - sum(per_rank)
    if rest < 0 or (rest and not middle):
        raise PlacementError(
            f"{layers} layers do not fit first {split.first}, last {split.last} on {pp} ranks"
        )
    for j, rank in enumerate(middle):
        per_rank[rank] = rest // len(middle) + (1 if j < rest % len(middle) else 0)
    sizes = [per_rank[i % pp] // vpp for i in range(count)]
    if sum(sizes) != layers:
        raise PlacementError(f"stages of {per_rank} layers do not split over vpp {vpp}")
    return sizes


def chunks_of(stages: tuple[Stage, ...], pp: int, rank: int) -> tuple[Stage, ...]:
    """The virtual stages of one pipeline rank, in chunk order."""
    return stages[rank::pp]


def replayed(chunk: Stage, replay: Replay) -> tuple[bool, ...]:
    """For each decoder or MTP layer of a chunk: whether full recompute checkpoints it.

    Decoder layers and MTP layers are counted apart, as the two transformer blocks are.
    """
    flags: list[bool] = []
    seen = Counter[str]()
    for item in chunk:
        if item.kind is None:
            continue
        seen[item.what] += 1
        whole = replay.method == "uniform"
        flags.append(whole or (replay.method == "block" and seen[item.what] <= replay.num_layers))
    return tuple(flags)


def stage_counts(chunks: tuple[Stage, ...], pp: int, replay: Replay) -> dict[str, int]:
    """Counts of one pipeline rank: how many of everything it holds and, of those, are replayed or offloaded."""
    n: dict[str, int] = dict.fromkeys(STAGE_COUNTS, 0)
    n["one"] = 1
    n["chunks"] = len(chunks) if pp > 1 else 0
    for chunk in chunks:
        flags = iter(replayed(chunk, replay))
        position = 0
        for item in chunk:
            if item.what == "embedding":
                n["embedding"] = 1
            elif item.what == "head":
                n["head"] = 1
                n["logits"] += 1
            if item.kind is None:
                continue
            again = next(flags)
            for part in item.kind:
                if part != "none":
                    n[part] += 1
                    n[f"replayed_{part}"] += int(again)
            if position < replay.offloaded:
                for half in halves_of(item.kind):
                    n[f"offloaded_{half}"] += 1
            position += 1
            if item.what == "mtp":
                n["mtp"] += 1
                n["logits"] += 1
    # An MTP layer away from the first stage needs an embedding of its own.
    if n["mtp"] and not n["embedding"]:
        n["embedding"] = 1
    n["has_attention"] = int(n["attention"] + n["window_attention"] > 0)
    for name in ("gdn", "mamba", "dense", "moe", "mtp", "head"):
        n[f"has_{name}"] = int(n[name] > 0)
    return n


@lru_cache(maxsize=65536)
def stage_classes(
    model: Model, pp: int, vpp: int, split: Split, replay: Replay
) -> dict[tuple[int, ...], int]:
    """Distinct stages of a pipeline: counts in the order of ``STAGE_COUNTS`` -> ranks; the first holds rank 0."""
    stages = virtual_stages(model, pp, vpp, split)
    found: dict[tuple[int, ...], int] = {}
    for rank in range(pp):
        counts = stage_counts(chunks_of(stages, pp, rank), pp, replay)
        key = tuple(counts[name] for name in STAGE_COUNTS)
        found[key] = found.get(key, 0) + 1
    return found
