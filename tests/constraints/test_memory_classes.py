"""Every plan is of one class of memory, and its error bar is that which the card has for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.constraints import error_bars
from mbsolve.constraints.error_bars import memory_bar, recorded_bar
from mbsolve.constraints.evaluate import evaluate, fits
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory_classes import CLASSES, class_of, classes_of, widers
from mbsolve.constraints.vocabulary import GRAPH_IMPLS, OFFLOAD_MODULES, PRECISIONS, Plan
from mbsolve.reading import make_job

MODELS = ("llama3-8b", "qwen3-30b-a3b", "dsv3", "nemotron_3_nano")

JOBS = st.builds(
    lambda model, precision, routing, copies, capacity: make_job(
        model=model,
        hardware="b200",
        gpus=64,
        seq_len=4096,
        precision=precision,
        settings={
            "routing": routing,
            "distributed_optimizer": copies,
            "expert_rank_capacity": capacity,
        },
    ),
    st.sampled_from(MODELS),
    st.sampled_from([p for p in PRECISIONS if p != "fp8_block"]),
    st.sampled_from(("balanced", "natural")),
    st.booleans(),
    st.sampled_from((None, 1.5)),
)
PLANS = st.builds(
    Plan,
    tp=st.sampled_from((1, 2)),
    cp=st.sampled_from((1, 2)),
    pp=st.sampled_from((1, 2)),
    ep=st.sampled_from((1, 8)),
    ep_overlap=st.booleans(),
    optimizer_offload_fraction=st.sampled_from((0.0, 0.5)),
    activation_offload_layers=st.sampled_from((0, 2)),
    fine_grained_offload_modules=st.lists(st.sampled_from(OFFLOAD_MODULES), max_size=1).map(tuple),
    cuda_graph_impl=st.sampled_from(GRAPH_IMPLS),
)


@given(JOBS, PLANS)
def test_every_plan_counts_for_exactly_one_class(job: Job, plan: Plan) -> None:
    own = [
        one
        for place, one in enumerate(CLASSES)
        if one.holds(job, plan) and not any(earlier.holds(job, plan) for earlier in CLASSES[:place])
    ]
    assert own == [class_of(job, plan)]
    assert class_of(job, plan) is classes_of(job, plan)[0]


@given(JOBS, PLANS, st.integers(1, 400))
def test_a_bar_is_the_widest_of_its_classes(job: Job, plan: Plan, gib: int) -> None:
    found = memory_bar(job, plan, gib * 2**30)
    bars = [recorded_bar(one) for one in classes_of(job, plan)]
    assert found.error_bar == max(bar.error for bar in bars) and found.short == max(b.short for b in bars)
    assert found.validated == all(
        bar.of == one.name for bar, one in zip(bars, classes_of(job, plan), strict=True)
    )
    assert ("never validated" in found.words) == (not found.validated)
    assert found.rows > 0 and f"over {found.rows} row" in found.words


@given(JOBS, PLANS, st.integers(1, 400))
def test_words_agree_with_the_verdict(job: Job, plan: Plan, gib: int) -> None:
    peak = gib * 2**30
    words = memory_bar(job, plan, peak).words
    hbm = job.machine.hbm_bytes
    expected = (
        "does not fit" if peak > hbm else "within the margin" if peak > hbm * (1 - job.margin) else "fits"
    )
    assert words.startswith(expected)


def test_names_and_reasons_are_told_once() -> None:
    names = [one.name for one in CLASSES] + list(widers())
    assert len(names) == len(set(names)) and "all" not in names
    assert all(one.because and not one.because.endswith(".") and "\n" not in one.because for one in CLASSES)


CARD: dict[str, Any] = {
    "memory": {
        "classes": {one.name: {"rows": 0} for one in CLASSES}
        | {
            "dense BF16": {"error": 0.002, "short": 0.001, "rows": 40},
            "TE graphs": {"error": 0.08, "short": 0.06, "rows": 9},
            "FP8 tensorwise": {"error": 0.4, "short": 0.0, "rows": 1},
        },
        "wider": {name: {"rows": 0} for name in widers()}
        | {
            "short formats": {"error": 0.01, "short": 0.01, "rows": 30},
            "all": {"error": 0.07, "short": 0.05, "rows": 90},
        },
    }
}
HBM = make_job(model="llama3-8b", hardware="b200", gpus=8, seq_len=4096).machine.hbm_bytes
GRAPHS: dict[str, Any] = {"cuda_graph_impl": "transformer_engine"}


@pytest.mark.parametrize(
    ("share", "precision", "plan", "words"),
    [
        (0.5, "bf16", {}, "fits with 3% margin (memory error 0.2% over 40 rows of its class, dense BF16)"),
        (
            0.96,
            "bf16",
            GRAPHS,
            (
                "fits, but its class takes up to 6.0% more than predicted and the margin is 3%: use --margin 0.06 "
                "(memory error 8.0% over 9 rows of its class, TE graphs)"
            ),
        ),
        (
            0.5,
            "bf16",
            GRAPHS,
            (
                "fits with 50% to spare, where a margin of 3% alone would not cover its class "
                "(memory error 8.0% over 9 rows of its class, TE graphs)"
            ),
        ),
        (
            0.98,
            "bf16",
            {},
            (
                "within the margin: the peak fits with 2.0% to spare, where 3% is to be kept free "
                "(memory error 0.2% over 40 rows of its class, dense BF16)"
            ),
        ),
        (
            0.5,
            "mxfp8",
            {},
            (
                "fits with 3% margin (never validated: MXFP8; a memory error of 1.0% is assumed, as over 30 rows of any "
                "class of short formats)"
            ),
        ),
        (
            0.5,
            "mxfp8",
            GRAPHS,
            (
                "fits with 50% to spare, where a margin of 3% alone would not cover its class "
                "(memory error 8.0% over 9 rows of its class, TE graphs; never validated: MXFP8)"
            ),
        ),
        (
            0.5,
            "bf16",
            {"cp": 2},
            (
                "fits with 50% to spare, where a margin of 3% alone would not cover its class (never validated: context "
                "parallel; a memory error of 7.0% is assumed, as over 90 rows of all classes)"
            ),
        ),
        (
            0.5,
            "fp8_cs",
            {},
            (
                "fits with 3% margin, which covers the 0.1% that its class takes beyond the prediction "
                "(memory error 40.0% over 1 row of its class, FP8 tensorwise)"
            ),
        ),
    ],
)
def test_what_is_said(
    share: float, precision: str, plan: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_bars, "_accuracy", lambda: CARD)
    job = make_job(model="llama3-8b", hardware="b200", gpus=8, seq_len=4096, precision=precision)
    assert memory_bar(job, Plan(**plan), share * HBM).words == words


def test_the_margin_that_is_advised_covers_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly full plans: whoever follows the advice has room for what rows of the class took."""
    monkeypatch.setattr(error_bars, "_accuracy", lambda: CARD)
    job = make_job(model="llama3-8b", hardware="b200", gpus=8, seq_len=4096)
    advice = float(memory_bar(job, Plan(**GRAPHS), 0.969 * HBM).words.split("--margin ")[1].split(" ")[0])
    limit = HBM * (1 - advice)
    assert limit * (1 + CARD["memory"]["classes"]["TE graphs"]["short"]) <= HBM


def test_an_evaluation_says_it() -> None:
    job = make_job(model="llama3-8b", hardware="h100", gpus=8, seq_len=8192, gbs=64)
    found = evaluate(job, Plan(tp=2, sequence_parallel=True))
    assert found.memory_error == memory_bar(
        job, Plan(tp=2, sequence_parallel=True), found.worst_stage.peak_device_bytes
    )
    assert found.memory_error.words.startswith("fits") == fits(job, found)["hbm-capacity"]
