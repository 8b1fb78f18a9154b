"""No rule can be dropped or turned round without an example that notices."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_mutation_is_noticed() -> None:
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.mutations()
    assert len(table) > 100
    assert [m for m in table if not (m.dropped and m.negated)] == []
