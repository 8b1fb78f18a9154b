"""The examples run as they stand; those that take long only when ``MBSOLVE_SLOW`` is set."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# What each must say; an example that is not listed here fails the test.
SAYS = {
    "cpu_offload": "of the optimizer offloaded",
    "cuda_graphs": "cg-moe-xor-router",
    "from_a_scheduler": "Cheapest: ",
    "long_context": "131072 tokens, CP 32",
    "one_plan": "OPTIMAL",
    "why_not": "hbm-capacity",
}
SLOW = {"cpu_offload", "from_a_scheduler", "long_context"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.stem in SLOW and not os.environ.get("MBSOLVE_SLOW"):
        pytest.skip("slow; MBSOLVE_SLOW=1 runs it")
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert capsys.readouterr().out == "", "an import must do nothing"
    module.main()
    shown = capsys.readouterr().out
    assert SAYS[path.stem] in shown
    assert "nan" not in shown


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_how_it_is_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert f"python examples/{path.name}" in text.splitlines()[0]


def test_no_example_is_missing() -> None:
    assert {path.stem for path in EXAMPLES} == set(SAYS)
