"""The memory report: golden texts of accounts made by hand, and totals of real ones read back from the text."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mbsolve.constraints.account import Account, Format, HostAccount, MomentMemory, StageAccount, account
from mbsolve.constraints.evaluation import TermValue
from mbsolve.constraints.holding import KINDS, Kind
from mbsolve.constraints.relief import Change, Relief
from mbsolve.constraints.vocabulary import Plan
from mbsolve.reading import make_job
from mbsolve.report.memory import memory_report
from mbsolve.report.memory_bars import PARTS, bars, cells, part_of, spans

GOLDEN = Path(__file__).parent / "golden"
GIB = 2**30
Sizes = dict[str, tuple[float, float, float]]
DENSE: Sizes = {
    "weights.dense_layers": (7.97, 7.97, 7.97),
    "weights.embedding": (0.98, 0.98, 0.98),
    "gradients.dense_layers": (15.94, 15.94, 15.94),
    "masters.dense_layers": (3.98, 3.98, 3.98),
    "moments.dense_layers": (7.97, 7.97, 7.97),
    "saved.dense.fc1_output": (0, 30.5, 0),
    "saved.attention.output": (0, 12.25, 0),
    "transient.p2p": (0, 0.25, 0),
    "optimizer_step.dense_layers": (0, 0, 2.0),
}
MOE: Sizes = {
    "weights.moe_layers": (5.09, 5.09, 5.09),
    "gradients.moe_layers": (5.09, 5.09, 5.09),
    "masters.moe_layers": (6.96, 6.96, 6.96),
    "moments.moe_layers": (3.48, 3.48, 3.48),
    "saved.moe.expert_input": (0, 12.75, 0),
    "saved.attention.query": (0, 6.8, 0),
    "saved.stale.moe": (1.5, 0, 1.5),
    "graph_pool.moe.expert_input": (2.0, 2.0, 2.0),
    "dispatcher.of_a_name_that_is_longer_than_its_column": (0.5, 0.5, 0.5),
}


def stage(number: int, held: Sizes, more: float, limit: float) -> StageAccount:
    """A pipeline rank with these GiB, and as much more saved."""

    def terms(index: int) -> tuple[TermValue, ...]:
        at = {n: s[index] + (more if n.startswith("saved") and index == 1 else 0) for n, s in held.items()}
        return tuple(
            TermValue(name=n, bytes=gib * GIB, stage=number, source=f"source of {n}")
            for n, gib in at.items()
            if gib
        )

    def moment(index: int, kind: Kind, label: str) -> MomentMemory:
        whole = sum(t.bytes or 0 for t in terms(index))
        pool = sum(t.bytes or 0 for t in terms(index) if t.name.startswith("graph_pool"))
        return MomentMemory(
            kind=kind, moment=label, allocated_bytes=whole - pool, pool_bytes=pool, terms=terms(index)
        )

    labels = ("between steps", "backward of layer", "optimizer step")
    moments = tuple(moment(i, kind, labels[i]) for i, kind in enumerate(KINDS))
    peak = moments[1]
    held_bytes = peak.allocated_bytes + peak.pool_bytes
    beyond = (
        TermValue(name="reserve.allocator", bytes=0.8 * GIB, stage=number, source="source of the slack"),
        TermValue(name="context.cuda", bytes=1.5 * GIB, stage=number, source="source of the context"),
    )
    device = held_bytes + 2.3 * GIB
    return StageAccount(
        stage=number,
        between_bytes=moments[0].allocated_bytes,
        pass_peak_bytes=peak.allocated_bytes,
        pass_peak_moment="backward of layer",
        optimizer_peak_bytes=moments[2].allocated_bytes,
        peak_allocated_bytes=peak.allocated_bytes,
        pool_bytes=peak.pool_bytes,
        peak_reserved_bytes=device - 1.5 * GIB,
        peak_device_bytes=device,
        peak_moment="backward of layer",
        terms=peak.terms,
        free_bytes=limit - device,
        moments=moments,
        beyond=beyond,
    )


def made(held: Sizes, more: tuple[float, ...], alike: tuple[tuple[int, ...], ...], pinned: float) -> Account:
    limit = 76.7 * GIB
    stages = tuple(stage(i, held, m, limit) for i, m in enumerate(more))
    ranks = {0: 4, 1: 4} if pinned else {0: 8}
    host = HostAccount(
        limit_bytes=1800 * GIB,
        bytes_per_node=1.5 * pinned * GIB,
        fullest_node_bytes=pinned * GIB,
        node=0,
        ranks=ranks,
        terms=(TermValue(name="offloaded_optimizer.moe_layers", bytes=pinned * GIB, source="source of it"),)
        if pinned
        else (),
    )
    formats = (
        Format(
            part="weights", setting="fp8_param", format="bf16", bytes_each=2, of="parameter", default=True
        ),
        Format(part="gradients", setting="grad_dtype", format="fp32", bytes_each=4, of="parameter"),
    )
    return Account(
        hbm_bytes=79.1 * GIB,
        limit_bytes=limit,
        fits={"hbm-capacity": True},
        step_seconds=10.0,
        stages=stages,
        alike=alike,
        formats=formats,
        host=host,
    )


def change(text: str, freed: float, added: float, *, fits: bool = True, numerics: bool = False) -> Change:
    return Change(
        set={"tp": 2},
        text=text,
        freed_bytes=freed * GIB,
        added_seconds=added,
        added_share=added / 10,
        step_seconds=10 + added,
        peak_device_bytes=70 * GIB,
        host_bytes_per_node=0,
        fits=fits,
        numerics=numerics,
    )


CHANGES = (
    change("moment_dtype=bf16 and precision_aware_optimizer on", 7.3, -0.006, numerics=True),
    change("recompute_granularity=selective and recompute_modules=[core_attn, mlp, layernorm]", 30.1, 1.2),
    change("tp=2", 5.0, 10.1, fits=False),
)
REPORTS = {
    "memory_dense": (
        made(DENSE, (20.0, 2.0, 2.0, 0.5), ((0,), (1, 2), (3,)), 0),
        Relief(wanted_bytes=5 * GIB, changes=CHANGES, priced=30),
    ),
    "memory_moe": (
        made(MOE, (1.0,), ((0,),), 120.0),
        Relief(wanted_bytes=500 * GIB, changes=(), less=CHANGES[1:], priced=30),
    ),
}


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", REPORTS)
def test_reports_read_as_before(name: str, verbose: bool) -> None:
    whole, relief = REPORTS[name]
    text = memory_report(whole, "fits, says the class", relief, 80, verbose=verbose, colour=False).plain
    path = GOLDEN / f"{name}{'_verbose' if verbose else ''}.txt"
    if os.environ.get("MBSOLVE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_asked_nor_unplain(width: int, verbose: bool) -> None:
    for whole, relief in REPORTS.values():
        text = memory_report(
            whole, "fits, says the class", relief, width, verbose=verbose, colour=False
        ).plain
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width
        assert not any(line != line.rstrip() for line in text.splitlines())


def numbers(line: str) -> list[float]:
    """The GiB of a line of a tree, by column."""
    columns = [line[32 + 13 * i : 45 + 13 * i].strip() for i in range(3)]
    return [float(text) if text else 0.0 for text in columns]


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama3-70b", Plan(tp=8, pp=4, vpp=2, sequence_parallel=True)),
        ("qwen3-30b-a3b", Plan(ep=16, cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn",))),
    ],
)
def test_groups_of_the_tree_add_up_to_the_evaluation(model: str, plan: Plan) -> None:
    whole = account(make_job(model, "h200", 64, 4096, gbs=128), plan)
    text = memory_report(whole, "", None, 80, verbose=True, colour=False).plain
    trees = re.split(r"(?m)^Pipeline rank.*$", text)[1:]
    assert len(trees) == len(whole.alike)
    for tree, ranks in zip(trees, whole.alike, strict=True):
        said = whole.stages[ranks[0]]
        rows = [line for line in tree.splitlines() if re.match(r"  [a-z]", line)]
        end = next(i for i, line in enumerate(rows) if line.startswith("  allocated"))
        groups = [numbers(line) for line in rows[:end]]
        held = [m.allocated_bytes + m.pool_bytes for m in said.moments]
        found = [sum(column) * GIB for column in zip(*groups, strict=True)]
        assert found == pytest.approx(held, abs=0.1 * GIB)
        assert numbers(rows[end]) == pytest.approx([m.allocated_bytes / GIB for m in said.moments], abs=0.006)
        last = max(numbers(next(line for line in rows if line.startswith("  on the device"))))
        assert last == pytest.approx(said.peak_device_bytes / GIB, abs=0.006)


def test_a_bar_is_as_long_as_its_rank_is_full() -> None:
    whole = REPORTS["memory_dense"][0]
    for colour in (False, True):
        lines = bars(whole, 120, colour=colour)[: len(whole.alike)]
        columns = 120 - 42
        scale = max(whole.hbm_bytes, whole.worst_stage.peak_device_bytes)
        for line, ranks in zip(lines, whole.alike, strict=True):
            bar = line.plain[14 : 14 + columns]
            full = sum(one not in "./|" for one in bar)
            share = whole.stages[ranks[0]].peak_device_bytes / scale
            assert abs(full - share * columns) <= 1.5
            assert bar.count("|") == 1
            assert bar.index("|") == int(whole.limit_bytes / scale * columns)


def test_small_pieces() -> None:
    assert spans([0]) == "0"
    assert spans([7, 2, 3, 4, 0]) == "0, 2-4, 7"
    assert sum(cells([1.0, 2.0, 3.3], 10.0, 40)) == round(0.63 * 40)
    assert part_of("saved").letter == "S"
    assert part_of("something_new") is PARTS[-1]
    assert len({part.letter for part in PARTS}) == len(PARTS)
