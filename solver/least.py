"""Term tables of grids, at the least over what is decided after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import RESERVED, Term
from mbsolve.solver.columns import Columns, Ints, distinct
from mbsolve.solver.profiles import whole_model
from mbsolve.solver.step_model import kinds_of, least_values, limits_of
from mbsolve.solver.tables import Bools, Features, TermTable, term_tables

Pair = tuple[bool, str]


class GridTables:
    """Term tables of grids for every overlap and graph implementation.

    Terms that name the pipeline's split are left out, since a grid has many splits.

    Parameters
    ----------
    features, grids, terms : domains, grids with their derived sizes, and all terms.
    pairs : the overlaps and graph implementations to tabulate.
    """

    def __init__(
        self, features: Features, grids: Columns, terms: Sequence[Term], pairs: Iterable[Pair]
    ) -> None:
        self.features, self.pairs = features, sorted(pairs)
        usable = [t for t in terms if not {"vpp", "split"} & set(t.scope)]
        every = Columns(
            {
                **grids.values,
                "ep_overlap": [overlap for overlap, _ in self.pairs],
                "cuda_graph_impl": [impl for _, impl in self.pairs],
            },
            {k: np.repeat(v, len(self.pairs)) for k, v in grids.codes.items()}
            | dict.fromkeys(
                ("ep_overlap", "cuda_graph_impl"), np.tile(np.arange(len(self.pairs)), grids.rows)
            ),
            grids.rows * len(self.pairs),
        )
        self.tables = term_tables(features, every, usable)
        self.rest = [t for t in terms if t not in usable]

    def take(self, index: Ints) -> None:
        """Keep some of the grids."""
        self.tables = [
            replace(t, classes=t.classes.reshape(-1, len(self.pairs))[index].ravel()) for t in self.tables
        ]

    def least(self, pairs: Iterable[Pair]) -> list[TermTable]:
        """The tables of the grids at the least over some pairs, entry by entry."""
        some = [self.pairs.index(pair) for pair in sorted(pairs)]
        out = []
        for t in self.tables:
            classes = t.classes.reshape(-1, len(self.pairs))[:, some]
            # A class is a combination of a term's own decisions: under one pair it tells those of the grid.
            first, inverse = distinct(classes[:, 0], len(t.values))
            values = t.values[classes[first]].min(axis=1)
            out.append(TermTable(t.term, t.features, t.tuples, values, inverse))
        return out

    def of(self, shapes: Columns, grid: Ints) -> list[TermTable]:
        """The tables of some full shapes, whose grids are ``grid``."""
        code = {pair: i for i, pair in enumerate(self.pairs)}
        found = np.array(
            [
                [code.get((o, c), -1) for c in shapes.values["cuda_graph_impl"]]
                for o in shapes.values["ep_overlap"]
            ]
        )
        pair = found[shapes.codes["ep_overlap"], shapes.codes["cuda_graph_impl"]]
        index = grid * len(self.pairs) + pair
        mine = [replace(t, classes=t.classes[index]) for t in self.tables]
        return [*mine, *term_tables(self.features, shapes, self.rest)]


def too_large(job: Job, grids: Columns, tables: Sequence[TermTable]) -> Bools:
    """Grids whose mean rank is too large for a device with what the layers bring to it alone."""
    whole = whole_model(job.model)
    kinds = kinds_of([t.term for t in tables])
    least = least_values(tables, kinds, grids.rows)
    static = np.zeros(grids.rows)
    for (row, per), kind in kinds.items():
        if row in RESERVED and per in ("attention", "gdn", "mamba", "dense", "moe"):
            static += least[:, kind] * whole[per]
    limit = limits_of(job, tables, grids.rows).device
    return np.asarray(static / grids.array("pp") > limit)
