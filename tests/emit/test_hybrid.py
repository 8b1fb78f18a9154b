"""Hybrid models carry their pipeline stages in the layer pattern."""

from __future__ import annotations

from mbsolve.constraints.vocabulary import Plan
from mbsolve.emit.hybrid import marked_pattern
from mbsolve.emit.megatron_bridge import overrides
from mbsolve.reading import make_job


def test_stages_are_marked_in_the_pattern() -> None:
    assert marked_pattern("MEM*EM/*E", None) == "MEM*EM/*E"
    assert marked_pattern("MEM*EM/*E", "Et*2|(t|)*3tmL") == "ME|M|*|E|M/*E"


def test_a_hybrid_plan_names_its_pattern_and_no_layout() -> None:
    job = make_job(model="nemotron-3-nano", hardware="h100", gpus=16, seq_len=8192)
    plan = Plan(
        pp=2,
        ep=8,
        pipeline_layout="Et*27|t*25L",
        cuda_graph_impl="transformer_engine",
        cuda_graph_scope=("mamba",),
    )
    lines = overrides(job, plan)
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*|EMEMEM*EMEMEMEM*EMEMEMEME"
    assert f'model.hybrid_layer_pattern="{pattern}"' in lines
    assert "model.pipeline_model_parallel_layout=null" in lines
    assert any("mamba" in line and "cuda_graph" in line for line in lines)
