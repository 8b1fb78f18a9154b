"""The ways of laying a model's layers over pipeline stages that are worth trying for a pipeline shape."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import Model


@lru_cache(maxsize=4096)
def splits(model: Model, pp: int, vpp: int) -> tuple[Split, ...]:
    """Candidate splits of ``pp x vpp`` virtual stages: even, uneven ends, and balanced explicit layouts.

    The explicit layouts relieve the last stage, which also computes the logits (and the MTP block), by none to
    all of its decoder layers, and put what does not divide on the first virtual stages, whose embedding is free.
    """
    layers, mtp = model.num_layers, model.mtp_num_layers
    if pp == 1:
        return (Split(),)
    stages = pp * vpp
    out: list[Split] = []
    if layers % stages == 0:
        out.append(Split())
    if vpp == 1 or layers % stages:
        out += _ends(layers, pp, vpp)
    balance = (layers + 1 + mtp) / stages
    for tail in sorted({max(0, round(balance) - 1 - mtp), max(0, int(balance) - mtp), layers // stages}):
        sizes = _spread(layers, stages, (tail,))
        if sizes and not (layers % stages == 0 and len(set(sizes)) == 1):
            out.append(Split(layout=_text(sizes, mtp_stage=stages - 1, mtp=mtp)))
    if mtp and stages > 2:
        sizes = _spread(layers, stages, (0, 0))
        if sizes:
            out.append(Split(layout=_text(sizes, mtp_stage=stages - 2, mtp=mtp)))
    return tuple(dict.fromkeys(out))


def _ends(layers: int, pp: int, vpp: int) -> list[Split]:
    """Uneven first and last ranks with whole, equal middle ranks."""
    out = []
    for middle in sorted({layers // pp, -(-layers // pp)}):
        rest = layers - middle * (pp - 2)
        if middle == 0 or middle % vpp or rest < 2 * vpp or rest > 2 * middle + 2 * vpp:
            continue
        last = min(rest - vpp, rest // 2 // vpp * vpp)
        first = rest - last
        if first == last == middle or first % vpp or last < vpp:
            continue
        if first == middle and pp > 2:
            out.append(Split(last=last))
        elif pp > 1:
            out.append(Split(first=first, last=last))
    return out


def _spread(layers: int, stages: int, tails: tuple[int, ...]) -> list[int]:
    """Layers of each virtual stage: fixed tails, the rest even with what is left over on the first ones."""
    body = stages - len(tails)
    rest = layers - sum(tails)
    if body < 1 or rest < body:
        return []
    return [rest // body + (1 if i < rest % body else 0) for i in range(body)] + list(tails)


def completed_layout(stages: tuple[str, ...], layers: int, mtp: int) -> str:
    """The layout of these virtual stages with the least change that places every layer.

    Missing decoder layers go to the emptiest stages, surplus ones leave the fullest; the embedding, the MTP layers and
    the loss go to the ends.
    """
    sizes = [stage.count("t") for stage in stages]
    ends = {0: 1, len(sizes) - 1: 1 + mtp}
    while sum(sizes) != layers:
        loads = [size + ends.get(i, 0) for i, size in enumerate(sizes)]
        if sum(sizes) < layers:
            sizes[loads.index(min(loads))] += 1
        else:
            sizes[loads.index(max(n for n, size in zip(loads, sizes, strict=True) if size))] -= 1
    # An MTP block that has a stage of its own before the loss keeps it.
    apart = len(stages) > 1 and mtp and "m" in stages[-2] and "m" not in stages[-1]
    return _text(sizes, len(sizes) - (2 if apart else 1), mtp)


def _text(sizes: list[int], mtp_stage: int, mtp: int) -> str:
    """A layout string; runs of equal middle stages are written as ``(tt|)*n``."""
    stages = ["t" * n for n in sizes]
    stages[0] = "E" + stages[0]
    stages[mtp_stage] += "m" * mtp
    stages[-1] += "L"
    out = ""
    for text, run in groupby(stages[:-1]):
        n = len(list(run))
        out += f"({text}|)*{n}" if n > 2 and text else f"{text}|" * n
    return out + stages[-1]
