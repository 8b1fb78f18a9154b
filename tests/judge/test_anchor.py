"""A measured run as an anchor: it scales every time alike, the rows still add up, and it speaks for its own cell only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbsolve.cli import main
from mbsolve.constraints.anchor import Anchor
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.vocabulary import Plan
from mbsolve.errors import InputError
from mbsolve.judge.anchor import anchor_case, read_run
from mbsolve.judge.cases import read_cases
from mbsolve.reading import make_job

RUN = """
model: llama3-8b
hardware: h100
gpus: 8
seq_len: 8192
gbs: 128
config: {tp: 2}
step_seconds: 15.0
"""
JOB = RUN.replace("tp: 2", "tp: 4").replace("step_seconds: 15.0", "")


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@given(st.floats(0.05, 20.0))
@settings(max_examples=30, deadline=None)
def test_all_times_scale_alike_and_add_up(factor: float) -> None:
    job = make_job(model="llama3-8b", hardware="h100", gpus=8, seq_len=8192, gbs=128)
    plan = Plan(tp=2, sequence_parallel=True, pp=2)
    plain = evaluate(job, plan)
    scaled = evaluate(job.model_copy(update={"anchor": Anchor(factor=factor, by="run.yaml")}), plan)
    assert scaled.step_seconds == pytest.approx(plain.step_seconds * factor, rel=1e-12)
    assert sum(t.seconds or 0.0 for t in scaled.terms) == pytest.approx(scaled.step_seconds, rel=1e-9)
    assert [t.name for t in scaled.terms] == [t.name for t in plain.terms]
    assert scaled.tflops_per_gpu == pytest.approx(plain.tflops_per_gpu / factor)
    assert scaled.mfu == pytest.approx(plain.mfu / factor)
    assert scaled.tokens_per_second_per_gpu == pytest.approx(plain.tokens_per_second_per_gpu / factor)
    assert scaled.stages == plain.stages


def test_the_run_itself_is_predicted_as_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path, "run.yaml", RUN)
    assert main(["evaluate", run, "--anchor", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_seconds"] == pytest.approx(15.0)
    assert found["anchor"]["by"] == run
    assert sum(t["seconds"] for t in found["terms"]) == pytest.approx(15.0)
    assert main(["evaluate", run, "--anchor", run]) == 0
    assert read_run(run).anchor.words in capsys.readouterr().out


def test_another_plan_of_the_cell_takes_the_same_factor(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, "run.yaml", RUN))
    case = read_cases(written(tmp_path, "job.yaml", JOB))[0]
    anchored = anchor_case(case, run)
    ratio = evaluate(anchored.job, anchored.plan).step_seconds / evaluate(case.job, case.plan).step_seconds
    assert ratio == pytest.approx(run.measured / run.predicted)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("llama3-8b", "llama3-70b", "is a run of llama3-8b, but this is llama3-70b"),
        ("h100", "b200", "ran on h100, but this is b200"),
        ("llama3-8b", "{name: llama3-8b, num_layers: 16}", "num_layers 32 there and 16 here"),
    ],
)
def test_another_model_or_gpu_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], was: str, now: str, said: str
) -> None:
    run = written(tmp_path, "run.yaml", RUN)
    job = written(tmp_path, "job.yaml", JOB.replace(was, now))
    assert main(["evaluate", job, "--anchor", run]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("", "lacks the field 'step_seconds'"),
        ("step_seconds: 0", "must be a number above 0"),
        ("step_seconds: fast", "must be a number above 0"),
        ("step_seconds: true", "must be a number above 0"),
        ("step_seconds: .inf", "must be a number above 0"),
    ],
)
def test_a_run_needs_its_measured_step(tmp_path: Path, step: str, said: str) -> None:
    run = written(tmp_path, "run.yaml", RUN.replace("step_seconds: 15.0", step))
    with pytest.raises(InputError, match=said):
        read_run(run)


def test_an_anchor_is_one_run(tmp_path: Path) -> None:
    jobs = written(tmp_path, "run.yaml", "[{model: llama3-8b, gpus: 8}, {model: llama3-8b, gpus: 16}]")
    with pytest.raises(InputError, match="holds 2 jobs, but it must be one measured run"):
        read_run(jobs)


def test_a_solve_keeps_its_plans_and_scales_their_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = read_run(written(tmp_path, "run.yaml", RUN))
    asked = [
        "--model",
        "llama3-8b",
        "--gpus",
        "8",
        "--gbs",
        "128",
        "--seq",
        "8192",
        "--json",
        "--fix",
        "tp=2",
    ]
    found = []
    for more in ([], ["--anchor", run.anchor.by]):
        assert main([*asked, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, scaled = found
    assert [p["plan"] for p in plain["plans"]] == [p["plan"] for p in scaled["plans"]]
    assert scaled["bound_seconds"] == pytest.approx(plain["bound_seconds"] * run.anchor.factor)
    for one, other in zip(plain["plans"], scaled["plans"], strict=True):
        seconds = one["evaluation"]["step_seconds"], other["evaluation"]["step_seconds"]
        assert seconds[1] == pytest.approx(seconds[0] * run.anchor.factor)
        assert other["evaluation"]["anchor"] == {
            "factor": run.anchor.factor,
            "by": run.anchor.by,
            "doubts": [],
        }


def test_memory_alone_takes_no_anchor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path, "run.yaml", RUN)
    assert main(["evaluate", run, "--memory", "--anchor", run]) == 2
    assert "--anchor corrects times" in capsys.readouterr().err


def test_a_run_in_milliseconds_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "run.yaml", RUN.replace("15.0", "15000.0"))
    with pytest.raises(InputError, match="within 10 times"):
        read_run(path)


def test_a_run_that_breaks_a_law_is_taken_with_its_doubt(tmp_path: Path) -> None:
    """What ran is believed, and what speaks against it is told wherever the anchor is."""
    path = written(tmp_path, "run.yaml", RUN + "mbs: 3\n")
    run = read_run(path)
    assert run.anchor.doubts and all(law in run.anchor.words for law in run.anchor.doubts)


def test_the_picture_of_a_step_names_its_anchor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, job = written(tmp_path, "run.yaml", RUN), written(tmp_path, "job.yaml", JOB)
    words = read_run(run).anchor.words
    assert main(["evaluate", job, "--anchor", run, "--time"]) == 0
    assert words.split(" by ")[0] in capsys.readouterr().out
    assert main(["evaluate", job, "--anchor", run, "--time", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["anchor"]["by"] == run


def test_where_a_card_is_from_makes_no_other_model(tmp_path: Path) -> None:
    """A model written out is the same model; one with a changed size is not, and the sentence is short."""
    run = read_run(written(tmp_path, "run.yaml", RUN))
    same = run.job.model.model_copy(update={"sources": {}, "published_params": None})
    assert run.other_than(run.job.model_copy(update={"model": same})) is None
    cut = run.job.model.model_copy(update={"num_layers": 24, "sources": {}})
    said = run.other_than(run.job.model_copy(update={"model": cut}))
    assert said is not None and "num_layers" in said and len(said) < 300
