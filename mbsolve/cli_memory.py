"""The command that shows the memory of configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from mbsolve.cli_judging import (
    NO,
    OK,
    Files,
    GpusOption,
    HardwareOption,
    Json,
    ModelOption,
    SeqOption,
    given,
    print_json,
    width,
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
    from mbsolve.errors import InputError
    from mbsolve.judge.answers import read_many
    from mbsolve.judge.memory import memory_of

    wanted = None if free is None else _gib(free) * GIB
    cases = read_many(files, given(model, hardware, gpus, seq))
    found = [memory_of(case, wanted) for case in cases]
    if len(found) == 1 and found[0].evaluation is None and found[0].legal:
        raise InputError(f"{files[0]}: job {found[0].id} cannot be evaluated: {found[0].reason}.")
    if json:
        print_json([one.flat() for one in found])
    else:
        from mbsolve.judge.text import remembered_text

        texts = (remembered_text(c, f, width(), verbose) for c, f in zip(cases, found, strict=True))
        print("\n".join(texts), end="")
    good = all(one.legal and (one.account is None or all(one.account.fits.values())) for one in found)
    raise typer.Exit(OK if good else NO)


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
