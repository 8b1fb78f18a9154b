"""Some full shapes of a pool, with everything known of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mbsolve.constraints.moments import COLUMN
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.rows import Rows
from mbsolve.solver.tables import Floats, TermTable


@dataclass
class Chunk:
    """Some full shapes with everything known of them; bounds in the unit of the objective (seconds or bytes).

    ``aimed`` is the target that a bound was last tightened towards, minus infinity where it never was;
    ``moments`` are filled in at the first tightening.
    """

    shapes: Columns
    stages: Ints
    ranks: Ints
    tables: list[TermTable]
    least: Floats
    bound: Floats
    aimed: Floats
    estimate: Floats
    guess: list[dict[str, Any] | None]
    moments: list[Ints | None]

    def take(self, index: Ints) -> tuple[Columns, Rows, list[TermTable]]:
        """Inputs of a bounder or a master model over some of the shapes."""
        tables = [replace(t, classes=t.classes[index]) for t in self.tables]
        return (
            self.shapes.take(index),
            Rows(self.stages[index], self.ranks[index], self._moments(index)),
            tables,
        )

    def _moments(self, index: Ints) -> Ints:
        found = [self.moments[int(i)] for i in index]
        height = max((len(f) for f in found if f is not None), default=0) or 1
        out = np.zeros((len(index), height, len(COLUMN)), np.int64)
        for i, rows in enumerate(found):
            if rows is not None:
                out[i, : len(rows)] = rows
        return out
