"""Term tables of grids, at the least over what is decided after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mbsolve.constraints.rule import Term
from mbsolve.solver.columns import Columns
from mbsolve.solver.tables import Features, TermTable, raw_tables, tidy


class GridTables:
    """Term tables of grids for every overlap and graph implementation; terms that name the split are left out.

    Parameters
    ----------
    features, grids, terms : domains, grids with their derived sizes, and all terms.
    pairs : the overlaps and graph implementations to tabulate.
    """

    def __init__(
        self,
        features: Features,
        grids: Columns,
        terms: Sequence[Term],
        pairs: Iterable[tuple[bool, str]],
    ) -> None:
        # A grid has many splits.
        usable = [t for t in terms if not {"vpp", "split"} & set(t.scope)]
        zeros = np.zeros(grids.rows, np.int64)
        self.raw = {}
        for overlap, impl in sorted(pairs):
            one = Columns(
                {**grids.values, "ep_overlap": [overlap], "cuda_graph_impl": [impl]},
                {**grids.codes, "ep_overlap": zeros, "cuda_graph_impl": zeros},
                grids.rows,
            )
            self.raw[overlap, impl] = raw_tables(features, one, usable)
        some = {id(t.term) for found in self.raw.values() for t in found if t.values.any()}
        used = {id(t) for t in usable}
        # The terms that are not always nothing.
        self.terms = [t for t in terms if id(t) in some or id(t) not in used]

    def least(self, pairs: Iterable[tuple[bool, str]]) -> list[TermTable]:
        """The tables at the least over some pairs, entry by entry."""
        best: list[TermTable] = []
        for pair in sorted(pairs):
            found = self.raw[pair]
            best = [b.least(f) for b, f in zip(best, found, strict=True)] if best else found
        return tidy(best)
