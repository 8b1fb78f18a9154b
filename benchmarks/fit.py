"""Fit the constants of the time model to measured rows, and write them into the machine cards.

Run: ``python benchmarks/fit.py`` fits, prints what changed and how well rows are met, predicts each cell (model, machine)
from the others, and rewrites the fitted lines of ``hardware/data/*.yaml``; ``--dry-run`` writes nothing, ``--quick`` leaves
the folds out and writes nothing. What is fitted, from where to where, and on which rows, stands in ``benchmarks/data/fit.yaml``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import yaml
from fit_plan import DATA, Parameter, Plan, read_plan
from fit_rows import Floats, Run, ratios_of, runs_of
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from mbsolve.hardware.card import load_machine, machine_names
from mbsolve.judge.pairfile import read_pairs
from mbsolve.judge.rows import read_rows

__all__ = ["Fit", "Parameter", "cross_validation", "read_plan", "rewrite", "runs_of", "summary"]

ROOT: Final = Path(__file__).parents[1]
CARDS: Final = ROOT / "hardware" / "data"
FILES: Final = ("measured.jsonl", "probes.json", "probes_time.json")
Pair: TypeAlias = tuple[Run, Run, float]
STEP: Final = 1e-3
"""Relative change of a constant from which its slope is taken."""


class Fit:
    """Least squares of logarithmic errors of rows and one-knob ratios, with a pull to where each constant starts."""

    def __init__(self, plan: Plan, runs: Sequence[Run], pairs: Sequence[Pair]) -> None:
        self.plan, self.runs, self.pairs = plan, list(runs), list(pairs)
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
        rows = np.log(self.predict(values)) - np.log([run.seconds for run in self.runs])[:, None]
        ratios = self.plan.pair_weight * self.ratio_errors(values)
        spreads = np.array([p.spread for p in self.plan.parameters])
        pull = self.plan.noise * (np.log(values / self.start) / spreads).T
        return np.concatenate([rows, ratios, pull])

    def ratio_errors(self, values: Floats) -> Floats:
        """(pairs, rows of values) logarithms of predicted over measured ratios."""
        first, second = (np.log(self.predict(values, [pair[i] for pair in self.pairs])) for i in (0, 1))  # type: ignore[misc]
        measured = np.log([ratio for *_, ratio in self.pairs]).reshape(-1, 1)
        return np.asarray(second - first - measured)

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
            jac=slopes,  # pyright: ignore[reportArgumentType]
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
        found: Floats = self.predict(at[None, :], runs)[:, 0] / np.array([run.seconds for run in runs]) - 1
        return found

    def at_bound(self, k: int) -> bool:
        """Whether a value stands at one of its bounds."""
        p, value = self.plan.parameters[k], self.values[k]
        return bool(value < p.low * 1.005 or value > p.high * 0.995)


def cross_validation(plan: Plan, runs: Sequence[Run], pairs: Sequence[Pair]) -> tuple[Floats, Floats]:
    """(errors of every run, predicted from other cells; values of every fold)."""
    cells = sorted({run.cell for run in runs})
    np.random.default_rng(0).shuffle(cells)
    out, values = np.empty(len(runs)), []
    for fold in range(plan.folds):
        held = {tuple(cell) for cell in cells[fold :: plan.folds]}
        left_in = [pair for pair in pairs if pair[0].cell not in held]
        fit = Fit(plan, [run for run in runs if run.cell not in held], left_in)
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
    rows = [row for name in FILES for row in read_rows(DATA / name)]
    every = runs_of(rows)
    runs = [run for run in every if _fitted(plan, run)]
    judged = [run for run in runs if run.tier in plan.judged]
    sound = [row for row in rows if not row.id.startswith(plan.faulty)]
    pairs = ratios_of(sound, read_pairs(DATA / "ab_pairs.yaml"))
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
    ratios = np.exp(fit.ratio_errors(values[None, :])[:, 0]) - 1
    print(f"ratios of one-knob pairs: {summary(ratios)}")
    print(f"judged rows, before: {summary(fit.errors(judged, before))}")
    print(f"judged rows, after:  {summary(fit.errors(judged))}")
    if quick:
        return 0
    at = {run.id: error for run, error in zip(runs, folds, strict=True)}
    outside = np.array([at[run.id] for run in judged])
    print(f"judged rows, each cell predicted from the others: {summary(outside)}")
    if not dry:
        _write(plan, fit, len(runs))
        _record(plan, fit, spread, {"fitted": fit.errors(judged), "unseen": outside, "ratios": ratios})
    return 0


def _fitted(plan: Plan, run: Run) -> bool:
    if run.id.startswith((*plan.faulty, *plan.host_bound)):
        return False
    return run.tier in plan.fitted and (run.knobs_recorded or run.tier not in plan.judged)


def _cards(plan: Plan) -> Floats:
    return np.array([load_machine(p.machines[0]).calibration[p.constant] for p in plan.parameters])


def _write(plan: Plan, fit: Fit, rows: int) -> None:
    seen = {run.job.machine.name for run in fit.runs}
    for name in machine_names():
        mine = {}
        over = "" if name in seen else f"; taken over, not measured on an {name.upper()}"
        for k, p in enumerate(plan.parameters):
            if name in p.machines and p.constant in load_machine(name).calibration:
                bound = ", at its bound" if fit.at_bound(k) else ""
                source = (
                    f"benchmarks/fit.py on {rows} measured rows, standard error {fit.errors_of_values[k]:.2g}, "
                    f"bounds {p.low:.3g} to {p.high:.3g}{bound}{over}"
                )
                mine[p.constant] = (float(fit.values[k]), source)
        if rewrite(CARDS / f"{name}.yaml", mine):
            print(f"hardware/data/{name}.yaml written")


def _record(plan: Plan, fit: Fit, spread: Floats, found: Mapping[str, Floats]) -> None:
    """Keep what was found, for the accuracy page and the error bars."""
    errors = {
        name: {
            "median": round(float(np.median(size)), 4),
            "mean": round(float(np.mean(size)), 4),
            "p90": round(float(np.quantile(size, 0.9)), 4),
            "rows": len(size),
        }
        for name, size in ((name, np.abs(signed)) for name, signed in found.items())
    }
    constants = [
        {
            "constant": p.constant,
            "of": list(p.machines),
            "value": float(f"{fit.values[k]:.4g}"),
            "standard_error": float(f"{fit.errors_of_values[k]:.2g}"),
            "folds": [float(f"{spread[:, k].min():.4g}"), float(f"{spread[:, k].max():.4g}")],
            "bounds": [p.low, p.high],
            "at_bound": fit.at_bound(k),
        }
        for k, p in enumerate(plan.parameters)
    ]
    head = "# Written by `python benchmarks/fit.py`: errors of judged rows, inside the fit and each cell predicted from the others,\n"
    head += "# errors of one-knob ratios, and every fitted constant.\n"
    text = yaml.safe_dump({"errors": errors, "constants": constants}, sort_keys=False, width=120)
    (DATA / "fitted.yaml").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main("--dry-run" in sys.argv[1:], "--quick" in sys.argv[1:]))
