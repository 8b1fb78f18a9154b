"""What a user fixes by name is tried, even where the search itself would leave it out."""

from __future__ import annotations

from typing import Any

import pytest

from mbsolve.reading import make_job
from mbsolve.solver.api import solve


@pytest.mark.parametrize(
    ("model", "gpus", "fixed"),
    [
        (
            "llama3-8b",
            8,
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
        ),
        ("qwen3-30b-a3b", 8, {"recompute_modules": ["moe", "moe_act"]}),
        ("llama3-8b", 8, {"activation_offload_layers": 5, "mbs": 1}),
        ("llama3-8b", 8, {"recompute_num_layers": 200}),
        ("qwen2.5-14b", 8, {"pp": 8, "last_stage_layers": 3}),
        ("llama3-8b", 8, {"embedding_in_split": True, "loss_in_split": True, "pp": 2}),
    ],
)
def test_unusual_values_are_kept(model: str, gpus: int, fixed: dict[str, Any]) -> None:
    """Redundant or unusual values that the stack accepts give a plan that has them."""
    outcome = solve(make_job(model, "h100", gpus, 4096, gbs=32), top=1, fixed=fixed)
    assert outcome.status == "OPTIMAL" and outcome.best is not None
    for name, value in fixed.items():
        got = getattr(outcome.best.plan, name)
        assert (set(got) == set(value)) if isinstance(value, list) else (got == value)


def test_impossible_module_is_no_crash() -> None:
    """A dispatcher on a dense model leaves no value at all: an answer, not an error."""
    outcome = solve(make_job("llama3-8b", "h100", 8, 4096, gbs=32), top=1, fixed={"dispatcher": "deepep"})
    assert outcome.status == "INFEASIBLE" and outcome.explanation is not None
