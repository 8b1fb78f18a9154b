"""Commands that list what there is: models, machines, rules."""

from __future__ import annotations

from typing import Annotated

import typer


def models() -> None:
    """List the models that have a card."""
    from mbsolve.models.card import load_model, model_names
    from mbsolve.models.counts import total_parameters

    width = max(map(len, model_names()))
    for name in model_names():
        card = load_model(name)
        print(f"{name:<{width}} {total_parameters(card) / 1e9:>8.1f}B  {card.title}")


def hardware() -> None:
    """List the machines that have a card."""
    from mbsolve.hardware.card import load_machine, machine_names

    width = max(map(len, machine_names()))
    for name in machine_names():
        card = load_machine(name)
        formats = ", ".join(card.supported_precisions)
        print(
            f"{name:<{width}} {card.hbm_bytes / 2**30:>6.1f} GiB  {card.gpus_per_node} a node  {formats}  {card.title}"
        )


def rules(
    rule_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="One rule, in full.")] = None,
) -> None:
    """List the rules of the target stack, or show one in full."""
    from mbsolve.report.rulebook import listing, one

    print("\n".join(one(rule_id) if rule_id else listing()))


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (models, hardware, rules):
        app.command()(command)
