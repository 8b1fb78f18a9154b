"""Runs against the memory of their GPUs: those that ended for lack of it, and those that ran."""

from __future__ import annotations

from typing import Any

import pytest

from mbsolve.constraints.evaluate import evaluate
from mbsolve.emit.measured import measured_row
from mbsolve.judge.cases import case_of
from mbsolve.judge.fitting import Fit, fits_of, fits_text, verdict
from mbsolve.judge.statistics import validation
from mbsolve.judge.validation import RowResult, validate_row

ROW: dict[str, Any] = {
    "id": "one",
    "model": "Llama-3-70B",
    "hardware": "H100-SXM-80GB",
    "gpus": 64,
    "gpus_per_node": 8,
    "precision": "bf16",
    "seq_len": 8192,
    "gbs": 128,
    "mbs": 1,
    "tp": 4,
    "pp": 4,
    "cp": 1,
    "task": "pretrain",
    "outcome": "ok",
    "framework": "megatron-bridge",
    "tier": "A-published-table",
    "moe": False,
    "knobs_recorded": True,
    "step_time_ms": 10000.0,
    "extra": {},
}


def judged(**changes: Any) -> RowResult:
    return validate_row(measured_row({**ROW, **changes}))


@pytest.mark.parametrize(
    ("bytes_", "word"), [(80.0, "fits"), (96.0, "within margin"), (104.0, "within margin"), (120.0, "oom")]
)
def test_a_verdict_knows_its_error_bar(bytes_: float, word: str) -> None:
    assert verdict(bytes_, 100.0, 0.05) == word
    assert verdict(bytes_, 100.0, 0.0) == ("fits" if bytes_ <= 100 else "oom")


def test_a_run_that_ended_for_lack_of_memory_is_judged_as_it_was_recorded() -> None:
    found = judged(outcome="oom", tp=1, pp=4, mem_allocated_gb=79.0)
    assert found.evaluated and found.fit is not None and not found.fit.ran
    assert found.fit.verdict == "oom" and found.fit.leaner == {}
    assert (found.peak_error, found.time_error) == (None, None)
    entry = measured_row({**ROW, "outcome": "oom", "tp": 1}).entry
    assert entry is not None
    case = case_of(entry, "row")
    stage = max(s.peak_device_bytes for s in evaluate(case.job, case.plan).stages)
    assert found.fit.device_bytes == pytest.approx(stage)


def test_a_batch_that_is_not_recorded_is_the_least_and_proves_nothing_where_it_fits() -> None:
    small = {"mbs": None, "seq_len": None, "outcome": "oom"}
    lost = judged(**small, tp=1, pp=4)
    assert lost.fit is not None and lost.fit.verdict == "oom"
    open_ = judged(**small, tp=8, pp=4)
    assert open_.fit is None and not open_.evaluated and open_.reason == "not recorded: seq_len"


def test_a_run_that_ran_takes_what_its_row_leaves_open() -> None:
    split = {"gpus": 16, "tp": 4, "pp": 4, "vpp": 5, "tier": "A-guide", "seq_len": 4096}
    tight = judged(**split)
    assert tight.fit is not None and tight.fit.leaner["moment_dtype"] == "bf16"
    said = {"ddp_grad_reduce_in_fp32": True, "opt_exp_avg_dtype": "float32"}
    open_recompute = judged(**split, extra=said)
    assert open_recompute.fit is not None and open_recompute.fit.leaner["recompute_granularity"] == "full"
    closed = judged(**split, extra=said, recompute_granularity="selective", recompute_modules=["core_attn"])
    assert closed.fit is not None and closed.fit.leaner == {} and closed.fit.verdict == "oom"
    assert tight.fit.device_bytes < closed.fit.device_bytes


def test_a_run_is_judged_for_its_memory_only_where_memory_is_asked_for() -> None:
    row = measured_row(ROW)
    assert validate_row(row, memory=False).fit is None
    assert validate_row(row, time=False).fit is not None


def test_verdicts_are_counted_and_said() -> None:
    def one(ran: bool, word: str) -> Fit:
        return Fit(ran=ran, device_bytes=1.0, budget_bytes=1.0, verdict=word)  # type: ignore[arg-type]

    some = [(ran, word) for ran in (True, False) for word in ("oom", "within margin", "fits", "fits")]
    fits = fits_of([(f"{ran} {word}", one(ran, word)) for ran, word in some] + [("none", None)])
    assert (fits.oom, fits.oom_within_margin, fits.oom_wrong) == (1, 1, ("False fits", "False fits"))
    assert (fits.ran, fits.ran_within_margin, fits.ran_wrong) == (2, 1, ("True oom",))
    text = "\n".join(fits_text(fits))
    assert "2 judged to fit" in text and "1 judged impossible" in text and "True oom" in text
    assert fits_text(fits_of([])) == []
    assert validation([judged()]).fits.ran + validation([judged()]).fits.ran_within_margin == 1
