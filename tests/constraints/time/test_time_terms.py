"""What holds for every time term: scalars and arrays agree, nothing is negative, scopes stay small."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import STAGE_COUNTS
from mbsolve.constraints.rule import Row, Term
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.constraints.vocabulary import (
    DECISIONS,
    DERIVED,
    DISPATCHERS,
    FEATURES,
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
    Settings,
)
from mbsolve.hardware.card import Machine, load_machine, machine_names
from mbsolve.models.card import load_model, model_names

FLAGS = (
    "sequence_parallel",
    "ep_overlap",
    "delay_wgrad",
    "precision_aware_optimizer",
    *(f"recompute_{m}" for m in RECOMPUTE_MODULES),
    *(f"offload_{m}" for m in OFFLOAD_MODULES),
    *(f"graph_{s}" for s in GRAPH_SCOPES),
)
SIZES = {"tp": (1, 2, 4), "cp": (1, 2, 4), "pp": (1, 2, 4), "ep": (1, 4, 16), "etp": (1, 2), "mbs": (1, 2)}
HOST: tuple[Row, ...] = ("forward_host", "backward_host")

sample = st.fixed_dictionaries(
    {
        **{name: st.sampled_from(values) for name, values in SIZES.items()},
        **{name: st.booleans() for name in FLAGS},
        "vpp": st.sampled_from((1, 2)),
        "dispatcher": st.sampled_from(DISPATCHERS),
        "cuda_graph_impl": st.sampled_from(GRAPH_IMPLS),
        "optimizer_offload_fraction": st.sampled_from((0.0, 0.5, 1.0)),
        "activation_offload_layers": st.sampled_from((0, 2)),
    }
)
option = st.fixed_dictionaries(
    {
        "grad_dtype": st.sampled_from(("fp32", "bf16")),
        "cp_comm_type": st.sampled_from(("p2p", "a2a")),
        "routing": st.sampled_from(("balanced", "natural")),
        "tp_comm_overlap": st.booleans(),
        "op_fuser": st.booleans(),
        "fp8_param": st.booleans(),
        "fp8_output_proj": st.booleans(),
        "distributed_optimizer": st.booleans(),
    }
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any shipped model on any shipped machine in a precision that the machine has."""
    machine = load_machine(draw(st.sampled_from(machine_names())))
    return Job(
        model=load_model(draw(st.sampled_from(model_names()))),
        machine=machine,
        gpus=draw(st.sampled_from((64, 256))),
        seq_len=draw(st.sampled_from((4096, 32768))),
        gbs=1024,
        gpus_per_node=machine.gpus_per_node,
        precision=draw(st.sampled_from(machine.supported_precisions)),
        settings=Settings.model_validate(draw(option)),
    )


def complete(job: Job, values: dict[str, Any]) -> dict[str, Any]:
    """The values with the derived sizes."""
    return values | derive(job, values)


def row_of(job: Job, row: Row, values: dict[str, Any]) -> dict[str, float]:
    """Value of every term of a row."""
    out: dict[str, float] = {}
    for t in TIME_TERMS:
        if t.row == row:
            key = f"{t.name} per {t.per}"
            out[key] = float(t.call(job.facts, values))
    return out


@pytest.mark.parametrize("t", TIME_TERMS, ids=lambda t: f"{t.name}-{t.row}")
def test_term_is_well_formed(t: Term) -> None:
    """A time row, a count of a stage, known names, a source, a sentence, at most five features."""
    assert t.unit == "seconds"
    assert t.per in STAGE_COUNTS
    assert set(t.scope) <= {*DECISIONS, *DERIVED}
    assert sum(name in FEATURES for name in t.scope) <= 5
    assert str(t.source)
    assert t.text


def test_names_are_distinct() -> None:
    """A name stands once in a row, so that a report can add it up."""
    counts = Counter((t.row, t.name) for t in TIME_TERMS)
    assert [key for key, n in counts.items() if n > 1] == []


