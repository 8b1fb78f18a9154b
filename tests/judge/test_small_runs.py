"""Runs that a row describes by launcher flags: what they hold between steps, by hand and as measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mbsolve.emit.measured import measured_row
from mbsolve.judge.validation import RowResult, validate_row

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "measured.jsonl"
ARCH: dict[str, Any] = {
    "num_layers": 12,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 1024,
    "transformer_impl": "transformer_engine",
    "use_distributed_optimizer": True,
    "no_gradient_accumulation_fusion": True,
    "deterministic_mode": True,
}
ROW: dict[str, Any] = {
    "id": "small",
    "model": "mcore-functional-GPT",
    "hardware": "A100-80GB",
    "gpus": 8,
    "gpus_per_node": 8,
    "precision": "bf16",
    "seq_len": 1024,
    "gbs": 32,
    "mbs": 4,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "sp": False,
    "dist_opt": True,
    "outcome": "ok",
    "framework": "megatron-lm",
    "tier": "C-ci-small",
    "task": "pretrain",
    "step_time_ms": 100.0,
    "mem_static_gb": 0.5521,
    "mem_allocated_gb": 4.6731,
    "mem_note": "max_memory_allocated (peak) on last global rank",
}
# Layer: QKV, projection, two of the FFN, their biases, two norms with offsets.
LAYER = 4 * 512 * 512 + 8 * 512 * 512 + (1536 + 512 + 2048 + 512) + 4 * 512
MODEL = 50304 * 512 + 1024 * 512 + 12 * LAYER + 2 * 512
TORCH = 2 * 8 * 4 * 2**20


def found(arch: dict[str, Any] | None = None, **changes: Any) -> RowResult:
    return validate_row(measured_row({**ROW, **changes, "extra": {"arch": {**ARCH, **(arch or {})}}}))


def between(arch: dict[str, Any] | None = None, **changes: Any) -> float:
    result = found(arch, **changes)
    assert result.predicted.between_bytes is not None, result.reason
    return result.predicted.between_bytes


def test_state_is_counted_by_hand() -> None:
    # bf16 weights, fp32 gradients, a share of 12 bytes; workspaces of torch and of Transformer Engine on an A100.
    rope = 1024 * 64 * 4
    assert between() == pytest.approx(MODEL * (2 + 4 + 12 / 8) + TORCH + 4 * 2**20, abs=rope)
    assert between(dist_opt=False) == pytest.approx(MODEL * 18 + TORCH + 4 * 2**20, abs=rope)


def test_what_a_run_has_that_planned_runs_have_not() -> None:
    scores = 4 * 8 * 1024 * 1024 * 2
    assert between({"transformer_impl": "local"}) - between() == pytest.approx(scores - 4 * 2**20)
    loose = between({"deterministic_mode": None})
    assert between() - loose == pytest.approx(TORCH - 2 * (8 * 2**20 + 128 * 2**10))
    twice = between({"num_distributed_optimizer_instances": 2})
    assert twice - between() == pytest.approx(MODEL * 12 / 8)
    # Half-precision gradients are copied to fp32 for the update, and the copies are there when memory is read.
    half = between(precision="fp16", dist_opt=False)
    assert half - between(dist_opt=False) == pytest.approx(MODEL * (2 + 4 - 4))


def test_a_stage_keeps_the_last_input_of_each_chunk_and_its_gradient() -> None:
    hidden = 4 * 1024 * 512 * 2
    stage = 50304 * 512 + 3 * LAYER + 2 * 512
    fixed = stage * 18 + TORCH + 4 * 2**20
    rope = 3 * 1024 * 64 * 4
    assert between(pp=4, dist_opt=False) - fixed == pytest.approx(2 * hidden, abs=rope)
    assert between(pp=4, vpp=3, dist_opt=False) - fixed == pytest.approx(6 * hidden, abs=rope)


def test_only_what_is_modelled_is_compared() -> None:
    result = found()
    assert result.between_error is not None and abs(result.between_error) < 0.001
    assert result.peak_error is None and "fused" in result.not_compared["peak"]
    assert result.time_error is None and "launches" in result.not_compared["time"]
    fused = {"attention_backend": "flash", "hidden_dropout": 0.0, "attention_dropout": 0.0}
    assert "loss" in found(fused).not_compared["peak"]
    assert found({**fused, "cross_entropy_loss_fusion": True}).peak_error is not None


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ({"optimizer": "muon"}, "muon"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"ffn_hidden_size": "wide"}, "odd extra.arch"),
        ({"num_experts": 4, "moe_layer_freq": "[0, 1, 1]"}, "experts in every layer"),
        ({"tokenizer_model": "a stranger's"}, "vocabulary"),
        ({"hybrid_layer_pattern": "M*"}, "hybrid"),
    ],
)
def test_what_is_not_modelled_is_told(arch: dict[str, Any], reason: str) -> None:
    result = found(arch)
    assert not result.evaluated and result.reason is not None and reason in result.reason


def test_a_row_without_gpus_takes_one_node() -> None:
    assert between(gpus=None) == between()
    assert found(tier="B-release", gpus=None).reason == "not recorded: gpus"


def test_a_layout_says_the_virtual_stages() -> None:
    row = {**ROW, "pp": 2, "pp_layout": "Et*3|(ttt|)*2t*3L", "extra": {"arch": ARCH}}
    entry = measured_row(row).entry
    assert entry is not None and entry.plan["vpp"] == 2


def test_measured_small_runs_are_those_predicted() -> None:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    small = [validate_row(measured_row(r), time=False) for r in rows if r["tier"] == "C-ci-small"]
    errors = sorted(abs(r.between_error) for r in small if r.between_error is not None)
    assert len(errors) >= 400
    assert median(errors) <= 0.007
    assert sum(e <= 0.02 for e in errors) >= 0.83 * len(errors)
