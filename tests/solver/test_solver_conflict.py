"""The reason for a "no" is minimal: with any one of its demands, rules or budgets left out there is a plan."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbsolve.constraints.demands import DemandError, narrow
from mbsolve.constraints.domains import domains
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import Split
from mbsolve.hardware.card import load_machine
from mbsolve.solver import conflict as conflict_module
from mbsolve.solver import hints as hints_module
from mbsolve.solver.api import solve
from mbsolve.solver.columns import NEEDS, holds
from mbsolve.solver.conflict import BUDGETS, Conflict, conflict_of, has_plan, logic_of
from mbsolve.solver.found import OutOfTime
from mbsolve.solver.search import hard_rules
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


DEMANDS = {
    "tp": st.sampled_from([1, 2, 3, 4]),
    "pp": st.sampled_from([1, 2, 3, 4]),
    "cp": st.sampled_from([1, 2]),
    "ep": st.sampled_from([1, 2, 3]),
    "dp": st.sampled_from([1, 2, 5]),
    "mbs": st.sampled_from([1, 3]),
    "vpp": st.sampled_from([1, 2, 3]),
    "first_stage_layers": st.sampled_from([1, 2]),
    "last_stage_layers": st.sampled_from([1, 2]),
    "sequence_parallel": st.booleans(),
    "optimizer_offload_fraction": st.sampled_from([0.0, 1.0]),
    "activation_offload_layers": st.sampled_from([0, 2]),
    "recompute_granularity": st.sampled_from([None, "full", "selective"]),
    "recompute_modules": st.sampled_from(["", "core_attn", "moe_act,layernorm"]),
    "fine_grained_offload_modules": st.sampled_from(["", "attn_proj", "core_attn,attn_proj"]),
    "cuda_graph_impl": st.sampled_from(["none", "local", "transformer_engine", "full_iteration"]),
    "dispatcher": st.sampled_from(["alltoall", "deepep", "hybridep"]),
    "ep_overlap": st.booleans(),
}


def some_demands(most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few of `DEMANDS`."""
    names = st.lists(st.sampled_from(sorted(DEMANDS)), unique=True, max_size=most)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({n: DEMANDS[n] for n in chosen}))


FORBID = st.lists(
    st.sampled_from(["alltoall", "mbs=1", "dispatcher=deepep", "tp=1"]), unique=True, max_size=2
)


def by_hand(job: Job, conflict: Conflict, less: str = "") -> bool:
    """Whether the demands and rules of a conflict, without one rule, leave anything: by trying everything."""
    whole = domains(job)
    try:
        demands = narrow(whole, conflict.fixed, conflict.forbid)
    except DemandError:
        return False
    laws = [r for r in hard_rules(job) if r.id in conflict.rules and r.id != less]
    names = {n for r in laws for s in r.scope for n in NEEDS.get(s, (s,))}
    names |= {n for s in demands.derived for n in NEEDS[s]}
    if demands.split is not None or demands.no_layout or "split" in names:
        names |= {"pp", "vpp", "split"}
    # A demand that leaves a decision no value at all is broken whatever the rules are.
    if any(not demands.domains[n] for n in demands.domains):
        return False
    free = sorted(names - {"split"})
    sizes = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, "mbs": 1}
    for combination in itertools.product(*(demands.domains[n] for n in free)):
        at: dict[str, Any] = dict(zip(free, combination, strict=True))
        found: list[Any] = [Split()]
        if demands.split is not None:
            found = list(demands.splits(job.model.num_layers))
        elif "split" in names:
            fine = at["vpp"] == 1 or at["pp"] * at["vpp"] <= job.model.num_layers + 2
            found = list(splits(job.model, at["pp"], at["vpp"])) if fine else []
            found = [s for s in found or [Split()] if not (demands.no_layout and s.layout)]
        for split in found:
            values = {**at, "split": split} | derive(job, sizes | at)
            if all(values[n] == wanted for n, wanted in demands.derived.items()) and all(
                holds(r, job, values) for r in laws
            ):
                return True
    return False


def feasible(job: Job, conflict: Conflict) -> bool:
    """By a whole solve, with the budgets that are not in the conflict made roomy in the machine card."""
    update: dict[str, Any] = {}
    if "hbm-capacity" not in conflict.budgets:
        update["hbm_bytes"] = ROOM
    if "host-ram-capacity" not in conflict.budgets:
        update["host_ram_bytes_per_node"] = ROOM
    roomy = job.model_copy(update={"machine": job.machine.model_copy(update=update)})
    try:
        outcome = solve(roomy, top=1, fixed=conflict.fixed, forbid=conflict.forbid, explained=False)
    except DemandError:
        return False
    return outcome.best is not None


