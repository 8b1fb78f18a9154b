"""Files of pairs: which measured rows are to be compared with which, and what is assumed where they say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mbsolve.emit.jobfile import parse
from mbsolve.emit.rowschema import published_names
from mbsolve.errors import InputError, did_you_mean
from mbsolve.faults import wanted

__all__ = ["BESIDE", "PairGroup", "Twin", "pairs_beside", "read_pairs"]

# A file of this name beside a file of rows is of its rows.
BESIDE = "ab_pairs.yaml"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Twin(_Data):
    """Two rows, by their ids, and what changes from the first to the second."""

    a: str
    b: str
    factor: str


class PairGroup(_Data):
    """Pairs that have something in common.

    Parameters
    ----------
    assumed : fields of rows that both of a pair take where they leave them open.
    why : what that rests on, where no row of the group records it.
    """

    name: str
    assumed: Mapping[str, Any] = {}
    why: str | None = None
    pairs: tuple[Twin, ...]


class _File(_Data):
    groups: tuple[PairGroup, ...]


def read_pairs(path: str | Path) -> tuple[PairGroup, ...]:
    """The groups of pairs of a file.

    Raises
    ------
    InputError
        if it cannot be read or has another schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"The file {path} is not text in UTF-8.") from error
    try:
        groups = _File.model_validate(parse(path, text)).groups
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"{path}: {field} is {first['input']!r}, but {wanted(first)}.") from error
    known = published_names()
    for group in groups:
        for name in group.assumed:
            if name not in known:
                hint = did_you_mean(name, known)
                raise InputError(
                    f"{path}: group {group.name!r} assumes {name!r}, but rows have no such field{hint}"
                )
    return groups


def pairs_beside(path: str | Path) -> tuple[PairGroup, ...]:
    """The groups that stand beside a file of rows; none where there is no such file."""
    beside = Path(path).parent / BESIDE
    return read_pairs(beside) if beside.is_file() else ()
