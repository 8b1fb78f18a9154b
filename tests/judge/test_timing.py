"""``validate --time``: the tables as they are printed, and what they count."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mbsolve.cli import main
from mbsolve.judge.accuracy import accuracy_text
from mbsolve.judge.pairs import PairResult
from mbsolve.judge.sizes import Sizes
from mbsolve.judge.statistics import validation
from mbsolve.judge.validation import Compared, RowResult

GOLDEN = Path(__file__).parent / "golden" / "timing.txt"


def row(id_: str, measured: float, predicted: float, **changes: Any) -> RowResult:
    """A row by hand: no change of the time model can move it."""
    sizes: dict[str, Any] = {
        "model": "llama3-8b",
        "gpus": 8,
        "seq_len": 8192,
        "gbs": 128,
        "step_flops": 5e16,
        "plan": {"tp": 1},
    }
    sizes |= changes.pop("sizes", {})
    fields: dict[str, Any] = {
        "id": id_,
        "tier": "A-published-table",
        "moe": False,
        "knobs_recorded": True,
        "hardware": "h100",
        "family": "dense",
        "precision": "bf16",
        "sizes": Sizes(**sizes),
        "evaluated": True,
        "measured": Compared(step_seconds=measured),
        "predicted": Compared(step_seconds=predicted),
        "time_error": predicted / measured - 1,
    }
    return RowResult(**(fields | changes))


ROWS = [
    row("a", 10.0, 10.5),
    row("b", 11.0, 10.4, sizes={"plan": {"tp": 2}}),
    row("c", 12.5, 12.6, sizes={"plan": {"tp": 4}}),
    row("d", 24.0, 25.0, sizes={"gbs": 256, "step_flops": 1e17}),
    row("e", 5.0, 6.0, precision="fp8_cs", hardware="b200"),
    row("f", 20.0, 18.0, family="MLA MoE", moe=True, sizes={"model": "dsv3", "gpus": 256}),
    row("g", 30.0, 24.0, family="MLA MoE", moe=True, sizes={"model": "dsv3", "gpus": 256, "seq_len": 4096}),
    row("unrecorded", 10.0, 30.0, knobs_recorded=False),
    row("guide", 10.0, 9.0, tier="A-guide", precision="fp8_cs"),
]
PAIRS = [
    PairResult(group="dense", factor="TP 1 -> 2", a="a", b="b", measured=1.1, predicted=0.99),
    PairResult(group="dense", factor="TP 1 -> 4", a="a", b="c", measured=1.25, predicted=1.2),
    PairResult(
        group="dense", factor="no knob of ours", a="a", b="c", measured=0.9, predicted=1.0, modelled=False
    ),
    PairResult(group="dense", factor="hardly any", a="a", b="c", measured=1.01, predicted=0.99),
    PairResult(
        group="offload",
        factor="0 -> 1",
        a="f",
        b="g",
        measured=1.5,
        predicted=1.3,
        assumed={"mbs": 1},
        why="of the recipe",
        batch="8 sequences of 4096, the model's default",
        added_seconds=(1.0, 0.8),
    ),
    PairResult(group="offload", factor="0 -> 0.5", a="f", b="h", reason="no card for the model X"),
]


def test_the_tables_read_as_before() -> None:
    text = accuracy_text(
        validation(ROWS, PAIRS, "anchored: x1.07 by run.yaml (3 rows of llama3-8b on h100)"), 100
    )
    if os.environ.get("MBSOLVE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_what_is_counted() -> None:
    """By hand: seven tuned recorded rows; four pairs are apart, three of them in what is modelled, two of these right."""
    found = validation(ROWS, PAIRS).time
    assert found.every[0].errors.rows == 7
    assert [(g.name, g.errors.rows) for g in found.by_hardware] == [("b200", 1), ("h100", 6)]
    assert [g.errors.rows for g in found.by_cell] == [2, 1, 4]
    assert found.pairs is not None and found.ranking is not None and found.anchoring is not None
    assert (found.pairs.apart, found.pairs.right) == (4, 2)
    assert (found.pairs.modelled_apart, found.pairs.modelled_right) == (3, 2)
    assert found.pairs.modelled_median_error == pytest.approx(0.1)
    assert [g.configurations for g in found.ranking.groups] == [4]
    assert found.anchoring.alone.rows == 6
    assert validation([]).time.ranking is None


PUBLISHED: dict[str, Any] = {
    "model": "Llama-3-8B",
    "hardware": "H100-SXM-80GB",
    "gpus": 8,
    "precision": "bf16",
    "seq_len": 8192,
    "gbs": 128,
    "mbs": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "framework": "megatron-bridge",
    "task": "pretrain",
    "outcome": "ok",
    "tier": "A-published-table",
    "knobs_recorded": True,
    "mem_allocated_gb": None,
    "step_time_ms": None,
    "extra": {},
}


def published(id_: str, **changes: Any) -> str:
    return json.dumps({**PUBLISHED, "id": id_, **changes})


def validate(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["validate", "--time", "--json", *argv]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def folder(path: Path, rows: list[str], pairs: str) -> str:
    (path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (path / "ab_pairs.yaml").write_text(pairs, encoding="utf-8")
    return str(path / "rows.jsonl")


def test_rows_that_record_too_little_for_a_time_are_compared_as_a_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without batch, length and step: the ratio of TFLOP/s, and no absolute time."""
    open_ = {"gbs": None, "seq_len": None, "mbs": None, "cp": None}
    rows = [
        published("a", tflops_per_gpu=400.0, **open_),
        published("b", tflops_per_gpu=320.0, tp=4, **open_),
    ]
    pairs = "groups: [{name: TP, assumed: {cp: 1, seq_len: 8192, mbs: 1}, pairs: [{a: a, b: b, factor: TP 1 -> 4}]}]"
    found = validate(capsys, folder(tmp_path, rows, pairs))
    assert not any(r["evaluated"] for r in found["rows"])
    (pair,) = found["time"]["pairs"]["pairs"]
    assert pair["measured"] == pytest.approx(1.25)
    assert pair["assumed"] == {"cp": 1, "seq_len": 8192, "mbs": 1}
    assert pair["batch"] == "512 sequences of 8192, the model's default"
    whole = [published(i, step_time_ms=t, tp=tp, gbs=512) for i, t, tp in (("a", 1e4, 1), ("b", 2e4, 4))]
    same = validate(capsys, folder(tmp_path, whole, pairs))
    predicted = [r["predicted"]["step_seconds"] for r in same["rows"]]
    assert pair["predicted"] == pytest.approx(predicted[1] / predicted[0])
    assert same["time"]["pairs"]["pairs"][0]["batch"] is None
    assert same["time"]["pairs"]["pairs"][0]["measured"] == pytest.approx(2.0)


