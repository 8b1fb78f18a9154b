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
