"""``validate --memory``: the table by class, and the error bars taken from its rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.cli import main
from mbsolve.constraints.memory_classes import CLASSES
from mbsolve.judge.memory_table import bars_of, deciding_error, memory_table
from mbsolve.judge.memory_text import memory_text
from mbsolve.judge.statistics import validation
from mbsolve.judge.validation import RowResult, read_rows, validate_row

GOLDEN = Path(__file__).parent / "golden" / "memory_table.txt"
GIB = 2**30
NAMES = [one.name for one in CLASSES]


def row(name: str, error: float, **changes: Any) -> RowResult:
    """A row by hand: no change of the memory model can move it."""
    seen = {"step_seconds": None, "between_bytes": 20 * GIB, "peak_bytes": 40 * GIB}
    fields: dict[str, Any] = {
        "id": f"{name} {error:+}",
        "tier": "probe",
        "knobs_recorded": True,
        "hardware": "h200",
        "precision": "bf16",
        "evaluated": True,
        "measured": seen,
        "predicted": seen | {"peak_bytes": 40 * GIB * (1 + error)},
        "between_error": 0.0,
        "peak_error": error,
        "memory_class": name,
    }
    return RowResult.model_validate(fields | changes)


ROWS = [
    row("dense BF16", 0.01),
    row("dense BF16", -0.03),
    row(
        "TE graphs",
        0.25,
        reserved_error=-0.2,
        reserved={"measured_bytes": 50 * GIB, "predicted_bytes": 40 * GIB},
    ),
    row("dense BF16", 0.5, knobs_recorded=False),
    row("MXFP8", 0.4, tier="C-ci-small", between_error=None),
    row("NVFP4", 0.0, evaluated=False, reason="LoRA is not modelled", memory_class=None),
]


def test_the_table_reads_as_before() -> None:
    text = memory_text(validation(ROWS), 100)
    if os.environ.get("MBSOLVE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_bars_are_what_rows_say() -> None:
    narrow, wide = bars_of(ROWS)
    assert narrow["dense BF16"][1:] == (0.03, round(1 / 0.97 - 1, 4), 2)
    assert narrow["TE graphs"][1:] == (0.2, 0.25, 1)
    assert narrow["MXFP8"].rows == 0 and wide["short formats"].rows == 0
    assert wide["all"].rows == 3 and wide["CUDA graphs"] == ("CUDA graphs", *narrow["TE graphs"][1:])


ERRORS = st.lists(st.tuples(st.sampled_from(NAMES), st.floats(-0.5, 2), st.booleans()), max_size=30)


@given(ERRORS)
def test_nine_in_ten_rows_are_within_their_bar(found: list[tuple[str, float, bool]]) -> None:
    rows = [row(name, error, knobs_recorded=counted) for name, error, counted in found]
    narrow, wide = bars_of(rows)
    for name in NAMES:
        errors = [e for n, e, counted in found if n == name and counted]
        assert narrow[name].rows == len(errors)
        for bound, sizes in (
            (narrow[name].error, [abs(e) for e in errors]),
            (narrow[name].short, [max(0, 1 / (1 + e) - 1) for e in errors]),
        ):
            assert sum(size <= bound + 1e-4 for size in sizes) >= 0.9 * len(errors)
    assert wide["all"].rows == sum(bar.rows for bar in narrow.values())


def test_a_probe_has_its_class_and_its_reserved_bytes(tmp_path: Path) -> None:
    raw = json.loads((Path(__file__).parents[2] / "benchmarks/data/probes.json").read_text(encoding="utf-8"))
    file = tmp_path / "one.json"
    file.write_text(json.dumps([r for r in raw if r["id"] in ("l8.8L.fp8cs", "l8.8L.cpuoff4")]))
    found = [validate_row(one) for one in read_rows(file)]
    assert [one.memory_class for one in found] == ["activation offload", "FP8 tensorwise"]
    for one in found:
        assert one.reserved is not None and one.reserved_error is not None
        assert one.reserved_error == one.reserved.predicted_bytes / one.reserved.measured_bytes - 1
        assert one.reserved.measured_bytes > (one.measured.peak_bytes or 0)
        assert deciding_error(one) == one.peak_error


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parents[2] / "benchmarks/data/probes.json")
    assert main(["validate", "--memory", path]) == 0
    text = capsys.readouterr().out
    assert "FP8 tensorwise" in text and "peak reserved" in text and "No such row of:" in text
    assert main(["validate", "--memory", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)["memory"]
    groups = {(one["name"], one["quantity"]): one["errors"] for one in found["counted"]}
    assert groups["FP8 tensorwise", "peak"]["rows"] == 1 and "MXFP8" in found["never"]
    rows = [validate_row(one, time=False) for one in read_rows(path)]
    assert sum(e["rows"] for (_, q), e in groups.items() if q == "peak") == len(rows) == 33


def test_rows_without_memory_give_no_table() -> None:
    table = memory_table([row("dense BF16", 0.0, memory_class=None)])
    assert not table.counted and not table.others and table.never == tuple(NAMES)
