"""Measured rows: read in their units, predicted or refused with a reason, and summed up rightly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.cli import main
from mbsolve.constraints.evaluate import evaluate
from mbsolve.emit.measured import measured_row
from mbsolve.emit.probed import probe_row
from mbsolve.emit.siblings import completed_by_siblings
from mbsolve.errors import InputError
from mbsolve.judge.cases import case_of
from mbsolve.judge.statistics import errors_of, validation
from mbsolve.judge.validation import RowResult, read_rows, validate_row

GIB = 2**30
ROW: dict[str, Any] = {
    "id": "one",
    "model": "Qwen3-30B-A3B",
    "hardware": "H100-SXM-80GB",
    "gpus": 16,
    "gpus_per_node": 8,
    "precision": "bf16",
    "seq_len": 4096,
    "gbs": 1024,
    "mbs": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 16,
    "sp": False,
    "dispatcher": "alltoall",
    "task": "pretrain",
    "outcome": "ok",
    "framework": "megatron-bridge",
    "tier": "A-card-perf",
    "moe": True,
    "knobs_recorded": True,
    "step_time_ms": 30000.0,
    "mem_allocated_gb": 62.0,
    "extra": {},
}


def result(**changes: Any) -> RowResult:
    return validate_row(measured_row({**ROW, **changes}))


def test_a_row_is_predicted_as_its_job_is() -> None:
    found = result()
    entry = measured_row(ROW).entry
    assert entry is not None
    case = case_of(entry, "row")
    evaluation = evaluate(case.job, case.plan)
    assert found.evaluated and found.reason is None
    assert found.predicted.step_seconds == pytest.approx(evaluation.step_seconds)
    assert found.predicted.peak_bytes == pytest.approx(evaluation.worst_stage.peak_allocated_bytes)
    assert found.time_error == pytest.approx(evaluation.step_seconds / 30.0 - 1)
    assert found.peak_error == pytest.approx(evaluation.worst_stage.peak_allocated_bytes / 62e9 - 1)
    assert found.between_error is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "lora"}, "LoRA"),
        ({"fsdp": True}, "FSDP"),
        ({"outcome": "error:unsupported"}, "error"),
        ({"tier": "D-analytic"}, "estimate"),
        ({"framework": "torchtitan"}, "torchtitan"),
        ({"gpus": None}, "gpus"),
        ({"tp": None}, "tp"),
        ({"mbs": None}, "mbs"),
        ({"hardware": "MI300X"}, "MI300X"),
        ({"model": "GLM-5.2"}, "GLM-5.2"),
        ({"model": "GLM-5.2", "model_params_note": "reduced to 4 layers"}, "GLM-5.2"),
        ({"precision": "bracket-variant (of a page)"}, "precision"),
        ({"precision": "mxfp8"}, "mxfp8"),
        ({"recompute_modules": ["mhc"]}, "mhc"),
        ({"fine_grained_offload_modules": ["everything"]}, "everything"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ["vision"]}, "vision"),
        ({"extra": {"pp_algorithm": "zbb"}}, "zbb"),
        ({"step_time_ms": None, "mem_allocated_gb": None}, "nothing was measured"),
        ({"pp": 2, "ep": 8, "pp_layout": "Et|tL"}, "layers"),
    ],
    ids=str,
)
def test_what_is_not_evaluated_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = result(**changes)
    assert not found.evaluated and found.reason is not None and reason in found.reason
    assert (found.time_error, found.between_error, found.peak_error) == (None, None, None)


def test_step_time_comes_from_the_least_rounded_figure() -> None:
    tokens, flops = 1024 * 4096, 23.0e9
    stated = {"step_time_ms": None, "tokens_per_s_per_gpu": 1000, "tflops_per_gpu": 200.0}
    derived = measured_row({**ROW, **stated, "extra": {"gflops_per_token": 23.0}}).figures.step_seconds
    assert derived == pytest.approx(flops * tokens / (200e12 * 16))
    by_rate = measured_row({**ROW, **stated}).figures.step_seconds
    assert by_rate == pytest.approx(tokens / (1000 * 16))
    assert measured_row(ROW).figures.step_seconds == 30.0


def test_memory_is_compared_where_the_row_says() -> None:
    split = {"pp": 2, "ep": 8}
    last = result(**split, mem_note="max_memory_allocated (peak) on last global rank")
    first = result(**split, mem_note="rank 0 after iteration 1")
    assert (last.stage, first.stage) == (1, 0)
    ranks = [50.0] * 8 + [40.0] * 8
    each = result(**split, mem_per_rank_allocated_gib=ranks)
    assert each.predicted.peak_bytes is not None and each.measured.peak_bytes in (50 * GIB, 40 * GIB)
    between = result(mem_unit_src="GB (card does not say peak or current)")
    assert between.peak_error is None and between.between_error is not None


def test_between_steps_needs_neither_batch_nor_length() -> None:
    unit = {"mem_unit_src": "GB (card does not say peak or current)", "optimizer_offload_fraction": 0.5}
    short = result(**unit, seq_len=None, mbs=None, gbs=None)
    assert short.between_error is not None and short.time_error is None
    assert short.not_compared == {"time": "not recorded: seq_len"}


def test_what_a_row_does_not_record_is_taken_from_its_kind() -> None:
    def recorded(**changes: Any) -> dict[str, Any]:
        entry = measured_row({**ROW, **changes}).entry
        assert entry is not None
        return entry.settings

    assert recorded()["grad_dtype"] == "bf16"
    assert recorded(tier="A-guide")["grad_dtype"] == "fp32"
    assert recorded(extra={"ddp_grad_reduce_in_fp32": True})["grad_dtype"] == "fp32"
    assert recorded(model="DeepSeek-V3")["moment_dtype"] == "bf16"
    assert "moment_dtype" not in recorded()
    assert recorded(routing="natural")["routing"] == "natural"
    dense = {"model": "Llama-3-70B", "moe": False, "ep": None, "tp": 4}
    assert recorded(**dense)["tp_comm_overlap"] and "tp_comm_overlap" not in recorded()
    assert not recorded(**dense, extra={"tp_comm_overlap": False})["tp_comm_overlap"]


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"pp": 8, "vpp": 2}, (True, True)),
        ({"pp": 2, "vpp": 1}, (False, False)),
        ({"pp": 5, "vpp": 1}, (False, False)),
        ({"pp": 8, "vpp": 2, "task": "sft"}, (False, False)),
        ({"pp": 8, "vpp": 2, "pp_layout": "Et*94L"}, (False, False)),
        ({"pp": 8, "vpp": 2, "model": "Qwen3-30B-A3B"}, (False, False)),
        ({"pp": 5, "extra": {"account_for_loss_in_pipeline_split": True}}, (False, True)),
        ({"pp": 8, "vpp": 2, "extra": {"account_for_loss_in_pipeline_split": False}}, (False, False)),
    ],
)
def test_ends_count_as_layers_where_the_recipe_has_it_and_the_layers_ask_for_it(
    changes: dict[str, Any], counted: tuple[bool, bool]
) -> None:
    row = {**ROW, "model": "Qwen3-235B-A22B", "gpus": 64, "ep": 8, **changes}
    entry = measured_row(row).entry
    assert entry is not None
    assert (entry.plan["embedding_in_split"], entry.plan["loss_in_split"]) == counted


def test_vpp_is_taken_from_rows_of_the_same_cell_that_agree() -> None:
    cell = {**ROW, "pp": 2, "ep": 8}
    rows = [{**cell, "vpp": 12}, {**cell, "vpp": None}, {**cell, "vpp": None, "tp": 2}, {**ROW, "vpp": None}]
    assert [r["vpp"] for r in completed_by_siblings(rows)] == [12, 12, None, None]
    assert completed_by_siblings([*rows, {**cell, "vpp": 6}])[1]["vpp"] is None


def test_a_split_is_taken_from_rows_of_the_same_source_that_agree() -> None:
    told = {**ROW, "source": "a card", "tp": 2, "pp": 2, "ep": 4}
    silent = {**told, "tp": None, "pp": None, "ep": None}
    other = {**silent, "source": "another card"}
    found = completed_by_siblings([told, silent, other])
    assert [(r["tp"], r["pp"], r["ep"]) for r in found] == [(2, 2, 4), (2, 2, 4), (None, None, None)]
    assert completed_by_siblings([told, silent, {**told, "tp": 4}])[1]["tp"] is None


PROBE: dict[str, Any] = {
    "id": "p",
    "model": "llama3_8b",
    "num_layers_override": 8,
    "dense_first_layers": None,
    "mtp_layers": 0,
    "gpus": 8,
    "tp": 2,
    "pp": 1,
    "vpp": None,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "pp_rank": 0,
    "seq_len": 8192,
    "mbs": 1,
    "num_microbatches": 2,
    "fp8": None,
    "between_steps_gib": 13.0,
    "peak_allocated_gib": 19.0,
    "fwd_bwd_ms": 200.0,
    "outcome": "ok",
    "inherited_gib": 1.0,
}


def test_a_probe_has_no_communication() -> None:
    found = validate_row(probe_row(PROBE))
    assert found.measured.between_bytes == pytest.approx(12 * GIB)
    assert found.measured.peak_bytes == pytest.approx(18 * GIB)
    alone = validate_row(probe_row({**PROBE, "tp": 1, "gpus": 4}))
    assert found.predicted.step_seconds is not None and alone.predicted.step_seconds is not None
    # Half the work on each rank, and no collectives: at most half the time and what does not split.
    assert 0.5 <= found.predicted.step_seconds / alone.predicted.step_seconds < 0.62


def test_probe_precisions() -> None:
    blockwise = validate_row(probe_row({**PROBE, "fp8": {"recipe": "blockwise", "fp8_param": False}}))
    assert blockwise.precision == "fp8_block" and blockwise.evaluated
    other = validate_row(probe_row({**PROBE, "fp8": {"recipe": "secret"}}))
    assert other.reason is not None and "secret" in other.reason


def test_a_probe_of_captured_graphs_is_compared_with_what_it_allocated_and_reserved() -> None:
    graphs = {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn"],
        "peak_reserved_gib": 25.0,
    }
    found = probe_row({**PROBE, **graphs})
    assert (found.figures.peak_bytes, found.figures.reserved_bytes) == (18 * GIB, 24 * GIB)
    assert found.entry is not None and found.entry.plan["cuda_graph_scope"] == ("attn",)
    assert probe_row({**PROBE, "peak_reserved_gib": 25.0}).figures.peak_bytes == 18 * GIB


def test_a_probe_says_which_launcher_set_its_optimizer() -> None:
    aware = {**PROBE, "precision_aware_optimizer": True, "moment_dtype": "bf16"}
    core, bridge = probe_row(aware), probe_row({**aware, "optimizer_fp8_recipe": "tensorwise"})
    assert core.entry is not None and bridge.entry is not None
    assert (core.entry.target, bridge.entry.target) == ("megatron-lm", "bridge")
    assert core.entry.settings["moment_dtype"] == "bf16"
    before, after = (validate_row(row).predicted.between_bytes for row in (core, bridge))
    assert before is not None and after is not None and before < after


def test_a_stack_without_experts_leaves_those_of_the_card_out() -> None:
    stack = {**PROBE, "model": "nemotron_3_nano", "tp": 1, "gpus": 16, "ep": 8}
    plain, routed = (
        validate_row(probe_row({**stack, "layer_pattern": pattern, "num_layers_override": len(pattern)}))
        for pattern in ("MMMM", "MMME")
    )
    assert (plain.reason, routed.reason) == (None, None)
    assert plain.predicted.between_bytes is not None and routed.predicted.between_bytes is not None
    assert plain.predicted.between_bytes < routed.predicted.between_bytes


def test_measured_stacks_of_mamba_alone_hold_what_is_predicted() -> None:
    rows = [
        probe_row(r)
        for r in json.loads(STATE.read_text(encoding="utf-8"))
        if set(r.get("layer_pattern") or "-") == {"M"}
    ]
    found = [validate_row(row) for row in rows]
    assert len(found) == 3
    for row in found:
        assert row.between_error is not None and abs(row.between_error) <= 0.001, row.id
        assert row.peak_error is not None and abs(row.peak_error) <= 0.001, row.id


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"moment_dtype": "int8"}, "moment_dtype int8"),
        ({"store_param_remainders": False}, "masters"),
        ({"linear_attention_freq": [1, 0, 1]}, "order"),
        ({"activation_offload_fraction": 0.5}, "part of the activations"),
    ],
)
def test_a_probe_that_is_not_modelled_says_why(changes: dict[str, Any], word: str) -> None:
    found = probe_row({**PROBE, **changes})
    assert found.entry is None and found.reason is not None and word in found.reason


STATE = Path(__file__).parents[2] / "benchmarks" / "data" / "probes_more.json"


def test_measured_optimizer_state_is_that_predicted() -> None:
    rows = [
        probe_row(r) for r in json.loads(STATE.read_text(encoding="utf-8")) if r["id"].startswith("state.")
    ]
    found = [validate_row(row) for row in rows if row.entry is not None]
    assert len(found) == 24
    for row in found:
        # The amax histories of delayed scaling are not modelled.
        allowed = 0.001 if row.precision == "fp8_delayed" else 0.0005
        assert row.peak_error is not None and abs(row.peak_error) <= allowed, row.id
        assert row.between_error is not None and abs(row.between_error) <= allowed, row.id


@given(st.lists(st.floats(-0.9, 5), min_size=1, max_size=40))
def test_statistics_against_sorting(errors: list[float]) -> None:
    found, sizes = errors_of(errors), sorted(abs(e) for e in errors)
    assert found.rows == len(errors) and found.largest == sizes[-1]
    assert found.mean == pytest.approx(sum(sizes) / len(sizes))
    assert sizes[0] <= found.median <= found.p90 <= found.largest


def test_every_row_is_accounted_for() -> None:
    rows = [result(), result(task="lora"), result(fsdp=True), result(gpus=None), result(task="lora")]
    found = validation(rows)
    assert sum(r.evaluated for r in found.rows) + sum(found.reasons.values()) == len(rows)
    assert found.reasons["LoRA is not modelled"] == 2
    assert {g.quantity for g in found.groups} == {"time", "peak"}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rows.jsonl", [ROW, {**ROW, "id": "two", "task": "lora"}])
    assert main(["validate", path]) == 0
    out = capsys.readouterr().out
    assert (
        "2 rows, 1 evaluated" in out and "LoRA is not modelled" in out and "h100 MoE bf16 A-card-perf" in out
    )
    assert main(["validate", "--json", "--time", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in found["rows"]] == ["one", "two"]
    assert found["rows"][0]["time_error"] is not None and found["rows"][0]["peak_error"] is None
    assert set(found["rows"][0]["measured"]) == {"step_seconds", "between_bytes", "peak_bytes"}
    assert main(["validate", "--json", "--memory", path]) == 0
    memory = json.loads(capsys.readouterr().out)["rows"][0]
    assert memory["time_error"] is None and memory["peak_error"] is not None


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}\n', '[{"tier": "A"}]', "\x00"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        list(read_rows(file))
    assert "rows.jsonl" in str(caught.value) and "\n" not in str(caught.value)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(0, 9)
    | st.text(max_size=6)
    | st.lists(st.text())
)


@settings(deadline=None)
@given(st.sampled_from(sorted(set(ROW) - {"extra"})), VALUES)
def test_odd_values_never_crash(name: str, value: object) -> None:
    """A row with one odd value is evaluated or has a reason."""
    found = validate_row(measured_row({**ROW, name: value}))
    assert found.evaluated != bool(found.reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vpp": [1]}, "vpp"),
        ({"gpus": 10**30}, "gpus"),
        ({"extra": {"arch": [1]}}, "extra.arch"),
        ({"extra": {"mtp_num_layers": 1e308}}, "extra.mtp_num_layers"),
        ({"extra": {"opt_exp_avg_dtype": "int8"}}, "extra.opt_exp_avg_dtype"),
        ({"extra": {"gflops_per_token": "abc"}}, "extra.gflops_per_token"),
        ({"dispatcher": "zzz"}, "dispatcher zzz"),
        ({"cuda_graph_impl": "zzz"}, "cuda_graph_impl zzz"),
        ({"gpus": 7}, "world-divisible"),
        ({"framework": "deepspeed 0.14"}, "deepspeed"),
    ],
    ids=str,
)
def test_one_odd_value_costs_one_row(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [ROW, {**ROW, "id": "odd", **changes}])
    good, odd = (validate_row(row) for row in read_rows(file))
    assert good.evaluated
    assert not odd.evaluated and odd.reason is not None and reason in odd.reason


def test_shapes_of_files(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for text in (json.dumps(ROW, indent=2), json.dumps([ROW]), "\ufeff" + json.dumps(ROW) + "\r\n"):
        file.write_text(text, encoding="utf-8")
        assert [row.id for row in read_rows(file)] == ["one"]
    for text in ("", "\n\n", "[]"):
        file.write_text(text)
        with pytest.raises(InputError, match="holds no row"):
            list(read_rows(file))


def test_ranks_alone_are_a_peak() -> None:
    found = result(mem_allocated_gb=None, mem_per_rank_allocated_gib=[50.0] * 16)
    assert found.peak_error is not None


def test_the_ninetieth_percentile_is_the_nearest_rank() -> None:
    assert errors_of([k / 10 for k in range(1, 11)]).p90 == pytest.approx(0.9)


@pytest.mark.parametrize(("framework", "on"), [("megatron-bridge", True), ("megatron-lm", False)])
def test_bridge_shards_the_optimizer_where_either_setting_does(framework: str, on: bool) -> None:
    entry = measured_row({**ROW, "dist_opt": False, "framework": framework}).entry
    assert entry is not None and entry.settings["distributed_optimizer"] is on