def without(conflict: Conflict) -> list[Conflict]:
    """The conflict less each of its demands and budgets."""
    out = [
        conflict._replace(fixed={k: v for k, v in conflict.fixed.items() if k != n}) for n in conflict.fixed
    ]
    out += [conflict._replace(forbid=tuple(f for f in conflict.forbid if f != t)) for t in conflict.forbid]
    out += [conflict._replace(budgets=tuple(b for b in conflict.budgets if b != n)) for n in conflict.budgets]
    return out


def minimal(job: Job, conflict: Conflict) -> None:
    """Assert that a conflict is one, and is none without any one of its members."""
    if conflict.budgets:
        assert not conflict.rules
        assert not feasible(job, conflict)
        for rest in without(conflict):
            assert feasible(job, rest), rest
        return
    assert not by_hand(job, conflict)
    for rest in without(conflict):
        assert by_hand(job, rest), rest
    for law in conflict.rules:
        assert by_hand(job, conflict, less=law), law


SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(name=st.sampled_from(["dense", "experts"]), hbm=st.sampled_from([0.5, 3.0, 6.0, 12.0]),
       fixed=some_demands(5), forbid=FORBID)  # fmt: skip
def test_a_conflict_is_minimal(name: str, hbm: float, fixed: dict[str, Any], forbid: list[str]) -> None:
    job = small(name, hbm)
    try:
        outcome = solve(job, top=1, fixed=fixed, forbid=forbid, explained=False)
    except DemandError:
        return
    if outcome.best is not None:
        return
    conflict = conflict_of(job, fixed, forbid)
    assert set(conflict.fixed.items()) <= set(fixed.items()) and set(conflict.forbid) <= set(forbid)
    minimal(job, conflict)


@settings(SLOW, max_examples=60)
@given(name=st.sampled_from(["dense", "experts"]), fixed=some_demands(6), forbid=FORBID)
def test_rules_alone_leave_a_plan_when_the_search_finds_one(
    name: str, fixed: dict[str, Any], forbid: list[str]
) -> None:
    job = small(name, 80.0)
    try:
        narrow(domains(job), fixed, forbid)
    except DemandError:
        return
    few = logic_of(job, fixed, forbid).fewest()
    assert has_plan(job, fixed, forbid, ()) == (few is None), few
    if few is not None:
        minimal(job, conflict_of(job, fixed, forbid))


@settings(SLOW, max_examples=15)
@given(name=st.sampled_from(["dense", "experts"]), fixed=some_demands(6))
def test_no_conflict_has_fewer_members(name: str, fixed: dict[str, Any]) -> None:
    job = small(name, 80.0)
    few = logic_of(job, fixed, ()).fewest()
    if few is None or len(few) > 3:
        return
    logic = logic_of(job, fixed, ())
    for size in range(1, len(few)):
        for some in itertools.combinations(logic.members, size):
            assert logic.together(some), some


