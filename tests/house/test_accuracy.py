"""The accuracy page is what the command would write, and predictions do not get worse."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("accuracy.json")
SLACK = 0.0005


@pytest.fixture(scope="module")
def command() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "benchmarks"))


def test_accuracy(command: ModuleType) -> None:
    """One prediction of all rows serves all: it takes seconds."""
    found = command.predicted()
    text = command.PAGE.read_text(encoding="utf-8")
    assert command.page(found, text) == text, "run: python benchmarks/accuracy.py"
    assert command.bars(found) == command.BARS.read_text(encoding="utf-8")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert sum(r.evaluated for r in found.rows) >= kept["evaluated"]
    now = {g.name: g.errors for g in found.summary}
    assert set(kept["summary"]) <= set(now)
    for name, limits in kept["summary"].items():
        assert now[name].rows >= limits["rows"], name
        for figure in ("median", "mean"):
            assert getattr(now[name], figure) <= limits[figure] + SLACK, f"{name}: {figure}"
    by_class = {f"{g.name}, {command.QUANTITY_WORDS[g.quantity]}": g.errors for g in found.memory.counted}
    assert set(kept["memory"]) == set(by_class), (
        "a class is new or gone: python benchmarks/accuracy.py --loosen"
    )
    for name, limits in kept["memory"].items():
        assert by_class[name].rows >= limits["rows"], name
        for figure in ("mean", "largest"):
            assert getattr(by_class[name], figure) <= limits[figure] + SLACK, f"{name}: {figure}"
    times = command.timing_page.limits(found.time)
    assert set(kept["time"]) == set(times), "a figure is new or gone: python benchmarks/accuracy.py --loosen"
    for name, limits in kept["time"].items():
        for figure, limit in limits.items():
            if figure == "rows":
                assert times[name]["rows"] >= limit, name
            else:
                assert times[name][figure] <= limit + SLACK, f"{name}: {figure}"


def test_limits_are_only_tightened(command: ModuleType) -> None:
    """Keeping what was found by a run that was worse leaves the limits, and by one that was better moves them."""
    kept = {"rows": 10, "mean": 0.02, "largest": 0.1}
    assert command._tighter(kept, {"rows": 9, "mean": 0.03, "largest": 0.2}) == kept
    better = {"rows": 12, "mean": 0.01, "largest": 0.05}
    assert command._tighter(kept, better) == better == command._tighter({}, better)
