"""The fit of the time model: its prices are the plain ones, it finds constants that rows were made with, it writes one line."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from mbsolve.constraints.evaluate import priced, step_parts
from mbsolve.constraints.time.catalogue import TIME_TERMS
from mbsolve.hardware.card import load_machine
from mbsolve.judge.passes import passes_seconds
from mbsolve.judge.rows import read_rows

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data"


@pytest.fixture(scope="module")
def fit() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("fit")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def runs(fit: ModuleType) -> list[Any]:
    plan = fit.read_plan()
    rows = [r for name in ("measured.jsonl", "probes.json") for r in read_rows(DATA / name)]
    found = [run for run in fit.runs_of(rows) if run.tier in plan.fitted]
    return found[::7]


def test_many_prices_at_once_are_the_plain_ones(fit: ModuleType, runs: list[Any]) -> None:
    """With a card's own constants a row costs what evaluating it costs; with others, what a changed card makes it cost."""
    for run in runs:
        own = run.job.machine.calibration
        names = [n for n in ("gemm_bf16_fraction", "host_op_seconds", "dp_exposed_fraction") if n in own]
        factors = np.array([1.0, 0.7, 1.3])
        many = run.predict({name: own[name] * factors for name in names})
        for factor, seconds in zip(factors, many, strict=True):
            calibration = own | {name: own[name] * factor for name in names}
            machine = run.job.machine.model_copy(update={"calibration": calibration})
            job = run.job.model_copy(update={"machine": machine})
            if run.stage is not None:
                plain = passes_seconds(job, run.plan, run.stage)
            else:
                plain = step_parts(priced(job, run.plan, TIME_TERMS))[0].seconds
            assert seconds == pytest.approx(plain, rel=1e-9), run.id


def test_it_finds_the_constants_that_rows_were_made_with(fit: ModuleType, runs: list[Any]) -> None:
    """Rows that are predictions under known constants are met, and constants that they tell apart are found."""
    plan = fit.read_plan()
    wanted = {"gemm_bf16_fraction": 0.61, "gemm_fp8_fraction": 0.58, "host_op_seconds": 6e-5}
    parameters = tuple(
        fit.Parameter(name, ("h100",), start, 0.5 * value, 2 * value, 10.0)
        for (name, value), start in zip(wanted.items(), (0.7, 0.7, 8e-5), strict=True)
    )
    small = dataclasses.replace(plan, parameters=parameters)
    mine = [run for run in runs if run.job.machine.name == "h100"]
    assert len({run.cell for run in mine}) >= 3
    truth = fit.Fit(small, mine, [])
    made = truth.predict(np.array([list(wanted.values())]))[:, 0]
    told = [dataclasses.replace(run, seconds=float(s)) for run, s in zip(mine, made, strict=True)]
    again = fit.Fit(small, told, [])
    found = again.run()
    assert np.abs(again.errors(told)).max() < 2e-3
    assert found == pytest.approx(list(wanted.values()), rel=0.02)
    assert not any(again.at_bound(k) for k in range(len(parameters)))


def test_a_bound_is_told(fit: ModuleType, runs: list[Any]) -> None:
    """A constant that rows push against its bound stands there, and is said to."""
    plan = fit.read_plan()
    parameter = fit.Parameter("gemm_bf16_fraction", ("h100",), 0.7, 0.68, 0.72, 10.0)
    mine = [dataclasses.replace(r, seconds=r.seconds * 3) for r in runs if r.job.machine.name == "h100"]
    one = fit.Fit(dataclasses.replace(plan, parameters=(parameter,)), mine, [])
    assert one.run()[0] == pytest.approx(0.68, rel=1e-3)
    assert one.at_bound(0)


def test_a_card_changes_in_its_line_alone(fit: ModuleType, tmp_path: Path) -> None:
    """Other lines stay byte for byte; a second writing changes nothing; a card without the line is refused."""
    card = tmp_path / "h100.yaml"
    before = (ROOT / "hardware" / "data" / "h100.yaml").read_text(encoding="utf-8")
    card.write_text(before, encoding="utf-8")
    values = {"graph_left": (0.4321, "a test")}
    assert fit.rewrite(card, values)
    after = card.read_text(encoding="utf-8").splitlines()
    changed = [new for old, new in zip(before.splitlines(), after, strict=True) if old != new]
    assert changed == ['  graph_left: {value: 0.4321, source: "a test"}']
    assert not fit.rewrite(card, values)
    with pytest.raises(ValueError, match="no line for nothing"):
        fit.rewrite(card, {"nothing": (1.0, "a test")})


def test_cards_have_what_was_fitted() -> None:
    """Every fitted constant stands in its cards as the last fit found it, within its bounds."""
    found = yaml.safe_load((DATA / "fitted.yaml").read_text(encoding="utf-8"))
    for one in found["constants"]:
        low, high = one["bounds"]
        assert low <= one["value"] <= high
        for name in one["of"]:
            machine = load_machine(name)
            if one["constant"] in machine.calibration:
                assert machine.calibration[one["constant"]] == one["value"], (name, one["constant"])
                assert "benchmarks/fit.py" in machine.sources[f"calibration.{one['constant']}"]
