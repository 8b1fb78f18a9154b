"""Fit the constants of the time model to measured rows, and write them into the machine cards.

Run: ``python benchmarks/fit.py`` fits, prints what changed and how well rows are met, predicts each cell (model, machine)
from the others, and rewrites the fitted lines of ``hardware/data/*.yaml``; ``--dry-run`` writes nothing, ``--quick`` leaves
the folds out and writes nothing. What is fitted, from where to where, and on which rows, stands in ``benchmarks/data/fit.yaml``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from fit_rows import Floats, Run, pairs_among, runs_of
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from mbsolve.hardware.card import CALIBRATION, load_machine, machine_names
from mbsolve.judge.rows import read_rows

ROOT: Final = Path(__file__).parents[1]
DATA: Final = ROOT / "benchmarks" / "data"
CARDS: Final = ROOT / "hardware" / "data"
FILES: Final = ("measured.jsonl", "probes.json", "probes_time.json")
STEP: Final = 1e-3
"""Relative change of a constant from which its slope is taken."""


@dataclass(frozen=True)
class Parameter:
    """One fitted number.

    Parameters
    ----------
    constant : its name in the cards.
    machines : the cards that have it in common.
    start : value before any row is seen; the fit is held to it by ``spread``, a standard deviation of its logarithm.
    low, high : bounds that physics sets.
    """

    constant: str
    machines: tuple[str, ...]
    start: float
    low: float
    high: float
    spread: float

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.constant} ({', '.join(self.machines[:3])}{', ...' if len(self.machines) > 3 else ''})"


@dataclass(frozen=True)
class Plan:
    """What `fit.yaml` says.

    Parameters
    ----------
    parameters : what is fitted.
    fitted, judged : tiers of the rows that are fitted, and of those that errors are shown of.
    faulty : beginnings of ids of rows that measured a fault of the software.
    host_bound : beginnings of ids of rows that say nothing of the device.
    noise, tail : spread of a good row's logarithmic error, and the error from which a row counts less.
    pair_weight : weight of a one-knob ratio, relative to a row.
    folds : into how many parts cells are dealt.
    """

    parameters: tuple[Parameter, ...]
    fitted: tuple[str, ...]
    judged: tuple[str, ...]
    faulty: tuple[str, ...]
    host_bound: tuple[str, ...]
    noise: float
    tail: float
    pair_weight: float
    folds: int


def read_plan(path: Path = DATA / "fit.yaml") -> Plan:
    """Read what is to be fitted."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    sets = raw.pop("machines")
    spread = raw.pop("spread")
    parameters = []
    for one in raw.pop("parameters"):
        names = [name for key in one.pop("of") for name in sets.get(key, [key])]
        parameters.append(Parameter(machines=tuple(names), **{"spread": spread, **one}))
    unknown = [p.constant for p in parameters if p.constant not in CALIBRATION]
    if unknown:
        raise ValueError(f"{path.name} fits {unknown[0]}, which is no constant of the time model.")
    return Plan(tuple(parameters), **{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()})


class Fit:
    """Least squares of logarithmic errors of rows and one-knob ratios, with a pull to where each constant starts."""

    def __init__(self, plan: Plan, runs: Sequence[Run], pairs: Iterable[tuple[str, str]]) -> None:
        self.plan, self.runs = plan, list(runs)
        self.pairs = pairs_among(self.runs, pairs)
        self.start = np.array([p.start for p in plan.parameters])
        self.values = self.start
        self.errors_of_values: Floats = np.full(len(self.start), np.nan)

    def predict(self, values: Floats, runs: Sequence[Run] | None = None) -> Floats:
        """(runs, rows of values) seconds; ``values`` is (rows, parameters)."""
        runs = self.runs if runs is None else runs
        out = np.empty((len(runs), len(values)))
        for i, run in enumerate(runs):
            mine = [
                k
                for k, p in enumerate(self.plan.parameters)
                if run.job.machine.name in p.machines and p.constant in run.job.machine.calibration
            ]
            unique, back = np.unique(values[:, mine], axis=0, return_inverse=True)
            constants = {self.plan.parameters[k].constant: unique[:, j] for j, k in enumerate(mine)}
            out[i] = run.predict(constants)[back.ravel()]
        return out

    def _residuals(self, values: Floats) -> Floats:
        logs = np.log(self.predict(values))
        rows = logs - np.log([run.seconds for run in self.runs])[:, None]
        ratios = [self.plan.pair_weight * (logs[b] - logs[a] - np.log(k)) for a, b, k in self.pairs]
        spreads = np.array([p.spread for p in self.plan.parameters])
        pull = self.plan.noise * (np.log(values / self.start) / spreads).T
        return np.concatenate([rows, *([np.array(ratios)] if ratios else []), pull])

    def run(self, most: int = 15) -> Floats:
        """The fitted values, in the order of the parameters."""

        def residuals(logs: Floats) -> Floats:
            column: Floats = self._residuals(np.exp(logs)[None, :])[:, 0]
            return column

        def slopes(logs: Floats) -> Floats:
            found = self._residuals(np.exp(np.vstack([logs, logs + STEP * np.eye(len(logs))])))
            return np.asarray((found[:, 1:] - found[:, :1]) / STEP)

        low, high = (np.log([getattr(p, side) for p in self.plan.parameters]) for side in ("low", "high"))
        inside = np.clip(np.log(self.start), low + 1e-9, high - 1e-9)
        found = least_squares(
            residuals,
            inside,
            slopes,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=self.plan.tail,
            max_nfev=most,
        )
        self.values = np.exp(found.x)
        steep = slopes(found.x)
        free = max(1, len(self.runs) - len(self.values))
        noise = float(np.sum(residuals(found.x)[: len(self.runs)] ** 2)) / free
        self.errors_of_values = np.sqrt(np.diag(np.linalg.pinv(steep.T @ steep)) * noise) * self.values
        return self.values

    def errors(self, runs: Sequence[Run], values: Floats | None = None) -> Floats:
        """Predicted over measured, minus one."""
        at = self.values if values is None else values
        return self.predict(at[None, :], runs)[:, 0] / np.array([run.seconds for run in runs]) - 1

    def at_bound(self, k: int) -> bool:
        """Whether a value stands at one of its bounds."""
        p, value = self.plan.parameters[k], self.values[k]
        return bool(value < p.low * 1.005 or value > p.high * 0.995)


