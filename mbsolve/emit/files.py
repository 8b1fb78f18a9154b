"""Write a set of files into a directory: all of them, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


class OutputError(ValueError):
    """A directory that cannot be written; the message is one sentence."""


def ensure_writable(directory: str | Path) -> None:
    """Find out, without leaving a trace, whether `write_all` could write there.

    Raises
    ------
    OutputError
        If the path is a file, lies below a file, or may not be written.
    """
    target = Path(directory).absolute()
    place = target
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise OutputError(f"The output {target} cannot be written: {place} is not a directory.")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OutputError(f"The output {target} cannot be written: {error.strerror or error}.") from error


def write_all(directory: str | Path, files: Mapping[str, str]) -> None:
    """Write the files (name -> text); the directory appears, complete, only when all of them are on the disk.

    In a directory that exists, each file is replaced by one atomic rename.

    Raises
    ------
    OutputError
        If the directory cannot be written; then nothing new is in it.
    """
    target = Path(directory).absolute()
    ensure_writable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the renames stay on one file system.
        staged = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for name, text in files.items():
                (staged / name).write_text(text, encoding="utf-8")
            staged.chmod(0o755)
            if target.is_dir():
                for name in files:
                    os.replace(staged / name, target / name)
            else:
                os.replace(staged, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"The output {target} cannot be written: {error.strerror or error}.") from error
