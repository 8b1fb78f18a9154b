"""The reason for a "no" is minimal: with any one of its demands or budgets left out there is a plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbsolve.constraints.demands import DemandError
from mbsolve.constraints.job import Job
from mbsolve.hardware.card import load_machine
from mbsolve.solver.api import solve
from mbsolve.solver.conflict import BUDGETS, Conflict, conflict_of
from tests.solver.small_jobs import dense, experts, machine_with

GIB = 2**30
ROOM = 10**15


def small(name: str, hbm: float, host: float = 64.0) -> Job:
    model = {"dense": dense(4), "experts": experts(4)}[name]
    machine = machine_with(
        load_machine("h100"), hbm_bytes=int(hbm * GIB), host_ram_bytes_per_node=int(host * GIB)
    )
    gpus = 4 if name == "dense" else 2
    return Job(model=model, machine=machine, gpus=gpus, gpus_per_node=8, gbs=8, seq_len=2048)


def feasible(job: Job, conflict: Conflict) -> bool:
    """By a whole solve, with the budgets that are not in the conflict made roomy in the machine card."""
    update: dict[str, Any] = {}
    if "hbm-capacity" not in conflict.budgets:
        update["hbm_bytes"] = ROOM
    if "host-ram-capacity" not in conflict.budgets:
        update["host_ram_bytes_per_node"] = ROOM
    roomy = job.model_copy(update={"machine": job.machine.model_copy(update=update)})
    outcome = solve(roomy, top=1, fixed=conflict.fixed, forbid=conflict.forbid, explained=False)
    return outcome.best is not None


def without(conflict: Conflict) -> list[Conflict]:
    """The conflict less each of its members."""
    out = [
        conflict._replace(fixed={k: v for k, v in conflict.fixed.items() if k != n}) for n in conflict.fixed
    ]
    out += [conflict._replace(forbid=tuple(f for f in conflict.forbid if f != t)) for t in conflict.forbid]
    out += [conflict._replace(budgets=tuple(b for b in conflict.budgets if b != n)) for n in conflict.budgets]
    return out


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(["dense", "experts"]),
    hbm=st.sampled_from([0.5, 3.0, 6.0, 12.0]),
    fixed=st.fixed_dictionaries(
        {},
        optional={
            "tp": st.sampled_from([1, 2, 3]),
            "pp": st.sampled_from([1, 2, 4]),
            "optimizer_offload_fraction": st.sampled_from([0.0, 1.0]),
            "recompute_granularity": st.sampled_from([None, "full"]),
            "cuda_graph_impl": st.sampled_from(["none", "full_iteration"]),
        },
    ),
    forbid=st.lists(st.sampled_from(["alltoall", "mbs=1", "dispatcher=deepep"]), unique=True, max_size=2),
)
def test_a_conflict_is_minimal(name: str, hbm: float, fixed: dict[str, Any], forbid: list[str]) -> None:
    job = small(name, hbm)
    try:
        outcome = solve(job, top=1, fixed=fixed, forbid=forbid, explained=False)
    except DemandError:
        return
    if outcome.best is not None:
        return
    conflict = conflict_of(job, fixed, forbid)
    assert not feasible(job, conflict)
    assert set(conflict.fixed.items()) <= set(fixed.items()) and set(conflict.forbid) <= set(forbid)
    for rest in without(conflict):
        assert feasible(job, rest), rest


@pytest.mark.parametrize(
    ("job", "fixed", "expected"),
    [
        (small("dense", 0.5), {"mbs": 1}, Conflict({}, (), ("hbm-capacity",))),
        (small("dense", 64.0), {"tp": 4, "pp": 4, "mbs": 1}, Conflict({"tp": 4, "pp": 4}, (), ())),
        (
            small("dense", 64.0, host=0.1),
            {"optimizer_offload_fraction": 1.0, "pp": 1},
            Conflict({"optimizer_offload_fraction": 1.0}, (), ("host-ram-capacity",)),
        ),
    ],
    ids=["device", "rules", "host"],
)
def test_what_does_not_matter_is_left_out(job: Job, fixed: dict[str, Any], expected: Conflict) -> None:
    assert conflict_of(job, fixed, ()) == expected


def test_the_explanation_names_the_conflict() -> None:
    explanation = solve(small("dense", 64.0), top=1, fixed={"tp": 4, "pp": 4, "mbs": 1}).explanation
    assert explanation is not None
    rules = [cause.rule for cause in explanation.causes]
    assert "demand tp" in rules and "demand pp" in rules and "demand mbs" not in rules
    assert not set(rules) & set(BUDGETS)
