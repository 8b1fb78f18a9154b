"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mbsolve import cli_judging, cli_lists, cli_memory

if TYPE_CHECKING:
    from mbsolve.constraints.job import Job
    from mbsolve.solver.outcome import Outcome

OK, BAD_INPUT, NO_PLAN, NO_TIME, INTERRUPTED, INTERNAL = 0, 2, 3, 4, 130, 70
CODES = {"OPTIMAL": OK, "FEASIBLE": OK, "INFEASIBLE": NO_PLAN, "UNKNOWN": NO_TIME}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Find the best Megatron-Bridge training configuration, with the proof.",
)


def _show_version(asked: bool) -> None:
    if asked:
        from mbsolve import __version__

        print(f"mbsolve {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def solve_command(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model: a name of `mbsolve models`, a card, or a config.json."),
    ] = None,
    seq: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of a sequence; else the model's.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="Number of GPUs.")] = None,
    hardware: Annotated[
        str, typer.Option(metavar="NAME", help="GPUs: a name of `mbsolve hardware`, or a card.")
    ] = "h100",
    gpus_per_node: Annotated[
        str | None, typer.Option(metavar="N", help="GPUs of a host; else the card's.")
    ] = None,
    gbs: Annotated[
        str | None, typer.Option(metavar="N", help="Sequences of a step; else the model's.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="bf16, fp8_cs, fp8_delayed, fp8_block, mxfp8, nvfp4.  [default: bf16]"
        ),
    ] = None,
    block: Annotated[
        str | None, typer.Option(metavar="N", help="GPUs placed together in an NVLink domain.")
    ] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of memory to keep free.  [default: 0.03]")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="bridge, bridge-0.6, megatron-lm.  [default: bridge]")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Fix a decision. Repeatable.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Forbid a value (deepep) or NAME=VALUE. Repeatable."),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Plans to rank, each proven.")] = 1,
    objective: Annotated[str, typer.Option(metavar="NAME", help="time or memory.")] = "time",
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop the search after this time.")
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Threads of the solver.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    anchor: cli_judging.AnchorOption = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory for plan, overrides and report.")
    ] = None,
    no_alternatives: Annotated[
        bool, typer.Option("--no-alternatives", help="Do not price plan 1 in another precision.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the best plan for a model, a sequence length and a number of GPUs."""
    if context.invoked_subcommand is not None:
        return
    from mbsolve.errors import InputError
    from mbsolve.reading import job_of

    for name, value in (("--model", model), ("--gpus", gpus)):
        if value is None:
            example = "mbsolve --model dsv3 --seq 131072 --gpus 256"
            raise InputError(f"{name} is missing; for example: {example}.")
    if objective not in ("time", "memory"):
        raise InputError(f"--objective is {objective!r}, but it must be time or memory.")
    for name, number in (("--top", top), ("--workers", workers)):
        if number < 1:
            raise InputError(f"{name} is {number}, but it must be at least 1.")
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"--time-limit is {time_limit:g}, but it must be above 0.")
    job, decisions = job_of(
        fix or [],
        set_ or [],
        model=model,
        hardware=hardware,
        gpus=gpus,
        seq_len=seq,
        gbs=gbs,
        gpus_per_node=gpus_per_node,
        precision=precision,
        margin=margin,
        block_gpus=block,
        target=target,
    )
    if anchor is not None:
        from mbsolve.judge.anchor import anchor_job, read_run

        job = anchor_job(job, read_run(anchor))
    if out is not None:
        from mbsolve.emit.launch import ensure_writable

        ensure_writable(out)
    demands: dict[str, Any] = {"fixed": decisions, "forbid": forbid or [], "objective": objective}
    demands |= {"time_limit": time_limit, "workers": workers}
    raise typer.Exit(_solve(job, demands, top=top, json=json, out=out, alternatives=not no_alternatives))


def _solve(
    job: Job, demands: dict[str, Any], *, top: int, json: bool, out: str | None, alternatives: bool
) -> int:
    from mbsolve.solver.api import solve
    from mbsolve.solver.outcome import Interrupted

    # A solve makes millions of short-lived arrays and no cycles: collecting costs it an eighth of its time.
    gc.disable()
    interrupted = False
    try:
        with _progress() as progress:
            outcome = solve(job, top=top, progress=progress, **demands)
        text = _report(job, outcome)
        print(outcome.model_dump_json(indent=2) if json else text, flush=True, end="\n" if json else "")
        if alternatives and not json and outcome.best is not None:
            text += _alternative(job, outcome, demands)
    except Interrupted as stop:
        outcome, interrupted = stop.outcome, True
        text = _report(job, outcome)
        print(outcome.model_dump_json(indent=2) if json else text, flush=True, end="\n" if json else "")
    except KeyboardInterrupt:
        return _fail("stopped before a plan was found.", INTERRUPTED)
    if out is not None:
        from mbsolve.emit.launch import write

        write(job, outcome, out, text)
        print(f"Written to {out}.", file=sys.stderr)
    return INTERRUPTED if interrupted else CODES[outcome.status]


def _report(job: Job, outcome: Outcome) -> str:
    from mbsolve.emit.launch import command
    from mbsolve.report.text import render
    from mbsolve.report.why import reasons

    width = min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)
    run = command(job, outcome.best.plan) if outcome.best else ()
    return render(job, outcome, width=width, reasons=reasons(job, outcome), run=run)


