"""The command that shows the memory of configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from mbsolve.cli_judging import (
    Files,
    GpusOption,
    HardwareOption,
    Json,
    ModelOption,
    SeqOption,
    given,
    show_memory,
)

GIB = 2**30


def memory(
    files: Files,
    json: Json = False,
    free: Annotated[
        str | None,
        typer.Option("--free", metavar="GIB", help="Show the cheapest single changes that free so many GiB."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every term with its source, at every kind of moment.")
    ] = False,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    gpus: GpusOption = None,
    seq: SeqOption = None,
) -> None:
    """Show the memory of configurations: every pipeline rank, term by term, the host, and what would free some."""
    wanted = None if free is None else _gib(free) * GIB
    stated = given(model, hardware, gpus, seq)
    show_memory(files, stated, free=wanted, verbose=verbose, json=json)


def _gib(text: str) -> float:
    """A number of GiB above 0."""
    from mbsolve.errors import InputError

    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InputError(f"--free is {text!r}, but it must be a number of GiB above 0.")
    return number


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(memory)