@settings(max_examples=40, deadline=None)
@given(job=jobs(), columns=st.lists(sample, min_size=2, max_size=4))
def test_arrays_agree_with_scalars(job: Job, columns: list[dict[str, Any]]) -> None:
    """A term over arrays gives what it gives value by value, and never less than nothing."""
    shape = (*SIZES, "sequence_parallel", "ep_overlap", "cuda_graph_impl", "vpp", "activation_offload_layers")
    down: dict[str, Any] = {n: np.array([c[n] for c in columns])[:, None] for n in columns[0] if n in shape}
    across: dict[str, Any] = {
        n: np.array([c[n] for c in columns])[None, :] for n in columns[0] if n not in shape
    }
    table = complete(job, down | across)
    size = len(columns)
    for t in TIME_TERMS:
        found = np.broadcast_to(np.asarray(t.call(job.facts, table), float), (size, size))
        assert np.isfinite(found).all(), t.name
        assert (found >= 0).all(), t.name
        for i in range(size):
            for j in range(size):
                one = {n: columns[i][n] if n in shape else columns[j][n] for n in columns[0]}
                assert float(t.call(job.facts, complete(job, one))) == pytest.approx(found[i, j]), t.name


@lru_cache(maxsize=8)
def faster(machine: Machine) -> Machine:
    """The machine with twice the network at every level."""
    twice = tuple(n.model_copy(update={"bytes_per_second": 2 * n.bytes_per_second}) for n in machine.networks)
    return machine.model_copy(update={"networks": twice})


@settings(max_examples=40, deadline=None)
@given(job=jobs(), values=sample)
def test_a_faster_network_is_never_slower(job: Job, values: dict[str, Any]) -> None:
    """Twice the link rates slow no term."""
    quick = Job(**{**{n: getattr(job, n) for n in Job.model_fields}, "machine": faster(job.machine)})
    full = complete(job, values)
    for t in TIME_TERMS:
        assert float(t.call(quick.facts, full)) <= float(t.call(job.facts, full)) * (1 + 1e-12), t.name


@settings(max_examples=40, deadline=None)
@given(job=jobs(), values=sample, scope=st.sampled_from(GRAPH_SCOPES))
def test_graphs_never_add_host_time(job: Job, values: dict[str, Any], scope: str) -> None:
    """One more captured scope, or a full graph, costs the host no more; a full graph costs it nothing."""
    without = complete(job, values | {f"graph_{scope}": False})
    for row in HOST:
        before = row_of(job, row, without)
        scoped = row_of(job, row, without | {f"graph_{scope}": True})
        whole = row_of(job, row, without | {"cuda_graph_impl": "full_iteration"})
        assert all(scoped[name] <= before[name] for name in before)
        assert not any(whole.values())


@settings(max_examples=40, deadline=None)
@given(job=jobs(), values=sample, module=st.sampled_from(RECOMPUTE_MODULES))
def test_recompute_never_shortens_the_backward_pass(job: Job, values: dict[str, Any], module: str) -> None:
    """One more recomputed module makes no backward term of device or host smaller."""
    off = complete(job, values | {f"recompute_{module}": False})
    for row in ("backward_device", "backward_host"):
        before = row_of(job, row, off)
        after = row_of(job, row, off | {f"recompute_{module}": True})
        assert all(after[name] >= before[name] for name in before)


def test_etp_keeps_the_arithmetic_and_adds_collectives() -> None:
    """Expert tensor parallelism splits each expert over more tokens: the products stay, the exchange grows."""
    machine = load_machine("h100")
    job = Job(
        model=load_model("qwen3-30b-a3b"), machine=machine, gpus=64, seq_len=4096, gbs=1024, gpus_per_node=8
    )
    base: dict[str, Any] = {
        **{name: False for name in FLAGS},
        **dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "mbs", "vpp"), 1),
        "ep": 8,
        "dispatcher": "alltoall",
        "cuda_graph_impl": "none",
        "optimizer_offload_fraction": 0.0,
        "activation_offload_layers": 0,
    }
    one = row_of(job, "forward_device", complete(job, base))
    two = row_of(job, "forward_device", complete(job, base | {"etp": 2}))
    assert one["ep.moe.expert_tensor per moe"] == 0 < two["ep.moe.expert_tensor per moe"]
    assert one["elementwise.moe.expert_activation per moe"] == pytest.approx(
        two["elementwise.moe.expert_activation per moe"]
    )
