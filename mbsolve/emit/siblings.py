"""Published rows completed by those of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["completed_by_siblings"]


def completed_by_siblings(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Published rows that leave something open take it of rows of the same kind, where these agree.

    Probes say all they ran with, so they are left as they are.
    VPP from the same model, machine, TP, PP and CP; the whole split from the same source, model and number of GPUs.
    """
    split = _completed(rows, ("source", "model", "hardware", "gpus"), ("tp", "pp", "ep"))
    staged = [row for row in split if row.get("pp") not in (None, 1)]
    return _completed(split, ("model", "hardware", "tp", "pp", "cp"), ("vpp",), staged)


def _completed(
    rows: Sequence[Mapping[str, Any]],
    alike: Sequence[str],
    fields: Sequence[str],
    only: Sequence[Mapping[str, Any]] | None = None,
) -> list[Mapping[str, Any]]:
    """Rows, those among ``only`` without any of the fields completed by the rows that are alike."""

    def cell(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name)) for name in alike)

    seen: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}
    for row in rows:
        values = tuple(row.get(name) for name in fields)
        if all(isinstance(value, int) for value in values):
            seen.setdefault(cell(row), set()).add(values)
    chosen = {id(row) for row in (rows if only is None else only)}
    out: list[Mapping[str, Any]] = []
    for row in rows:
        known = seen.get(cell(row), set())
        empty = all(row.get(name) is None for name in fields)
        take = (
            "tier" in row
            and id(row) in chosen
            and empty
            and len(known) == 1
            and row.get(alike[0]) is not None
        )
        out.append({**row, **dict(zip(fields, next(iter(known)), strict=True))} if take else row)
    return out
