"""The command line over a solver that answers at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mbsolve.cli import main
from mbsolve.constraints.demands import DemandError
from mbsolve.constraints.job import Job
from mbsolve.solver import api
from mbsolve.solver.outcome import Interrupted, Outcome

ASK = ["--model", "dsv3", "--seq", "131072", "--gpus", "256", "--gbs", "128"]
Calls = list[tuple[Job, dict[str, Any]]]
Answer = Callable[[str], Calls]


@pytest.fixture
def answer(outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Make every solve return the outcome of a name; gives the list of calls."""

    def choose(name: str) -> Calls:
        calls: Calls = []

        def solve(job: Job, **given: Any) -> Outcome:
            calls.append((job, given))
            return outcomes[name]

        monkeypatch.setattr(api, "solve", solve)
        return calls

    return choose


def raising(error: BaseException) -> Callable[..., Outcome]:
    def solve(*_: Any, **__: Any) -> Outcome:
        raise error

    return solve


@pytest.mark.parametrize(
    ("name", "code"), [("optimal", 0), ("feasible", 0), ("infeasible", 3), ("unknown", 4)]
)
def test_exit_code_says_the_status(
    name: str, code: int, answer: Answer, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(name)
    assert main(ASK) == code
    shown = capsys.readouterr()
    assert outcomes[name].status in shown.out
    assert shown.err == ""
    assert ("Run it:" in shown.out) == bool(outcomes[name].plans)


@pytest.mark.parametrize(
    ("target", "script"), [("bridge-0.6", "run_recipe.py"), ("megatron-lm", "pretrain_gpt.py")]
)
def test_the_launch_is_for_the_target(
    target: str, script: str, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("optimal")
    assert main([*ASK, "--target", target]) == 0
    said = capsys.readouterr().out
    assert f"{script} " in said.partition("Run it:")[2]
    assert ("DATA_TOKENIZER_AND_SCHEDULE stands for" in said) == (target == "megatron-lm")


def test_json_is_the_outcome_and_nothing_else(
    answer: Answer, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answer("optimal")
    assert main([*ASK, "--json"]) == 0
    shown = capsys.readouterr()
    assert Outcome.model_validate_json(shown.out) == outcomes["optimal"]
    assert shown.out == outcomes["optimal"].model_dump_json(indent=2) + "\n"
    assert len(calls) == 1


def test_another_precision_is_tried_on_the_same_grid(
    answer: Answer, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answer("optimal")
    main([*ASK, "--fix", "ep=32"])
    assert [(job.precision, given["top"]) for job, given in calls] == [("bf16", 1), ("fp8_cs", 1)]
    assert calls[0][1]["fixed"] == {"ep": 32}
    best = outcomes["optimal"].plans[0].plan
    grid = {n: getattr(best, n) for n in ("tp", "cp", "pp", "etp", "mbs")}
    assert calls[1][1]["fixed"] == {**grid, "ep": 32}
    said = "With --precision fp8_cs on the same grid: 204.5 s a step (+0.0%, a tie), 76.2 GiB.\n"
    assert capsys.readouterr().out.endswith(said)
    calls.clear()
    main([*ASK, "--no-alternatives"])
    assert len(calls) == 1


def test_options_reach_the_job_and_the_solver(answer: Answer) -> None:
    calls = answer("optimal")
    options = (
        "--hardware h200 --gpus-per-node 4 --precision fp8_cs --margin 0.1 --block 4 --target bridge-0.6"
    )
    more = ["--fix", "recompute_modules=[moe,mlp]", "--fix", "sequence_parallel=true", "--fix", "cp=4"]
    more += ["--fix", "pipeline_layout=none", "--fix", "grad_dtype=bf16", "--set", "logits_copies=1"]
    more += ["--forbid", "deepep", "--forbid", "vpp=2", "--top", "2", "--objective", "memory"]
    main([*ASK, *options.split(), *more, "--time-limit", "60", "--workers", "2", "--no-alternatives"])
    job, given = calls[0]
    assert (job.machine.name, job.gpus_per_node, job.precision) == ("h200", 4, "fp8_cs")
    assert (job.margin, job.block_gpus, job.target) == (0.1, 4, "bridge-0.6")
    assert (job.settings.grad_dtype, job.settings.logits_copies) == ("bf16", 1)
    assert given == {
        "top": 2,
        "fixed": {
            "recompute_modules": ["moe", "mlp"],
            "sequence_parallel": True,
            "cp": 4,
            "pipeline_layout": None,
        },
        "forbid": ["deepep", "vpp=2"],
        "objective": "memory",
        "time_limit": 60.0,
        "workers": 2,
        "progress": None,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--model dvs3 --seq 4096 --gpus 8", "did you mean 'dsv3'?"),
        ("--model dsv3 --seq 4096 --gpus 0", "gpus is 0, but it must be a whole number of at least 1."),
        ("--model dsv3 --seq 4096 --gpus -3", "gpus is -3"),
        ("--model dsv3 --seq 4096 --gpus 7.5", "gpus is 7.5"),
        ("--model dsv3 --seq 0 --gpus 8", "seq_len is 0"),
        ("--model dsv3 --seq many --gpus 8", "seq_len is 'many'"),
        ("", "--model is missing"),
        ("--model dsv3 --seq 4096 --gpus 8 --hardware h10", "did you mean 'h100'?"),
        ("--model dsv3 --seq 4096 --gpus 8 --precision fp9", "it must be one of bf16"),
        ("--model dsv3 --seq 4096 --gpus 8 --precision mxfp8", "supports bf16, fp8_cs"),
        ("--model dsv3 --seq 4096 --gpus 8 --margin 1", "margin is 1, but it must be"),
        ("--model dsv3 --seq 4096 --gpus 8 --objective speed", "--objective is 'speed'"),
        ("--model dsv3 --seq 4096 --gpus 8 --time-limit 0", "--time-limit is 0"),
        ("--model dsv3 --seq 4096 --gpus 8 --top 0", "--top is 0"),
        ("--model dsv3 --seq 4096 --gpus 8 --fix tp", "must be NAME=VALUE"),
        ("--model dsv3 --seq 4096 --gpus 8 --fix tp=1 --fix tp=2", "two values"),
        ("--model dsv3 --seq 4096 --gpus 8 --fix tp=abc", "tp cannot be 'abc'"),
        ("--model dsv3 --seq 4096 --gpus 8 --fix dispacher=deepep", "did you mean 'dispatcher'?"),
        ("--model dsv3 --seq 4096 --gpus 8 --forbid deeepep", "did you mean 'deepep'?"),
        (
            "--model dsv3 --seq 4096 --gpus 8 --fix dispatcher=alltoall --forbid alltoall",
            "dispatcher has no value left",
        ),
        ("--model dsv3 --seq 4096 --gpus 8 --fix ep_overlap=true --forbid ep_overlap", "no value left"),
        ("--model llama3-8b --seq 4096 --gpus 2 --forbid tp=1 --forbid tp=2", "tp has no value left"),
        ("--model llama3-8b --seq 4096 --gpus 8 --forbid deepep", "no decision of this job can take"),
        ("--model dsv3 --seq 4096 --gpus 8 --set grad_dtyp=bf16", "did you mean 'grad_dtype'"),
        ("--model dsv3 --seq 4096 --gpus 8 --set grad_dtype=fp8", "grad_dtype is 'fp8', but it must be"),
        ("--model dsv3 --seq 4096 --gpus 8 --out /dev/null/plan", "cannot be written"),
        ("--modle dsv3", "No such option"),
        ("modles", "No such command"),
        ("rules no-such-rule", "There is no rule 'no-such-rule'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("mbsolve: ")
    assert shown.err.count("\n") == 1


def test_broken_card_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = tmp_path / "mine.yaml"
    card.write_text("name: mine\nnum_layers: {value: 6")
    assert main(["--model", str(card), "--seq", "4096", "--gpus", "8"]) == 2
    err = capsys.readouterr().err
    assert "not valid YAML at line" in err
    assert err.count("\n") == 1


def test_ctrl_c_prints_the_best_so_far(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "solve", raising(Interrupted(outcomes["feasible"])))
    assert main(ASK) == 130
    assert "FEASIBLE: the search stopped before the proof" in capsys.readouterr().out
    monkeypatch.setattr(api, "solve", raising(KeyboardInterrupt()))
    assert main(ASK) == 130
    assert capsys.readouterr().err == "mbsolve: stopped before a plan was found.\n"


def test_a_bug_says_what_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MBSOLVE_DEBUG", raising=False)
    monkeypatch.setattr(api, "solve", raising(RuntimeError("a plan failed its re-check")))
    assert main(ASK) == 70
    err = capsys.readouterr().err
    assert "RuntimeError: a plan failed its re-check" in err
    assert "please report" in err
    # A demand that is refused inside the solver is the user's error, any other ValueError is ours.
    monkeypatch.setattr(api, "solve", raising(DemandError("tp cannot be 3; allowed: 1, 2, 4")))
    assert main(ASK) == 2
    monkeypatch.setattr(api, "solve", raising(ValueError("x")))
    assert main(ASK) == 70


def test_out_holds_the_printed_report(
    answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("optimal")
    assert main([*ASK, "--out", str(tmp_path / "answer")]) == 0
    assert (tmp_path / "answer" / "report.txt").read_text() == capsys.readouterr().out
    assert json.loads((tmp_path / "answer" / "outcome.json").read_text())["status"] == "OPTIMAL"


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for command, word in (
        ("models", "dsv3"),
        ("hardware", "h100"),
        ("rules", "world-divisible-by-dense-grid"),
    ):
        assert main([command]) == 0
        assert word in capsys.readouterr().out
    assert main(["rules", "world-divisible-by-dense-grid"]) == 0
    assert "source: " in capsys.readouterr().out
