"""How an operation is declared, and the terms that follow from it.

An operation states its device seconds and its framework ops once, for one micro-batch and one sub-block. From
that follow the forward and backward device time, the kernel gaps, the host time under CUDA graphs, and what
selective or full recompute runs again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

import numpy as np

from mbsolve.constraints.rule import Row, Source, Term
from mbsolve.constraints.time.rates import FIT, RECOMPUTE_AB, Pass
from mbsolve.hardware.card import Machine

Block = Literal["attention", "window_attention", "gdn", "mamba", "dense", "moe", "logits", "mtp"]
Kind = Literal["gemm", "attention", "scan", "elementwise", "quantise", "tp", "cp", "ep", "host"]
Values = Mapping[str, Any]

REPLAYED: tuple[Block, ...] = ("attention", "window_attention", "gdn", "mamba", "dense", "moe")
"""Blocks that full recompute can run again."""


@dataclass(frozen=True)
class Part:
    """A part of a sub-block that is captured and checkpointed as one.

    Parameters
    ----------
    graph : scopes of which any captures it in a CUDA graph.
    module : its name as a checkpointed module; empty if no checkpoint of its own wraps it.
    replayed_by : recompute modules of the vocabulary that run its forward again.
    """

    graph: tuple[str, ...] = ()
    module: str = ""
    replayed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Op:
    """One operation of a sub-block.

    Parameters
    ----------
    kind : class of the cost; a report groups by it.
    block : the sub-block it belongs to; its count multiplies the cost.
    what : what it does there.
    seconds : function of facts and decisions to device seconds; None for work of the host alone.
    launches : function of facts and decisions to framework ops; a pass where they are constant.
    source : where the figures come from.
    part : what captures it and what replays it.
    """

    kind: Kind
    block: Block
    what: str
    seconds: Callable[..., Pass] | None
    launches: Callable[..., Pass] | Pass
    source: Source
    part: Part = Part()

    @property
    def name(self) -> str:
        """Dotted name of its device terms."""
        return f"{self.kind}.{self.block}.{self.what}"

    def device(self, values: Values) -> Pass:
        """Seconds, forward and backward."""
        return call(self.seconds, values) if self.seconds else Pass(0.0, 0.0)

    def ops(self, values: Values) -> Pass:
        """Framework ops, forward and backward."""
        return self.launches if isinstance(self.launches, Pass) else call(self.launches, values)

    @property
    def device_scope(self) -> tuple[str, ...]:
        """Names that `seconds` asks for."""
        return names_of(self.seconds) if self.seconds else ()

    @property
    def launch_scope(self) -> tuple[str, ...]:
        """Names that `launches` asks for."""
        return () if isinstance(self.launches, Pass) else names_of(self.launches)


@lru_cache(maxsize=1024)
def names_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Parameter names of a function."""
    return tuple(inspect.signature(fn).parameters)


def call(fn: Callable[..., Pass], values: Values) -> Pass:
    """Call a function with those of the values that it names."""
    return fn(**{name: values[name] for name in names_of(fn)})


def scoped(fn: Callable[[Values], Any], names: Iterable[str], text: str) -> Callable[..., Any]:
    """Give a function of a mapping the signature of its names, as `Declared` reads it."""

    def of(**values: Any) -> Any:
        return fn(values)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in dict.fromkeys(names)]
    of.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    of.__doc__ = text
    return of


def any_of(values: Values, names: Sequence[str]) -> Any:
    """1.0 where any of the named flags is set, else 0.0."""
    return np.asarray(reduce(np.logical_or, (np.asarray(values[name], bool) for name in names)), float)


def kept(machine: Machine, cuda_graph_impl: Any, captured: Any) -> Any:
    """Share of the host time that CUDA graphs leave: all, `graph_left` where captured, none in a full graph."""
    impl = np.asarray(cuda_graph_impl)
    scoped_graph = np.logical_and(impl != "none", captured > 0)
    share = np.where(scoped_graph, machine.calibration["graph_left"], 1.0)
    return np.where(impl == "full_iteration", 0.0, share)


def _kept(values: Values, flags: Sequence[str]) -> Any:
    captured = any_of(values, flags) if flags else np.asarray(0.0)
    return kept(values["machine"], values["cuda_graph_impl"], captured)