def _alternative(job: Job, outcome: Outcome, demands: dict[str, Any]) -> str:
    """Print and return what another precision gives: of the best plan as it is, else of the best one on its grid."""
    from mbsolve.report.alternatives import GRID, other_precision, same_grid, same_plan
    from mbsolve.solver.api import solve

    precision, best = other_precision(job), outcome.best
    if precision is None or best is None:
        return ""
    changed = job.model_copy(update={"precision": precision})
    text = same_plan(changed, best)
    if text is None:
        grid = {name: getattr(best.plan, name) for name in GRID}
        asked = {**demands, "fixed": {**grid, **(demands["fixed"] or {})}}
        with _progress() as progress:
            other = solve(changed, top=1, explained=False, progress=progress, **asked)
        text = same_grid(precision, best, other)
    text = f"\n{text}\n"
    print(text, end="")
    return text


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """A line on the terminal that says what the search does; nothing when the output is piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text("searching")) as status:
        yield lambda text: status.update(Text(text))


cli_lists.register(app)
cli_judging.register(app)
cli_memory.register(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; every error is one sentence on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(arguments, prog_name="mbsolve", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except (BrokenPipeError, SystemExit):
        # The reader left (`| head`; typer makes an exit of it); Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped before a plan was found.", INTERRUPTED)
    except ValueError as error:
        if _is_input(error):
            return _fail(str(error), BAD_INPUT)
        return _internal(error)
    except Exception as error:  # noqa: BLE001 - nothing but a sentence may reach the user
        # A usage error of the option parser; its class has moved between releases of typer.
        spell = getattr(error, "format_message", None)
        if callable(spell):
            return _fail(str(spell()), BAD_INPUT)
        return _internal(error)


def _is_input(error: ValueError) -> bool:
    from mbsolve.constraints.demands import DemandError
    from mbsolve.emit.files import OutputError
    from mbsolve.errors import InputError
    from mbsolve.report.rulebook import UnknownRuleError

    return isinstance(error, InputError | OutputError | DemandError | UnknownRuleError)


def _fail(message: str, code: int) -> int:
    sentence = " ".join(message.split())
    print(f"mbsolve: {sentence}", file=sys.stderr)
    return code


def _internal(error: Exception) -> int:
    if os.environ.get("MBSOLVE_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {error}".rstrip(".")
    hint = "this is a bug: please report the command line; MBSOLVE_DEBUG=1 shows where it happened."
    return _fail(f"internal error, {what}; {hint}", INTERNAL)
