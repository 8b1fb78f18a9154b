"""Configurations on which the rules and the validators of the real packages once differed."""

from __future__ import annotations

from typing import Any

import pytest

from mbsolve.constraints.check import violations
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.reading import make_job

OVERLAP = Plan(ep=8, ep_overlap=True, delay_wgrad=True, cuda_graph_scope=("attn",))
UNFUSED = {"grad_accumulation_fusion": False}


@pytest.mark.parametrize(
    ("model", "settings", "change", "law"),
    [
        # Biases of the query, key and value projection count as biases of attention.
        ("glm-4.5-air", {}, {"cuda_graph_impl": "transformer_engine"}, "cg-delay-wgrad-scope"),
        ("qwen3-30b-a3b", {}, {"cuda_graph_impl": "transformer_engine"}, None),
        # Scopes are looked at before they are cleared for want of graphs.
        ("qwen3-30b-a3b", UNFUSED, {}, "cg-delay-wgrad-scope"),
        ("qwen3-30b-a3b", UNFUSED, {"cuda_graph_scope": ()}, None),
    ],
)
def test_delayed_weight_gradients_beside_graph_scopes(
    model: str, settings: dict[str, Any], change: dict[str, Any], law: str | None
) -> None:
    job = make_job(model=model, gpus=64, seq_len=4096, gbs=256).model_copy(
        update={"settings": Settings(**settings), "target": "bridge-0.6"}
    )
    found = [violation.rule for violation in violations(job, OVERLAP.model_copy(update=change))]
    assert found == ([law] if law else [])
