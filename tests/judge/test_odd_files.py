"""Job files made at random: each is judged, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbsolve.emit.spellings import DIMENSIONS, known_spellings
from mbsolve.errors import InputError
from mbsolve.hardware.card import machine_names
from mbsolve.judge.answers import evaluate_case, verdict
from mbsolve.judge.cases import read_cases
from mbsolve.models.card import model_names

WORDS = (
    *(
        "full",
        "selective",
        "uniform",
        "block",
        "alltoall",
        "deepep",
        "flex",
        "none",
        "local",
        "bf16",
        "fp8",
        "x",
    ),
    *("transformer_engine", "full_iteration", "Et*24|t*24L", "E|t*48|L"),
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 64),
    st.sampled_from((0.5, 1.5, 1024, 4096)),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(("attn", "moe", "core_attn", "mlp")), max_size=2),
    st.just({"a": 1}),
)
OWN = st.dictionaries(st.sampled_from((*DIMENSIONS, "num_layers", "head_dim", "attention")), ODD, max_size=9)
JOBS = st.fixed_dictionaries(
    {
        "model": st.one_of(st.sampled_from(model_names()), OWN.map(lambda own: {"name": "own", **own})),
        "hardware": st.sampled_from(machine_names()),
        "gpus": st.sampled_from((1, 2, 8, 48, 256, None)),
        "seq_len": st.sampled_from((None, 128, 4112, 131072)),
        "gbs": st.sampled_from((None, 1, 8, 513)),
        "config": st.dictionaries(st.sampled_from(known_spellings()), ODD, max_size=6),
    }
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=JOBS)
def test_any_file_is_judged_or_refused(job: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = Path(tmp_path_factory.getbasetemp()) / "odd.yaml"
    file.write_text(yaml.safe_dump(job))
    try:
        cases = read_cases(file)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for case in cases:
        said, priced = verdict(case), evaluate_case(case)
        assert said.legal == priced.legal
        as_priced = said.evaluation is None or said.completed != priced.completed
        assert as_priced or said.evaluation == priced.evaluation
        said.model_dump_json()
        priced.model_dump_json()