@pytest.mark.parametrize(
    ("job", "fixed", "expected"),
    [
        (small("dense", 0.5), {"mbs": 1}, Conflict({}, budgets=("hbm-capacity",))),
        (
            small("dense", 64.0),
            {"tp": 4, "pp": 4, "mbs": 1},
            Conflict({"tp": 4, "pp": 4}, rules=("world-divisible-by-dense-grid",)),
        ),
        (
            small("dense", 64.0, host=0.1),
            {"optimizer_offload_fraction": 1.0, "pp": 1},
            Conflict({"optimizer_offload_fraction": 1.0}, budgets=("host-ram-capacity",)),
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


def test_a_chain_says_what_each_rule_leaves() -> None:
    job = Job(model=experts(4), machine=load_machine("h100"), gpus=8, gpus_per_node=8, gbs=8, seq_len=2048)
    explanation = solve(job, top=1, fixed={"mbs": 1, "ep": 8, "vpp": 2}).explanation
    assert explanation is not None
    assert [(c.rule, c.text) for c in explanation.causes] == [
        ("demand ep", "ep is fixed at 8"),
        ("demand vpp", "vpp is fixed at 2"),
        ("world-divisible-by-expert-grid", "ETP x EP x PP divides the GPUs: pp is 1, etp is 1"),
        ("vpp-needs-pp", "VPP = 2 needs more than one pipeline rank, but PP = 1"),
    ]
    assert [hint.set for hint in explanation.hints][:2] == [{"ep": 4}, {"vpp": 1}]


def test_memory_is_explained_with_what_the_demands_settle() -> None:
    fixed = {"mbs": 1, "ep": 8, "tp": 1, "optimizer_offload_fraction": 0, "precision_aware_optimizer": False}
    ample = small("experts", 80.0, host=8000.0).model_copy(update={"gpus": 8})
    least = solve(ample, "memory", top=1, fixed=fixed).best
    assert least is not None
    short = least.evaluation.worst_stage.peak_device_bytes / GIB * 0.99
    job = small("experts", short / (1 - ample.margin), host=8000.0).model_copy(update={"gpus": 8})
    conflict = conflict_of(job, fixed, ())
    assert conflict.budgets == ("hbm-capacity",) and conflict.fixed
    explanation = solve(job, top=1, fixed=fixed).explanation
    assert explanation is not None
    rules = [c.rule for c in explanation.causes if not c.rule.startswith("demand")]
    assert rules[-2:] == ["hbm-capacity", "hbm-capacity"]
    assert rules[:-2] == ["world-divisible-by-expert-grid"]
    for rule in rules[:-2]:
        assert has_plan(job, conflict.fixed, conflict.forbid, conflict.budgets, less=(rule,))


def test_what_is_forbidden_leaves_what_is_asked_for() -> None:
    """The value of a demand need not be among those that are offered by themselves."""
    assert logic_of(small("dense", 80.0), {"tp": 4, "mbs": 8}, ["mbs=1"]).fewest() is None
    few = logic_of(small("dense", 80.0), {"mbs": 3}, ["mbs=1"]).fewest()
    assert few == [("demand", "mbs"), ("rule", "gbs-divisible")]
    # Of the one dispatcher that a dense model has, nothing is left by itself.
    few = logic_of(small("dense", 80.0), {"dispatcher": "deepep"}, ["alltoall"]).fewest()
    assert few == [("demand", "dispatcher"), ("rule", "canonical-dispatcher")]


def test_demands_that_are_dropped_together() -> None:
    fixed = {"tp": 3, "mbs": 1, "cuda_graph_impl": "full_iteration", "recompute_granularity": "selective"}
    job = small("experts", 80.0)
    explanation = solve(job, top=1, fixed=fixed).explanation
    assert explanation is not None
    changed = [hint.set for hint in explanation.hints if hint.set.keys() <= fixed.keys()]
    assert len(changed) == 1 and {"tp", "cuda_graph_impl"} == set(changed[0])
    assert feasible(job, Conflict({**fixed, **changed[0]}))
    assert any(text.startswith("without fixing tp") for text in explanation.tried)


def test_what_is_forbidden_needs_no_value_in_a_nearby_job() -> None:
    job = Job(model=dense(7), machine=load_machine("h100"), gpus=7, gpus_per_node=8, gbs=8, seq_len=2048)
    explanation = solve(job, top=1, fixed={"tp": 4}, forbid=["pp=7"]).explanation
    assert explanation is not None
    assert {"gpus": 8} in [hint.set for hint in explanation.hints]


def test_a_forbidden_value_that_another_demand_excludes_is_no_mistake() -> None:
    whole = domains(small("experts", 80.0))
    fixed = {"dispatcher": "allgather"}
    assert narrow(whole, fixed, ["alltoall", "dispatcher=deepep"]).domains["dispatcher"] == ("allgather",)


def test_an_open_end_of_the_split_is_searched() -> None:
    """One end that is fixed leaves the other one to the search, unless it is said to have none."""
    job = Job(model=dense(6), machine=load_machine("h100"), gpus=3, gpus_per_node=8, gbs=6, seq_len=2048)
    best = solve(job, top=1, fixed={"pp": 3, "last_stage_layers": 1}).best
    assert best is not None
    assert (best.plan.first_stage_layers, best.plan.last_stage_layers) in {(1, 1), (2, 1), (3, 1), (4, 1)}
    closed = {"pp": 3, "last_stage_layers": 1, "first_stage_layers": None}
    explanation = solve(job, top=1, fixed=closed).explanation
    assert explanation is not None
    assert explanation.causes[-1].rule == "uneven-middle-divisible"


def test_what_is_too_much_work_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conflict is one even where it was not found out whether all of it is needed."""
    monkeypatch.setattr(conflict_module, "MOST_WORK", -1)
    monkeypatch.setattr(hints_module, "MOST_WORK", -1)
    monkeypatch.setattr(conflict_module, "has_plan", too_much)
    monkeypatch.setattr(hints_module, "has_plan", too_much)
    job = small("dense", 6.0)
    fixed = {"optimizer_offload_fraction": 0.0, "mbs": 1}
    conflict = conflict_of(job, fixed, ())
    assert not conflict.settled and conflict.fixed == fixed and conflict.budgets == BUDGETS
    explanation = solve(job, top=1, fixed=fixed).explanation
    assert explanation is not None and explanation.unsettled[0] == "whether all of these are needed"


def too_much(*_: Any, **__: Any) -> bool:
    raise OutOfTime
