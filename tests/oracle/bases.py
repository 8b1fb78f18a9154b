"""Configurations that random ones are drawn about: published plans, and some of other shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

COUNTED: Final = {"embedding_in_split": True, "loss_in_split": True}
# model, gpus, seq_len, gbs, plan
BASES: Final[tuple[tuple[str, int, int, int, Mapping[str, Any]], ...]] = (
    ("dsv3", 256, 4096, 512, {"pp": 8, "ep": 32, "pipeline_layout": "Et*7|t*8|t*8|t*8|t*8|t*8|t*8|t*6mL"}),
    ("dsv3", 256, 8192, 512, {"pp": 8, "ep": 16, "vpp": 4, "pipeline_layout": "Et*3|(tt|)*29m|L"}),
    ("dsv3", 61, 4096, 61, {"pp": 61}),
    ("moonlight-16b", 16, 4096, 64, {"pp": 1, "ep": 8}),
    (
        "moonlight-16b",
        32,
        4096,
        64,
        {"pp": 2, "ep": 4, "tp": 2, "sequence_parallel": True, "first_stage_layers": 13},
    ),
    ("glm-4.5-air", 64, 4096, 256, {"pp": 2, "ep": 8}),
    ("glm-4.5-air", 64, 4096, 256, {"ep": 8}),
    ("qwen3-30b-a3b", 16, 4096, 64, {"pp": 2, "tp": 2, "ep": 4, "sequence_parallel": True}),
    ("qwen3-30b-a3b", 16, 4096, 64, {"ep": 8, "cp": 2}),
    ("qwen3-30b-a3b", 32, 4096, 128, {"pp": 4, "vpp": 3, "ep": 8}),
    ("qwen3-30b-a3b", 24, 4096, 144, {"pp": 3, "ep": 8, "vpp": 2}),
    ("llama3-8b", 8, 8192, 128, {"tp": 2, "sequence_parallel": True}),
    ("llama3-8b", 32, 8192, 128, {"tp": 2, "pp": 4, "vpp": 2, "cp": 2}),
    ("llama3-8b", 16, 8192, 128, {"pp": 2, "first_stage_layers": 15, "last_stage_layers": 17}),
    ("llama3-8b", 16, 8192, 128, {"pp": 4, "first_stage_layers": 10, "last_stage_layers": 10, "vpp": 2}),
    ("llama3-8b", 36, 8192, 144, {"pp": 36, "pipeline_layout": "E||(t|)*32|L"}),
    ("mixtral-8x7b", 16, 4096, 64, {"ep": 8}),
    ("deepseek-v2", 64, 4096, 256, {"pp": 4, "ep": 16}),
    ("gpt3-175b", 64, 2048, 128, {"tp": 8, "pp": 8, "vpp": 2, "sequence_parallel": True}),
    ("qwen3-next-80b", 64, 4096, 256, {"tp": 2, "pp": 4, "ep": 8, "sequence_parallel": True}),
    ("nemotron-3-nano", 16, 8192, 64, {"ep": 8, "pp": 2}),
    (
        "nemotron-3.5-lightning",
        16,
        8192,
        64,
        {"pp": 4, "ep": 4, "pipeline_layout": "Et*16|t*12|t*12|t*12mmL"},
    ),
    (
        "nemotron-3-super",
        64,
        8192,
        512,
        {"pp": 2, "ep": 32},
    ),
    (
        "qwen3-235b-a22b",
        64,
        4096,
        256,
        {"pp": 8, "vpp": 4, "ep": 8, **COUNTED},
    ),
    ("llama3.1-405b", 128, 8192, 128, {"tp": 8, "pp": 8, "sequence_parallel": True, **COUNTED}),
    ("gpt-oss-20b", 16, 4096, 64, {"pp": 2, "ep": 4, "tp": 2, "sequence_parallel": True}),
)
