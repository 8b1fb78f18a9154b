"""Texts become values, names become cards."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from mbsolve.hardware.card import load_machine
from mbsolve.models.card import load_model
from mbsolve.reading import InputError, job_of, make_job, parse_value
from mbsolve.solver.api import assumptions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("none", None),
        ("NULL", None),
        ("[a,b]", ["a", "b"]),
        ("a,b", ["a", "b"]),
        ("[]", []),
        ("[1, 2]", [1, 2]),
        ("deepep", "deepep"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_some_names_keep_their_text() -> None:
    _, decisions = job_of(["cuda_graph_impl=none", "pipeline_layout=Et,t|tL"], [], gpus=8, seq_len=4096)
    assert decisions == {"cuda_graph_impl": "none", "pipeline_layout": "Et,t|tL"}


def test_a_job_goes_to_another_process_and_back() -> None:
    job = make_job(model="dsv3", gpus=64)
    assert job.topology.domain_gpus and job.facts
    back = pickle.loads(pickle.dumps(job))
    assert back == job and back.facts["topology"].domain_gpus == job.topology.domain_gpus


@pytest.mark.parametrize(("model", "tokens"), [("llama3.1-405b", 8192), ("gpt3-175b", 2048), ("dsv3", 4096)])
def test_without_a_length_it_is_the_published_one_of_the_model(model: str, tokens: int) -> None:
    job, _ = job_of([], [], model=model, gpus=8)
    assert (job.seq_len, job.gbs) == (tokens, job.model.default_tokens_per_batch() // tokens)
    assert assumptions(job)["seq_len"] == tokens


def test_cards_names_and_paths_are_one(tmp_path: Path) -> None:
    card = Path(load_model.__code__.co_filename).parent / "data" / "dsv3.yaml"
    jobs = [
        make_job(model="dsv3", hardware="h100"),
        make_job(model=load_model("dsv3"), hardware=load_machine("h100")),
        make_job(model=card),
    ]
    assert jobs[0] == jobs[1]
    assert jobs[2].model.num_layers == jobs[0].model.num_layers
    assert (jobs[0].gpus, jobs[0].seq_len, jobs[0].margin, jobs[0].gpus_per_node) == (256, 4096, 0.03, 8)


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": True},
        {"gpus": 8.0},
        {"seq_len": "4096"},
        {"gbs": 0},
        {"gpus_per_node": -1},
        {"margin": float("nan")},
        {"target": "nemo"},
        {"model": "/no/such.yaml"},
        {"settings": {"logits_copies": 9}},
        {"settings": {"nothing": 1}},
    ],
)
def test_nonsense_is_refused_in_one_sentence(given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        make_job(**given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_options_that_contradict_are_refused() -> None:
    with pytest.raises(InputError, match="has been given"):
        job_of(["precision=bf16"], [], precision="fp8_cs")
    with pytest.raises(InputError, match="has been given"):
        job_of(["grad_dtype=bf16"], ["grad_dtype=fp32"])
    job, decisions = job_of(["precision=fp8_cs", "moment_dtype=bf16"], ["margin=0.1"], gbs="64")
    assert (job.precision, job.settings.moment_dtype, job.margin, job.gbs, decisions) == (
        "fp8_cs",
        "bf16",
        0.1,
        64,
        {},
    )
