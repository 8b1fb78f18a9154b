"""One declaration of a saved tensor, and the terms that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.capture import captured, graph_needs
from mbsolve.constraints.memory.compose import Bytes, ask, composed, names_of, summary
from mbsolve.constraints.memory.constants import constant
from mbsolve.constraints.memory.sizes import BF16, Value, either, flag, operand_factor, pinned
from mbsolve.constraints.rule import Row, Source, Term
from mbsolve.models.card import Model

Half = Literal["attention", "gdn", "mamba", "dense", "moe", "unit", "mtp", "head", "logits"]

# Graph scopes that capture a half whole.
_CAPTURED_BY: Mapping[str, tuple[str, ...]] = {
    "attention": ("attn",),
    "gdn": ("attn",),
    "mamba": ("mamba",),
    "dense": ("mlp",),
    "moe": ("moe",),
}
# These free a tensor's storage and fill it again; any other checkpoint saves nothing inside a graph, whose forward
# and backward are captured one after the other.
_IN_PLACE = ("layernorm", "moe_act", "mla_up_proj")


def nothing() -> float:
    """No bytes."""
    return 0.0


@dataclass(frozen=True)
class Undo:
    """How one recompute module changes a saved tensor.

    Parameters
    ----------
    module : name in ``vocabulary.RECOMPUTE_MODULES``.
    only : the kind of attention for which it holds; None means both.
    kept : bytes that stay all the same.
    remade : bytes that the backward pass makes again; None means the whole tensor.
    """

    module: str
    only: Literal["gqa", "mla"] | None = None
    kept: Bytes = nothing
    remade: Bytes | None = None

    def applies(self, model: Model) -> bool:
        """Whether the module acts on the tensor in this model."""
        return self.only is None or self.only == model.attention


@dataclass(frozen=True)
class Away:
    """How one fine-grained offload module treats a saved tensor.

    Parameters
    ----------
    module : name in ``vocabulary.OFFLOAD_MODULES``.
    only : the kind of attention for which it holds; None means both.
    frees : whether the tensor leaves the device; False for a copy of what something else keeps there.
    original : whether the module makes its layer save the operand as it was before quantisation.
    """

    module: str
    only: Literal["gqa", "mla"] | None = None
    frees: bool = True
    original: bool = False

    def applies(self, model: Model) -> bool:
        """Whether the module acts on the tensor in this model."""
        return self.only is None or self.only == model.attention


# Block formats are kept quantised whatever is offloaded.
_STAYS_QUANTISED = ("mxfp8", "nvfp4")


@dataclass(frozen=True)
class SavedTensor:
    """A tensor kept from the forward to the backward pass.

    Parameters
    ----------
    name : dotted name, ``saved.<half>.<tensor>``.
    half : what saves it; the term is multiplied by the count ``live_<half>``.
    fn : bytes of one micro-batch in bf16, a function of facts and shape decisions.
    recomputed_by : recompute modules that act on it; a later one wins over an earlier one.
    offloaded_by : fine-grained offload modules that send it to the host. Recompute wins over offload.
    quantised : whether it is the operand of a matrix product, saved in the job's precision.
    captured_by : graph scopes under which it is no eager tensor any more; None means those of its half.
    pooled_by : graph scopes under which it lies in the graph's private pool; None means ``captured_by``.
    element : bytes of one element in bf16; tensors of few elements are not offloaded.
    varies : whether its rows vary with the routing.
    """

    name: str
    half: Half
    fn: Bytes
    source: Source
    recomputed_by: tuple[Undo, ...] = ()
    offloaded_by: tuple[Away, ...] = ()
    quantised: bool = False
    captured_by: tuple[str, ...] | None = None
    pooled_by: tuple[str, ...] | None = None
    element: int = BF16
    varies: bool = False

    @property
    def _captured_by(self) -> tuple[str, ...]:
        return _CAPTURED_BY.get(self.half, ()) if self.captured_by is None else self.captured_by

    @property
    def _pooled_by(self) -> tuple[str, ...]:
        return self._captured_by if self.pooled_by is None else self.pooled_by

    @property
    def text(self) -> str:
        """First line of the function's docstring."""
        return summary(self.fn)

    def size(self, values: Mapping[str, Any]) -> Value:
        """Bytes when nothing is recomputed or offloaded."""
        return ask(self.fn, values) * self._scale(values["job"])

    def _scale(self, job: Job) -> float:
        return operand_factor(job) if self.quantised else 1.0

    @property
    def size_needs(self) -> tuple[str, ...]:
        """Facts and decisions of `size`."""
        return ("job", "model", *names_of(self.fn))

    @property
    def fate_needs(self) -> tuple[str, ...]:
        """Facts and decisions of `fate`."""
        needs = list(self.size_needs)
        for undo in self.recomputed_by:
            needs += names_of(undo.kept)
            needs += names_of(undo.remade) if undo.remade else ()
        features = [f"recompute_{u.module}" for u in self.recomputed_by]
        return (*needs, *features, *self.away_features)

    @property
    def away_features(self) -> tuple[str, ...]:
        """Decisions of `sent`."""
        return tuple(f"offload_{away.module}" for away in self.offloaded_by)

    def sent(self, values: Mapping[str, Any]) -> tuple[Value, Value, Value]:
        """Bytes of one copy on its way, how many copies the host gets, and whether the tensor leaves the device.

        Nothing of it is recomputed.
        """
        job, whole = values["job"], ask(self.fn, values)
        size = whole * self._scale(job)
        copies: Value = 0.0
        freed: Value = 0.0
        for away in self.offloaded_by:
            if not away.applies(values["model"]):
                continue
            on = flag(values[f"offload_{away.module}"])
            copies = copies + on
            freed = either(freed, on) if away.frees else freed
            if away.original and job.precision not in _STAYS_QUANTISED:
                size = whole
        enough = whole >= constant("offload_least_elements") * self.element
        return size, copies * enough, freed * enough

    def fate(self, values: Mapping[str, Any], graph: bool = False) -> tuple[Value, Value, Value]:
        """Bytes (kept on the device, brought back for the backward pass, held by the host).

        With ``graph`` those of a captured tensor, which only recompute in place takes away.
        """
        size = self.size(values)
        kept: Value = size
        remade: Value = 0.0
        undone: Value = 0.0
        for undo in self.recomputed_by:
            if not undo.applies(values["model"]) or (graph and undo.module not in _IN_PLACE):
                continue
            on = flag(values[f"recompute_{undo.module}"])
            again = size if undo.remade is None else ask(undo.remade, values)
            kept = np.where(on > 0, ask(undo.kept, values), kept)
            remade = np.where(on > 0, again, remade)
            undone = either(undone, on)
        if not self.offloaded_by:
            return kept, remade, np.multiply(size, 0.0)
        moved, copies, freed = self.sent(values)
        away, freed = copies * (1 - undone), freed * (1 - undone)
        return kept * (1 - freed), remade + moved * freed, moved * away

    def pinned(self, values: Mapping[str, Any]) -> Value:
        """Bytes of pinned host memory; recompute wins over offload."""
        moved, _, _ = self.sent(values)
        number = self.fate(values)[2] / np.where(moved > 0, moved, 1.0)
        return number * pinned(moved, self.varies)

    def terms(self) -> tuple[Term, ...]:
        """The terms of the tensor: kept, brought back, in the pool of a captured half, on the host."""
        group, rest = self.name.split(".", 1)
        scopes, pooled_by = self._captured_by, self._pooled_by

        def eager(values: Mapping[str, Any]) -> Value:
            return 1.0 - captured(values, scopes)

        def made(name: str, row: Row, count: str, text: str, body: Any, *more: str) -> Term:
            fn = composed(f"{self.text} ({text})", (*self.fate_needs, *more), body)
            return Term(fn=fn, source=self.source, name=name, row=row, per=count)

        per, flags = f"live_{self.half}", graph_needs(scopes)
        out = [
            made(
                f"{group}.{rest}",
                "device_bytes",
                per,
                "kept for backward",
                lambda v: self.fate(v)[0] * eager(v),
                *flags,
            )
        ]
        if pooled_by:
            out.append(
                made(
                    f"graph_pool.{rest}",
                    "pool_bytes",
                    f"pool_{self.half}",
                    "in the graph's pool",
                    lambda v: self.fate(v, graph=True)[0] * captured(v, pooled_by),
                    *graph_needs(pooled_by),
                )
            )
        if self.recomputed_by or self.offloaded_by:
            again = f"at_backward_{self.half}"
            out.append(
                made(
                    f"remade.{rest}",
                    "device_bytes",
                    again,
                    "back for backward",
                    lambda v: self.fate(v)[1] * eager(v),
                    *flags,
                )
            )
        if self.offloaded_by:
            out.append(made(f"offloaded.{rest}", "host_bytes", per, "on the host", self.pinned))
        return tuple(out)


def saved(
    name: str,
    half: Half,
    *,
    source: Source,
    recomputed_by: tuple[Undo, ...] = (),
    offloaded_by: tuple[Away, ...] = (),
    quantised: bool = False,
    captured_by: tuple[str, ...] | None = None,
    pooled_by: tuple[str, ...] | None = None,
    element: int = BF16,
    varies: bool = False,
) -> Callable[[Bytes], SavedTensor]:
    """Declare a function of facts and shape decisions as a saved tensor."""

    def declare(fn: Bytes) -> SavedTensor:
        return SavedTensor(
            name=f"saved.{half}.{name}",
            half=half,
            fn=fn,
            source=source,
            recomputed_by=recomputed_by,
            offloaded_by=offloaded_by,
            quantised=quantised,
            captured_by=captured_by,
            pooled_by=pooled_by,
            element=element,
            varies=varies,
        )

    return declare
