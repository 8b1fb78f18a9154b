"""Some full shapes of a pool, with everything known of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.solver.bounds import Bounder
from mbsolve.solver.columns import Columns, Ints
from mbsolve.solver.goal import Key, least
from mbsolve.solver.rows import Rows, padded
from mbsolve.solver.tables import Floats, TermTable


@dataclass
class Chunk:
    """Some full shapes with everything known of them; bounds in the unit of the objective (seconds or bytes).

    Parameters
    ----------
    base : a bounder of the shapes that knows no moments.
    aimed : the target that a bound was last tightened towards, minus infinity where it never was.
    moments : filled in at the first tightening.
    keys : of shapes that were searched exactly, what the shape decides of a key, and a bound for the rest of it.
    """

    base: Bounder
    bound: Floats
    aimed: Floats
    moments: list[Ints | None]
    keys: dict[int, tuple[Key, dict[Key, float]]] = field(default_factory=dict)

    @property
    def shapes(self) -> Columns:
        """The shapes."""
        return self.base.shapes

    def bounder(self, index: Ints, moments: Ints | None = None) -> Bounder:
        """A bounder of some of the shapes with the moments that are known of them, or with others."""
        rows = self._rows(index) if moments is None else replace(self.base.rows.take(index), moments=moments)
        return self.base.moved(index, self.shapes.take(index), rows)

    def take(self, index: Ints) -> tuple[Columns, Rows, list[TermTable]]:
        """Inputs of a master model over some of the shapes."""
        tables = [replace(t, classes=t.classes[index]) for t in self.base.tables]
        return self.shapes.take(index), self._rows(index), tables

    def bounds(self, excluded: Collection[Key]) -> Floats:
        """A bound of each shape over the plans whose key is none of ``excluded``."""
        out = self.bound
        if excluded and self.keys:
            out = out.copy()
            for i, (shape, bounds) in self.keys.items():
                out[i] = max(out[i], least(bounds, shape, excluded))
        return out

    def _rows(self, index: Ints) -> Rows:
        none = np.zeros((0, len(COLUMN)), np.int64)
        found = [none if m is None else m for m in (self.moments[int(i)] for i in index)]
        return replace(self.base.rows.take(index), moments=padded(found))
