"""Some full shapes of a pool, with everything known of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from mbsolve.constraints.moments import COLUMN
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.goal import Key, least
from mbsolve.solver.rows import Rows
from mbsolve.solver.tables import Floats, TermTable


@dataclass
class Chunk:
    """Some full shapes with everything known of them; bounds in the unit of the objective (seconds or bytes).

    Parameters
    ----------
    least : the least value of every kind.
    aimed : the target that a bound was last tightened towards, minus infinity where it never was.
    moments : filled in at the first tightening.
    keys : of shapes that were searched exactly, what the shape decides of a key, and a bound for the rest of it.
    """

    shapes: Columns
    stages: Ints
    ranks: Ints
    tables: list[TermTable]
    least: Floats
    bound: Floats
    aimed: Floats
    moments: list[Ints | None]
    keys: dict[int, tuple[Key, dict[Key, float]]] = field(default_factory=dict)

    def take(self, index: Ints) -> tuple[Columns, Rows, list[TermTable]]:
        """Inputs of a bounder or a master model over some of the shapes."""
        return (
            self.shapes.take(index),
            Rows(self.stages[index], self.ranks[index], self._moments(index)),
            self.tables_of(index),
        )

    def tables_of(self, index: Ints) -> list[TermTable]:
        """The term tables of some of the shapes."""
        return [replace(t, classes=t.classes[index]) for t in self.tables]

    def bounds(self, excluded: Collection[Key]) -> Floats:
        """A bound of each shape over the plans whose key is none of ``excluded``."""
        out = self.bound
        if excluded and self.keys:
            out = out.copy()
            for i, (shape, bounds) in self.keys.items():
                out[i] = max(out[i], least(bounds, shape, excluded))
        return out

    def _moments(self, index: Ints) -> Ints:
        found = [self.moments[int(i)] for i in index]
        height = max((len(f) for f in found if f is not None), default=0) or 1
        out = np.zeros((len(index), height, len(COLUMN)), np.int64)
        for i, rows in enumerate(found):
            if rows is not None:
                out[i, : len(rows)] = rows
        return out