def _flags(prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


def _term(name: str, row: Row, per: str, source: Source, names: Iterable[str], fn: Any, text: str) -> Term:
    return Term(fn=scoped(fn, names, text), source=source, name=name, row=row, per=per)


def _side(row: Row) -> int:
    return 0 if row.startswith("forward") else 1


def device_terms(op: Op) -> list[Term]:
    """Forward and backward device time of one operation."""
    if op.seconds is None:
        return []
    rows: tuple[Row, Row] = ("forward_device", "backward_device")
    text = (op.seconds.__doc__ or op.name).strip().splitlines()[0]

    def seconds(row: Row) -> Callable[[Values], Any]:
        return lambda v: op.device(v)[_side(row)]

    return [_term(op.name, row, op.block, op.source, op.device_scope, seconds(row), text) for row in rows]


def kernel_terms(block: Block, ops: Sequence[Op]) -> list[Term]:
    """Gap and ramp of every kernel of a sub-block, on the device."""
    names = ("machine", *(n for op in ops for n in op.launch_scope))
    rows: tuple[Row, Row] = ("forward_device", "backward_device")

    def gap(row: Row) -> Callable[[Values], Any]:
        return lambda v: v["machine"].calibration["kernel_seconds"] * sum(op.ops(v)[_side(row)] for op in ops)

    return [
        _term(f"kernel.{block}", row, block, FIT, names, gap(row), f"Kernel gaps of {block}.") for row in rows
    ]


def host_terms(block: Block, ops: Sequence[Op]) -> list[Term]:
    """Host time of the framework ops of a sub-block, one term for each set of graph scopes."""
    out: list[Term] = []
    rows: tuple[Row, Row] = ("forward_host", "backward_host")
    parts = len({op.part.graph for op in ops}) > 1
    for graph, group in _grouped(ops, lambda op: op.part.graph).items():
        flags = _flags("graph", graph)
        names = ("machine", "cuda_graph_impl", *flags, *(n for op in group for n in op.launch_scope))

        def host(v: Values, row: Row, group: Any = group, flags: Any = flags) -> Any:
            count = sum(op.ops(v)[_side(row)] for op in group)
            return v["machine"].calibration["host_op_seconds"] * count * _kept(v, flags)

        for row in rows:
            name = ".".join(("host", block, *(graph[:1] if parts else ())))
            text = f"Framework ops of {block} on the host."
            out.append(_term(name, row, block, FIT, names, lambda v, r=row, h=host: h(v, r), text))
    return out


def selective_terms(block: Block, ops: Sequence[Op]) -> list[Term]:
    """What selective recompute adds to the backward pass: forwards run again, on the device and on the host."""
    out: list[Term] = []
    inside = [op for op in ops if op.part.replayed_by]
    for modules, group in _grouped(inside, lambda op: op.part.replayed_by).items():
        flags = _flags("recompute", modules)
        names = (*flags, *(n for op in group for n in op.device_scope))

        def device(v: Values, group: Any = group, flags: Any = flags) -> Any:
            return any_of(v, flags) * sum(op.device(v).forward for op in group)

        name = f"recompute.{block}.{modules[0]}"
        text = f"Forward of {block} that recompute of {' or '.join(modules)} runs again."
        out.append(_term(name, "backward_device", block, RECOMPUTE_AB, names, device, text))
    for (modules, graph), group in _grouped(inside, lambda op: (op.part.replayed_by, op.part.graph)).items():
        flags, scopes = _flags("recompute", modules), _flags("graph", graph)
        launch = (n for op in group for n in op.launch_scope)
        names = ("machine", "cuda_graph_impl", *flags, *scopes, *launch)

        def host(v: Values, group: Any = group, flags: Any = flags, scopes: Any = scopes) -> Any:
            machine: Machine = v["machine"]
            count = any_of(v, flags) * _replay_ops(machine, group, v)
            return machine.calibration["host_op_seconds"] * count * _kept(v, scopes)

        parts = len({op.part.graph for op in inside if op.part.replayed_by == modules}) > 1
        name = ".".join(("host.recompute", block, modules[0], *(graph[:1] if parts else ())))
        text = f"Framework ops of {block} that recompute of {' or '.join(modules)} launches again."
        out.append(_term(name, "backward_host", block, RECOMPUTE_AB, names, host, text))
    return out


def _replay_ops(machine: Machine, ops: Sequence[Op], values: Values) -> Any:
    """Forward launches of a group, and the checkpoint's own ops once for each module that is there."""
    total: Any = 0.0
    for module, group in _grouped(ops, lambda op: op.part.module).items():
        launched = sum(op.ops(values).forward for op in group)
        total = total + launched
        if module:
            total = total + np.where(np.asarray(launched) > 0, machine.calibration["recompute_ops"], 0.0)
    return total


def whole_terms(block: Block, ops: Sequence[Op]) -> list[Term]:
    """What full recompute adds to the backward pass of a replayed layer: its whole forward, without gaps."""
    per = f"replayed_{block}"
    names = [n for op in ops for n in op.device_scope]
    out = [
        _term(
            f"recompute.{block}.whole",
            "backward_device",
            per,
            RECOMPUTE_AB,
            names,
            lambda v: sum(op.device(v).forward for op in ops),
            f"Forward of {block} that full recompute runs again.",
        )
    ]
    parts = len({op.part.graph for op in ops}) > 1
    for graph, group in _grouped(ops, lambda op: op.part.graph).items():
        flags = _flags("graph", graph)
        scope = ("machine", "cuda_graph_impl", *flags, *(n for op in group for n in op.launch_scope))

        def host(v: Values, group: Any = group, flags: Any = flags) -> Any:
            count = sum(op.ops(v).forward for op in group)
            return v["machine"].calibration["host_op_seconds"] * count * _kept(v, flags)

        name = ".".join(("host.recompute", block, "whole", *(graph[:1] if parts else ())))
        text = f"Framework ops of {block} that full recompute launches again."
        out.append(_term(name, "backward_host", per, RECOMPUTE_AB, scope, host, text))
    return out


def _grouped(ops: Sequence[Op], key: Callable[[Op], Any]) -> dict[Any, list[Op]]:
    out: dict[Any, list[Op]] = {}
    for op in ops:
        out.setdefault(key(op), []).append(op)
    return out


def terms_of(block: Block, ops: Sequence[Op]) -> tuple[Term, ...]:
    """Every term of one sub-block, in the order of a report: device, kernels, host, recompute."""
    mine = [op for op in ops if op.block == block]
    out = [t for op in mine for t in device_terms(op)]
    out += kernel_terms(block, mine) + host_terms(block, mine) + selective_terms(block, mine)
    return tuple(out + (whole_terms(block, mine) if block in REPLAYED else []))