@pytest.mark.parametrize("sequences", [8, 40, 128])
def test_a_batch_is_found_from_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sequences: int
) -> None:
    """TFLOP/s and the step say how many sequences there were; the step alone says it through the prediction."""
    pairs = "groups: [{name: TP, pairs: [{a: a, b: b, factor: TP 1 -> 2}]}]"
    known = validate(
        capsys,
        folder(
            tmp_path,
            [
                published("a", step_time_ms=1e3, gbs=sequences),
                published("b", step_time_ms=1e3, gbs=sequences, tp=2),
            ],
            pairs,
        ),
    )
    sizes, seconds = known["rows"][0]["sizes"], known["rows"][0]["predicted"]["step_seconds"]
    rate = sizes["step_flops"] / 8 / 20.0 / 1e12
    for more, why in (
        ({"step_time_ms": 20e3, "tflops_per_gpu": rate * 1.02}, "implied by"),
        ({"step_time_ms": seconds * 1e3}, "nearest to that of the first"),
    ):
        rows = [published("a", gbs=None, **more), published("b", gbs=None, tp=2, **more)]
        (pair,) = validate(capsys, folder(tmp_path, rows, pairs))["time"]["pairs"]["pairs"]
        assert pair["batch"].startswith(f"{sequences} sequences of 8192")
        assert why in pair["batch"]
        assert pair["predicted"] == pytest.approx(known["time"]["pairs"]["pairs"][0]["predicted"])


def test_a_pair_of_one_configuration_is_not_modelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        published("a", step_time_ms=10e3),
        published("b", step_time_ms=8e3),
        published("c", step_time_ms=9e3, tp=2),
    ]
    pairs = "groups: [{name: x, pairs: [{a: a, b: b, factor: f}, {a: b, b: c, factor: f}, {a: a, b: gone, factor: f}]}]"
    found = validate(capsys, folder(tmp_path, rows, pairs))["time"]["pairs"]
    assert [(p["modelled"], p["predicted"] == 1.0) for p in found["pairs"]] == [(False, True), (True, False)]
    assert (found["apart"], found["modelled_apart"]) == (2, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups: [{name: x, pairs: [{a: a, factor: f}]}]", "groups.0.pairs.0.b"),
        ("groups: 3", "groups is 3"),
        ("{", "not valid YAML"),
        (
            "groups: [{name: x, assumed: {dispatchr: deepep}, pairs: []}]",
            "rows have no such field; did you mean 'dispatcher'?",
        ),
    ],
)
def test_an_odd_file_of_pairs_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    rows = folder(tmp_path, [published("a", step_time_ms=1.0)], text)
    assert main(["validate", "--time", rows]) == 2
    assert said in capsys.readouterr().err
    assert main(["validate", "--memory", rows]) == 0
    assert main(["validate", rows, "--memory", "--pairs", str(tmp_path / "ab_pairs.yaml")]) == 2


RUN = """
model: llama3-8b
hardware: h100
gpus: 8
seq_len: 8192
gbs: 128
step_seconds: 15.0
"""


def test_an_anchor_scales_the_rows_of_its_cell_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(RUN, encoding="utf-8")
    pairs = "groups: [{name: x, pairs: [{a: a, b: c, factor: TP}]}]"
    rows = [
        published("a", step_time_ms=12e3),
        published("b", step_time_ms=8e3, hardware="B200"),
        published("c", step_time_ms=13e3, tp=2),
    ]
    path = folder(tmp_path, rows, pairs)
    plain, scaled = validate(capsys, path), validate(capsys, path, "--anchor", str(run))
    ratios = [
        after["predicted"]["step_seconds"] / before["predicted"]["step_seconds"]
        for before, after in zip(plain["rows"], scaled["rows"], strict=True)
    ]
    assert ratios[1] == 1.0
    assert ratios[0] == pytest.approx(ratios[2]) != pytest.approx(1.0)
    assert scaled["anchored"].endswith("(2 rows of llama3-8b on h100)")
    for before, after in zip(plain["rows"][0]["terms"], scaled["rows"][0]["terms"], strict=True):
        assert after["seconds"] == pytest.approx(before["seconds"] * ratios[0])
    ratio, same = (found["time"]["pairs"]["pairs"][0]["predicted"] for found in (plain, scaled))
    assert same == pytest.approx(ratio)
    run.write_text(RUN.replace("h100", "b300"), encoding="utf-8")
    assert main(["validate", "--time", path, "--anchor", str(run)]) == 2
    assert "but no timed row is of both" in capsys.readouterr().err
    assert main(["validate", "--memory", path, "--anchor", str(run)]) == 2