def cross_validation(
    plan: Plan, runs: Sequence[Run], pairs: Sequence[tuple[str, str]]
) -> tuple[Floats, Floats]:
    """(errors of every run, predicted from other cells; values of every fold)."""
    cells = sorted({run.cell for run in runs})
    np.random.default_rng(0).shuffle(cells)
    out, values = np.empty(len(runs)), []
    for fold in range(plan.folds):
        held = {tuple(cell) for cell in cells[fold :: plan.folds]}
        fit = Fit(plan, [run for run in runs if run.cell not in held], pairs)
        values.append(fit.run())
        left = [i for i, run in enumerate(runs) if run.cell in held]
        out[left] = fit.errors([runs[i] for i in left])
    return out, np.array(values)


def summary(errors: Floats) -> str:
    """Median, mean, 90th percentile and bias of some errors."""
    size = np.abs(errors)
    return (
        f"{len(size)} rows, median {np.median(size):.1%}, mean {size.mean():.1%}, "
        f"90th percentile {np.quantile(size, 0.9):.1%}, bias {np.median(errors):+.1%}"
    )


def rewrite(card: Path, values: Mapping[str, tuple[float, str]]) -> bool:
    """Put values and sources into the lines of a card; whether anything changed."""
    old = card.read_text(encoding="utf-8")
    new = old
    for name, (value, source) in values.items():
        line = re.compile(rf"^  {name}: {{value: [^,]+, source: .*}}$", re.MULTILINE)
        if not line.search(new):
            raise ValueError(f"{card.name} has no line for {name}.")
        text = f'  {name}: {{value: {value:.4g}, source: "{source}"}}'
        new = line.sub(lambda _, text=text: text, new)  # type: ignore[misc]
    if new != old:
        card.write_text(new, encoding="utf-8")
    return new != old


def main(dry: bool, quick: bool) -> int:
    """Fit, print, write."""
    plan = read_plan()
    every = [run for name in FILES for run in runs_of(read_rows(DATA / name))]
    runs = [run for run in every if _fitted(plan, run)]
    judged = [run for run in runs if run.tier in plan.judged]
    pairs = _pairs()
    fit = Fit(plan, runs, pairs)
    before = _cards(plan)
    values = fit.run()
    folds, spread = (
        (np.array([]), np.empty((0, len(values)))) if quick else cross_validation(plan, runs, pairs)
    )
    for k, p in enumerate(plan.parameters):
        between = f", folds {spread[:, k].min():.4g} to {spread[:, k].max():.4g}" if len(spread) else ""
        bound = ", AT ITS BOUND" if fit.at_bound(k) else ""
        print(
            f"{p.name}: {values[k]:.4g} +- {fit.errors_of_values[k]:.2g}, was {before[k]:.4g}{between}{bound}"
        )
    print(f"fitted rows: {summary(fit.errors(runs))}")
    print(f"judged rows, before: {summary(fit.errors(judged, before))}")
    print(f"judged rows, after:  {summary(fit.errors(judged))}")
    if len(spread):
        at = {run.id: error for run, error in zip(runs, folds, strict=True)}
        print(
            f"judged rows, each cell predicted from the others: {summary(np.array([at[run.id] for run in judged]))}"
        )
    if not dry and not quick:
        _write(plan, fit, len(runs))
    return 0


def _fitted(plan: Plan, run: Run) -> bool:
    if run.id.startswith((*plan.faulty, *plan.host_bound)):
        return False
    return run.tier in plan.fitted and (run.knobs_recorded or run.tier not in plan.judged)


def _pairs() -> list[tuple[str, str]]:
    groups: list[dict[str, Any]] = yaml.safe_load((DATA / "ab_pairs.yaml").read_text(encoding="utf-8"))[
        "groups"
    ]
    return [(pair["a"], pair["b"]) for group in groups for pair in group["pairs"]]


def _cards(plan: Plan) -> Floats:
    return np.array([load_machine(p.machines[0]).calibration[p.constant] for p in plan.parameters])


def _write(plan: Plan, fit: Fit, rows: int) -> None:
    for name in machine_names():
        mine = {}
        for k, p in enumerate(plan.parameters):
            if name in p.machines and p.constant in load_machine(name).calibration:
                bound = ", at its bound" if fit.at_bound(k) else ""
                source = (
                    f"benchmarks/fit.py on {rows} measured rows, standard error {fit.errors_of_values[k]:.2g}, "
                    f"bounds {p.low:.3g} to {p.high:.3g}{bound}"
                )
                mine[p.constant] = (float(fit.values[k]), source)
        if rewrite(CARDS / f"{name}.yaml", mine):
            print(f"hardware/data/{name}.yaml written")


if __name__ == "__main__":
    sys.exit(main("--dry-run" in sys.argv[1:], "--quick" in sys.argv[1:]))
