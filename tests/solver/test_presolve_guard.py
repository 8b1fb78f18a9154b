"""One model on which OR-Tools 9.15 was seen to call a wrong answer optimal."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format  # type: ignore[import-untyped]
from ortools.sat.python import cp_model

from mbsolve.solver.cpsat import OPTIMAL, run

MODEL = Path(__file__).parent / "data" / "presolve_guard.pbtxt"


def test_true_optimum_is_found() -> None:
    """9.15 with its default presolve says 4738176275; a better solution exists."""
    model = cp_model.CpModel()
    text = MODEL.read_text()
    parse = getattr(model.proto, "parse_text_format", None)  # from 9.15 on
    if parse is not None:
        parse(text)
    else:
        text_format.Parse(text, model.Proto())
    done = run(model, workers=1, seconds=None)
    assert done.status == OPTIMAL
    assert int(done.solver.objective_value) == 4726058049
