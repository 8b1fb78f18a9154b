"""The shapes of a job: every legal value of the decisions that fix how many of everything there is.

Built by a progressive join: a decision is crossed in, and every rule whose scope is complete filters at once.
A shape is found in three levels, so that the next is only expanded where the last is promising: the grids and
micro-batch, the layout (interleaving and split), the modes (full recompute, layer offload, overlap, graphs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mbsolve.constraints.demands import Demands
from mbsolve.constraints.job import Job, derive
from mbsolve.constraints.placement import PlacementError, virtual_stages
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.splits import splits
from mbsolve.constraints.vocabulary import DERIVED, SHAPE, Split
from mbsolve.solver.columns import (
    NEEDS,
    Columns,
    Ints,
    cross,
    distinct,
    holds,
    keep_legal,
    scope_rows,
    values_at,
)

__all__ = [
    "GRID",
    "LAYOUT",
    "MODES",
    "NEEDS",
    "Columns",
    "Ints",
    "Shapes",
    "distinct",
    "keep_legal",
    "scope_rows",
    "shape_rules",
    "values_at",
]

GRID = SHAPE[: SHAPE.index("vpp")]
LAYOUT = SHAPE[: SHAPE.index("split") + 1]
MODES = SHAPE[SHAPE.index("split") + 1 :]


def _ready(rules: Iterable[Rule], done: set[str], before: set[str]) -> list[Rule]:
    """Rules whose scope has just become complete."""
    out = []
    for rule in rules:
        needs = {n for name in rule.scope for n in NEEDS.get(name, (name,))}
        if needs and needs <= done and not needs <= before:
            out.append(rule)
    return out


class Shapes:
    """The layouts of a job, and their expansion to full shapes.

    Parameters
    ----------
    job, demands : what is asked.
    rules : hard rules whose scope lies inside the shape decisions; the rest is the encoder's.
    possible : whether the features can complete some values of the mode decisions.
    """

    def __init__(
        self,
        job: Job,
        demands: Demands,
        rules: Sequence[Rule],
        possible: Callable[[Mapping[str, Any]], bool] = lambda values: True,
    ) -> None:
        self.job, self.demands, self.possible = job, demands, possible
        self.rules = list(rules)
        self.removed: dict[str, int] = {}
        self._values: dict[str, list[Any]] = {}
        self._choices: dict[int, list[tuple[int, int]]] | None = None
        self._known: list[Split] = []
        # What `profiles.profiles` found of the pipelines of these shapes.
        self.profiles: dict[Any, Any] = {}
        self._running: list[Rule] | None = None
        self._modes: dict[tuple[int, bool], list[tuple[Any, ...]]] = {}
        self.grids = self._grids()

    def _allowed(self, name: str) -> list[Any]:
        """Values of one decision that its single-decision rules allow."""
        if name in self._values:
            return self._values[name]
        out = self._values[name] = []
        for value in self.demands.domains[name]:
            bad = [
                r.id for r in self.rules if set(r.scope) == {name} and not holds(r, self.job, {name: value})
            ]
            if bad:
                self.removed[bad[0]] = self.removed.get(bad[0], 0) + 1
            else:
                out.append(value)
        return out

    def _grids(self) -> Columns:
        columns = Columns({}, {}, 1)
        done: set[str] = set()
        for name in GRID:
            columns = cross(columns, name, self._allowed(name))
            columns = self._filter(columns, done, name)
        for name, wanted in self.demands.derived.items():
            sizes = derive(self.job, {n: columns.array(n) for n in GRID[:-1]})
            columns = columns.take(np.broadcast_to(sizes[name], (columns.rows,)) == wanted)
        return columns

    def layouts(self, index: Ints) -> Columns:
        """The legal layouts of some grids, with the column ``grid`` (row in `grids`)."""
        grids = self.grids.take(index)
        grids = Columns(
            {**grids.values, "grid": list(range(self.grids.rows))},
            {**grids.codes, "grid": np.asarray(index, np.int64)},
            grids.rows,
        )
        columns = self._pipelines(grids)
        return keep_legal(self.job, columns, _ready(self.rules, set(LAYOUT), set(GRID)), self.removed)

    def _filter(self, columns: Columns, done: set[str], name: str) -> Columns:
        before = set(done)
        done.add(name)
        rules = [r for r in _ready(self.rules, done, before) if set(r.scope) != {name}]
        return keep_legal(self.job, columns, rules, self.removed)

    def _pipelines(self, columns: Columns) -> Columns:
        """Cross in the interleaving and the split, which depend on the number of pipeline stages."""
        pps = columns.array("pp")
        choices = self._known_pipelines()
        pairs = [choices[int(p)] for p in pps]
        index = np.repeat(np.arange(columns.rows), [len(p) for p in pairs]).astype(np.int64)
        flat = np.array([pair for mine in pairs for pair in mine], np.int64).reshape(-1, 2)
        out = columns.take(index)
        out.values = {**out.values, "vpp": self._allowed("vpp"), "split": self._known}
        out.codes |= {"vpp": flat[:, 0], "split": flat[:, 1]}
        return out

    def _known_pipelines(self) -> dict[int, list[tuple[int, int]]]:
        """For each number of stages: codes of the interleavings and splits to try."""
        if self._choices is None:
            known: dict[Split, int] = {}
            vpps = self._allowed("vpp")
            self._choices = {
                pp: [
                    (vpps.index(vpp), known.setdefault(s, len(known)))
                    for vpp in vpps
                    if vpp == 1 or pp * vpp <= self.job.model.num_layers + 2
                    for s in self._splits(pp, vpp)
                ]
                for pp in sorted({int(p) for p in self.grids.array("pp")})
            }
            self._known = list(known)
        return self._choices

    def pipelines(self, pp: int) -> list[tuple[int, Split]]:
        """The interleavings and splits to try for a number of stages."""
        vpps = self._allowed("vpp")
        return [(vpps[v], self._known[s]) for v, s in self._known_pipelines()[pp]]

    def runs(self, at: Mapping[str, Any]) -> bool:
        """Whether the rules of pipelines allow some stages, split, micro-batches and overlap (or either)."""
        if self._running is None:
            known = {"pp", "vpp", "split", "microbatches", "ep_overlap"}
            self._running = [r for r in self.rules if "vpp" in r.scope and set(r.scope) <= known]
        return all(holds(r, self.job, at) for r in self._running if set(r.scope) <= set(at))

    def deepest(self, pp: int) -> int:
        """Most virtual stages of a rank among `pipelines`."""
        return max((vpp for vpp, _ in self.pipelines(pp)), default=1) if pp in self._known_pipelines() else 1

    def _splits(self, pp: int, vpp: int) -> list[Split]:
        found = list(self.demands.splits(self.job.model.num_layers) or splits(self.job.model, pp, vpp))
        if self.demands.no_layout:
            found = [s for s in found if s.layout is None]
        out = []
        for split in found:
            try:
                virtual_stages(self.job.model, pp, vpp, split)
            except PlacementError:
                continue
            out.append(split)
        return out

    def expand(
        self, layouts: Columns, wanted: Callable[[tuple[Any, ...]], bool] = lambda mode: True
    ) -> Columns:
        """Full shapes of some layouts in the modes that are wanted, with derived sizes."""
        depth = self.depths(layouts)
        modes = self.modes(int(depth.max(initial=0)), bool((layouts.array("pp") == 1).any()))
        modes = [m for m in modes if wanted(m)]
        n = len(modes)
        codes = {k: np.repeat(v, n) for k, v in layouts.codes.items()}
        values = dict(layouts.values)
        for j, name in enumerate(MODES):
            values[name] = sorted({m[j] for m in modes}, key=str) if modes else []
            code = np.array([values[name].index(m[j]) for m in modes], np.int64)
            codes[name] = np.tile(code, layouts.rows)
        out = Columns(values, codes, layouts.rows * n)
        layers = out.array("recompute_num_layers") if n else np.zeros(0)
        method = out.array("recompute_method") if n else np.zeros(0)
        offload = out.array("activation_offload_layers") if n else np.zeros(0)
        deep = np.repeat(depth, n)
        keep = ((method != "block") | (layers < deep)) & (
            (offload == 0) | (np.repeat(layouts.array("pp"), n) == 1)
        )
        fixed_block = self.demands.domains["recompute_num_layers"]
        if len(fixed_block) == 1:
            keep |= (method == "block") & (layers <= deep)
        out = out.take(keep)
        rules = _ready(self.rules, set(SHAPE), set(LAYOUT))
        return keep_legal(self.job, out, rules, self.removed).with_derived(self.job)

    def depths(self, layouts: Columns) -> Ints:
        """Most layers on one virtual stage, for each layout."""
        first, inverse = layouts.classes(("pp", "vpp", "split"))
        out = []
        for r in first:
            row = {n: layouts.values[n][int(layouts.codes[n][r])] for n in ("pp", "vpp", "split")}
            stages = virtual_stages(self.job.model, row["pp"], row["vpp"], row["split"])
            out.append(max(sum(i.kind is not None for i in s) for s in stages))
        return np.array(out, np.int64)[inverse] if len(out) else np.zeros(0, np.int64)

    def modes(self, depth: int, single: bool) -> list[tuple[Any, ...]]:
        """Combinations of the mode decisions that could be legal for some layout."""
        if (depth, single) not in self._modes:
            self._modes[depth, single] = self._all_modes(depth, single)
        return self._modes[depth, single]

    def _all_modes(self, depth: int, single: bool) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = []
        numbers = self.demands.domains["recompute_num_layers"]
        for method in self._allowed("recompute_method"):
            if method == "none":
                # A number that is asked for stays, though without a method it means nothing.
                layers = [n for n in numbers if n == 0 or len(numbers) == 1]
            elif method == "uniform":
                layers = [n for n in numbers if n >= 1][:1]
            else:
                layers = [n for n in numbers if 1 <= n <= max(depth, 1)]
            for n in layers:
                for offload in self._allowed("activation_offload_layers"):
                    if offload and not (single and method == "none"):
                        continue
                    for overlap in self._allowed("ep_overlap"):
                        for impl in self._allowed("cuda_graph_impl"):
                            out.append((method, n, offload, overlap, impl))
        rules = [r for r in self.rules if set(r.scope) <= set(MODES) and len(r.scope) > 1]
        named: list[dict[str, Any]] = [dict(zip(MODES, m, strict=True)) for m in out]
        return [
            m
            for m, at in zip(out, named, strict=True)
            if all(holds(r, self.job, at) for r in rules) and self.possible(at)
        ]


def shape_rules(rules: Iterable[Rule]) -> tuple[list[Rule], list[Rule]]:
    """Split rules into those over shape decisions alone, and those that name a feature."""
    shape = set(SHAPE) | set(DERIVED)
    inside = [r for r in rules if set(r.scope) <= shape]
    return inside, [r for r in rules if not set(r.scope) <= shape]
