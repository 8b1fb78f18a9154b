"""The memory of a plan as text: golden texts of a dense and an MoE job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mbsolve.judge.cases import read_cases
from mbsolve.judge.memory import memory_of
from mbsolve.judge.text import remembered_text

GOLDEN = Path(__file__).parent / "golden"
FILES = {
    "memory_dense": """
model: llama3-70b
hardware: h100
gpus: 64
seq_len: 8192
gbs: 128
config: {tp: 4, pp: 4, sequence_parallel: true}
""",
    "memory_moe": """
model: qwen3-30b-a3b
hardware: h100
gpus: 32
seq_len: 4096
gbs: 256
config:
  pp: 2
  ep: 8
  optimizer_offload_fraction: 0.5
  cuda_graph_impl: transformer_engine
  cuda_graph_scope: [attn]
state_dtypes: {grad: bf16}
""",
}


@pytest.mark.parametrize("name", FILES)
def test_memory_reads_as_before(name: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(FILES[name], encoding="utf-8")
    (case,) = read_cases(job)
    case = type(case)(**{**vars(case), "name": "job"})
    text = remembered_text(case, memory_of(case, 2.0 * 2**30), 80)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MBSOLVE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
