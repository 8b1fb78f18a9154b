"""Files of measured rows, every row predicted once, and all that is to be said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mbsolve.emit.measured import Measured
from mbsolve.errors import InputError
from mbsolve.judge.anchor import Run
from mbsolve.judge.pairfile import pairs_beside, read_pairs
from mbsolve.judge.pairs import predicted_pairs
from mbsolve.judge.sizes import model_words
from mbsolve.judge.statistics import Validation, validation
from mbsolve.judge.validation import RowResult, read_rows, validate_row

__all__ = ["validated"]


def validated(
    files: Sequence[str | Path],
    *,
    time: bool = True,
    memory: bool = True,
    pairs: str | Path | None = None,
    run: Run | None = None,
    progress: Callable[[Sequence[Measured]], Iterable[Measured]] = iter,
) -> Validation:
    """Predict the rows of some files.

    Parameters
    ----------
    time, memory : what is compared.
    pairs : the file of pairs of these rows; None takes those that stand beside the files.
    run : a measured run that the steps of its own model and machine are scaled by.
    progress : goes through the rows, and may show how far it is.

    Raises
    ------
    InputError
        if a file cannot be read, or the run is of no row's model and machine.
    """
    rows = [row for path in files for row in read_rows(path)]
    groups = read_pairs(pairs) if pairs is not None else ()
    if pairs is None and time:
        groups = tuple(group for folder in _folders(files) for group in pairs_beside(folder))
    ids = {row.id for row in rows}
    if pairs is not None and not any({twin.a, twin.b} <= ids for group in groups for twin in group.pairs):
        raise InputError(f"{pairs} has no pair of which both rows are in the files.")
    results = [validate_row(row, time=time, memory=memory, run=run) for row in progress(rows)]
    found = predicted_pairs(rows, results, groups, run) if time else []
    return validation(results, found, None if run is None else _anchored(run, results))


def _folders(files: Sequence[str | Path]) -> list[Path]:
    """One file of every folder: files of one folder share what stands beside them."""
    return list({Path(path).parent: Path(path) for path in files}.values())


def _anchored(run: Run, results: Iterable[RowResult]) -> str:
    """What the anchor did, in words."""
    model, machine = model_words(run.job.model), run.job.machine.name
    mine = [
        r
        for r in results
        if r.time_error is not None and r.sizes and r.hardware == machine and r.sizes.model == model
    ]
    if not mine:
        raise InputError(
            f"The anchor {run.anchor.by} is a run of {model} on {machine}, but no timed row is of both."
        )
    return f"{run.anchor.words} ({len(mine)} rows of {model} on {machine})"
