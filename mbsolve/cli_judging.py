"""Commands that judge what others made: check, evaluate, diff, validate."""

from __future__ import annotations

import json as encoder
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from mbsolve.emit.formats import Given

T = TypeVar("T")

OK, NO = 0, 3
FORMATS = ("text", "json", "github")

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Job files; override lists and saved configurations of Megatron-Bridge; Megatron-LM scripts.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model, where a file does not say it.")
]
HardwareOption = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME", help="The GPUs, where a file does not say them.")
]
GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N", help="Number of GPUs, where a file does not say it.")
]
SeqOption = Annotated[
    str | None,
    typer.Option("--seq", metavar="N", help="Tokens of a sequence, where a file does not say them."),
]
AnchorOption = Annotated[
    str | None,
    typer.Option(
        "--anchor",
        metavar="RUN",
        help="A measured run of the same model and GPU, a job file with step_seconds: scales predicted times.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)


def print_json(found: Sequence[dict[str, Any]]) -> None:
    """One object for one job, a list for several."""
    print(encoder.dumps(found[0] if len(found) == 1 else found, indent=2))


def print_coloured(texts: Callable[[bool], Iterable[Text]]) -> None:
    """Print texts one below the other: with colours on a terminal that has them, else plain.

    Parameters
    ----------
    texts : makes them, told whether there are colours.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    colour = console.color_system is not None
    whole = Text("\n").join(texts(colour))
    if colour:
        console.print(whole, end="", soft_wrap=True)
    else:
        print(whole.plain, end="")


def given(model: str | None, hardware: str | None, gpus: str | None, seq: str | None) -> Given:
    """What the options say of every job."""
    from mbsolve.emit.formats import Given
    from mbsolve.errors import InputError
    from mbsolve.reading import parse_value

    numbers = []
    for option, text in (("--gpus", gpus), ("--seq", seq)):
        value = None if text is None else parse_value(text)
        if text is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{option} is {text!r}, but it must be a whole number of at least 1.")
        numbers.append(value)
    return Given(model=model, hardware=hardware, gpus=numbers[0], seq_len=numbers[1])


def check(
    files: Files,
    json: Json = False,
    no_memory: Annotated[bool, typer.Option("--no-memory", help="Judge the rules only.")] = False,
    format: Annotated[
        str,
        typer.Option("--format", metavar="NAME", help="text, json, or github (annotations of a workflow)."),
    ] = "text",
    model: ModelOption = None,
    hardware: HardwareOption = None,
    gpus: GpusOption = None,
    seq: SeqOption = None,
) -> None:
    """Say whether configurations are legal and fit, which rule they break, and what would mend them."""
    from mbsolve.errors import InputError, did_you_mean
    from mbsolve.judge.answers import read_many, verdict

    if format not in FORMATS:
        raise InputError(
            f"--format is {format!r}, but it must be one of {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}"
        )
    if json and format == "github":
        raise InputError("--json and --format github contradict each other.")
    cases = read_many(files, given(model, hardware, gpus, seq))
    verdicts = [verdict(case, memory=not no_memory) for case in cases]
    if json or format == "json":
        print_json([v.model_dump(mode="json") for v in verdicts])
    elif format == "github":
        from mbsolve.judge.annotations import annotate

        print(annotate(cases, verdicts), end="")
    else:
        from mbsolve.judge.text import verdicts_text

        print(verdicts_text(cases, verdicts, width()), end="")
    no = any(v.verdict in ("infeasible", "oom") for v in verdicts)
    raise typer.Exit(NO if no else OK)


def evaluate(
    files: Files,
    json: Json = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="The memory alone, in full: as `mbsolve memory`.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="The step time alone, in full: every part, every pipeline rank.")
    ] = False,
    anchor: AnchorOption = None,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    gpus: GpusOption = None,
    seq: SeqOption = None,
) -> None:
    """Price configurations: step time and memory, term by term."""
    from mbsolve.errors import InputError
    from mbsolve.judge.answers import read_many
    from mbsolve.judge.timed import timed

    if memory and time:
        raise InputError("--memory and --time contradict each other.")
    if memory and anchor is not None:
        raise InputError("--anchor corrects times, and --memory shows none: leave one of them out.")
    if memory:
        show_memory(files, given(model, hardware, gpus, seq), json=json)
    cases = read_many(files, given(model, hardware, gpus, seq))
    if anchor is not None:
        from mbsolve.judge.anchor import anchor_case, read_run

        run = read_run(anchor)
        cases = [anchor_case(case, run) for case in cases]
    found = [timed(case) for case in cases]
    if len(found) == 1 and found[0].evaluation is None and found[0].legal:
        raise InputError(f"{files[0]}: job {found[0].id} cannot be evaluated: {found[0].reason}.")
    if json:
        print_json([one.step() if time else one.flat() for one in found])
    elif time:
        from mbsolve.judge.text import timed_text

        columns = width()
        print_coloured(
            lambda colour: (
                timed_text(c, f, columns, colour=colour) for c, f in zip(cases, found, strict=True)
            )
        )
    else:
        from mbsolve.judge.text import evaluated_text

        print("\n".join(evaluated_text(c, e, width()) for c, e in zip(cases, found, strict=True)), end="")
    raise typer.Exit(OK if all(e.legal for e in found) else NO)


def show_memory(
    files: Sequence[str],
    stated: Given,
    *,
    free: float | None = None,
    verbose: bool = False,
    json: bool = False,
) -> NoReturn:
    """Print the memory of configurations; exits with the code that says whether all are legal and fit.

    Parameters
    ----------
    free : bytes that single changes should free; None asks only where a plan does not fit.
    """
    from mbsolve.errors import InputError
    from mbsolve.judge.answers import read_many
    from mbsolve.judge.memory import memory_of

    cases = read_many(files, stated)
    found = [memory_of(case, free) for case in cases]
    if len(found) == 1 and found[0].evaluation is None and found[0].legal:
        raise InputError(f"{files[0]}: job {found[0].id} cannot be evaluated: {found[0].reason}.")
    if json:
        print_json([one.flat() for one in found])
    else:
        from mbsolve.judge.text import remembered_text

        columns = width()
        print_coloured(
            lambda colour: (
                remembered_text(c, f, columns, verbose=verbose, colour=colour)
                for c, f in zip(cases, found, strict=True)
            )
        )
    good = all(one.legal and (one.account is None or all(one.account.fits.values())) for one in found)
    raise typer.Exit(OK if good else NO)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A file with one job, in any of the formats.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    json: Json = False,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    gpus: GpusOption = None,
    seq: SeqOption = None,
) -> None:
    """Compare two configurations term by term."""
    from mbsolve.errors import InputError
    from mbsolve.judge.answers import diff as compare
    from mbsolve.judge.cases import Case, read_cases

    stated = given(model, hardware, gpus, seq)

    def one(path: str) -> Case:
        cases = read_cases(path, stated)
        if len(cases) != 1:
            raise InputError(f"The file {path} holds {len(cases)} jobs, but diff compares one with one.")
        return Case(**{**vars(cases[0]), "name": path})

    found = compare(one(a), one(b))
    if json:
        print_json([found.model_dump(mode="json")])
    else:
        from mbsolve.judge.text import difference_text

        print(difference_text(found, width()), end="")


def validate(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Measured rows: JSON lines, or a list of probes.")
    ],
    json: Json = False,
    memory: Annotated[bool, typer.Option("--memory", help="Compare memory only, by class.")] = False,
    time: Annotated[bool, typer.Option("--time", help="Compare times only.")] = False,
    pairs: Annotated[
        str | None,
        typer.Option(
            "--pairs",
            metavar="FILE",
            help="Pairs of rows to compare with each other; else ab_pairs.yaml beside each FILE.",
        ),
    ] = None,
    anchor: AnchorOption = None,
) -> None:
    """Predict measured rows and print how far off the predictions are."""
    from mbsolve.errors import InputError
    from mbsolve.judge.anchor import read_run
    from mbsolve.judge.validated import validated

    both = memory == time
    if memory and not time and (anchor is not None or pairs is not None):
        option = "--anchor" if anchor is not None else "--pairs"
        raise InputError(f"{option} is about times, and --memory compares none: leave one of them out.")
    run = None if anchor is None else read_run(anchor)
    found = validated(files, time=time or both, memory=memory or both, pairs=pairs, run=run, progress=track)
    if json:
        print(found.model_dump_json(indent=2))
        return
    from mbsolve.judge.accuracy import accuracy_text
    from mbsolve.judge.memory_text import memory_text

    print((memory_text if memory and not time else accuracy_text)(found, width()), end="")


def track(rows: Sequence[T]) -> Iterable[T]:
    """Go through rows; a bar on the terminal says how far, and nothing is shown when the output is piped."""
    if not sys.stderr.isatty():
        return rows
    from rich.console import Console
    from rich.progress import track as bar

    return bar(rows, "predicting", console=Console(stderr=True), transient=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (check, evaluate, diff, validate):
        app.command()(command)
