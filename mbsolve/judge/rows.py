"""Files of measured rows: published measurements as JSON lines, probes as a JSON list."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mbsolve.emit.measured import Measured, measured_row
from mbsolve.emit.probed import probe_row
from mbsolve.emit.siblings import completed_by_siblings
from mbsolve.errors import InputError

__all__ = ["read_rows"]


def read_rows(path: str | Path) -> Iterator[Measured]:
    """The rows of a file: JSON lines of published measurements, or a JSON list of probes.

    Raises
    ------
    InputError
        if the file cannot be read or has another schema.
    """
    objects = list(_objects(Path(path)))
    if not objects:
        raise InputError(f"The file {path} holds no row.")
    rows = completed_by_siblings([row for _, row in objects if isinstance(row, Mapping)])
    if len(rows) < len(objects):
        rows = [row for _, row in objects]
    for (place, _), row in zip(objects, rows, strict=True):
        read = _reader(row)
        if read is None:
            raise InputError(
                f"The file {path} has at {place} no measured row: it lacks 'tier' with 'step_time_ms' or "
                "'mem_allocated_gb', and 'peak_allocated_gib'."
            )
        try:
            yield read(row)
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(
                f"The file {path} has at {place} a row that cannot be read: {error!r}."
            ) from error


def _reader(row: Any) -> Callable[[Mapping[str, Any]], Measured] | None:
    """How to read a row; None for something else."""
    if not isinstance(row, Mapping):
        return None
    if "peak_allocated_gib" in row or "fwd_bwd_ms" in row:
        return probe_row
    if "tier" in row and ("step_time_ms" in row or "mem_allocated_gb" in row):
        return measured_row
    return None


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Every object of a file, with its place."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"The file {path} is not text in UTF-8.") from error
    many = _whole(text)
    if many is not None:
        yield from ((f"row {i}", row) for i, row in enumerate(many, 1))
        return
    for i, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {i}", json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"The file {path} is not valid JSON at line {i}: {error}.") from error


def _whole(text: str) -> list[Any] | None:
    """The rows of a file that is one JSON value, a list or a single row; None for JSON lines."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list):
        return found
    return [found] if isinstance(found, Mapping) else None
