"""What CUDA graphs would save a plan that waits for its host: each way to capture it, priced by plain evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.changes import applied
from mbsolve.constraints.error_bars import pair_error
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job
from mbsolve.constraints.laws import broken
from mbsolve.constraints.memory.device import device_limit
from mbsolve.constraints.normalise import normalise
from mbsolve.constraints.quantise import SECONDS_PER_QUANTUM
from mbsolve.constraints.relief import Change, priced_change
from mbsolve.constraints.rule import Rule
from mbsolve.constraints.rules.useful import useful_graph_scopes
from mbsolve.constraints.time_account import TimeAccount
from mbsolve.constraints.vocabulary import GRAPH_IMPLS, Plan

__all__ = ["Forbidden", "GraphHelp", "graph_help", "waits_for_host"]

FULL: Final = "full_iteration"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Forbidden(_Data):
    """A law that stands in the way of a kind of graphs."""

    graphs: str
    rule: str
    because: str


class GraphHelp(_Data):
    """What graphs would do for a plan.

    Parameters
    ----------
    best : of the legal ones that fit, the one with the shortest step; None where none is faster than the plan as it is.
    too_large : a legal one that is faster than that, but takes more memory than there is.
    over_bytes : how much more that is, on the device.
    forbidden : where no legal one is faster, a law for each kind of graphs.
    priced : how many legal ones were priced.
    """

    best: Change | None = None
    too_large: Change | None = None
    over_bytes: float = 0.0
    forbidden: tuple[Forbidden, ...] = ()
    priced: int = 0


def waits_for_host(account: TimeAccount) -> bool:
    """Whether some pass of the slowest rank is host-bound, or the host costs more than predictions are told apart by."""
    return account.host_bound or account.host_cost_seconds > pair_error() * account.step_seconds


def graph_help(job: Job, plan: Plan, account: TimeAccount) -> GraphHelp | None:
    """What graphs would do for a legal plan that waits for its host; None for any other plan.

    Only the graphs change: every implementation with every set of scopes that the model has. Which of them would need another
    dispatcher, or less recompute, is for a solve to find.

    Parameters
    ----------
    account : of the plan.
    """
    if not waits_for_host(account):
        return None
    before = evaluate(job, plan)
    legal: list[Change] = []
    laws: dict[str, list[tuple[Rule, str]]] = {}
    for fields in _captures(job, plan):
        changed, altered, _ = normalise(*applied(job, plan, fields))
        if any(getattr(altered, name) != value for name, value in fields.items()):
            continue  # the stack would make it another of them
        against = [(rule, because) for rule, because in broken(changed, altered) if because is not None]
        kind = fields["cuda_graph_impl"]
        if against:
            if kind not in laws or len(against) < len(laws[kind]):
                laws[kind] = against
        elif (change := priced_change(job, plan, before, fields)) is not None:
            legal.append(change)
    faster = sorted(
        (change for change in legal if -change.added_seconds > SECONDS_PER_QUANTUM),
        key=lambda c: (c.step_seconds, c.peak_device_bytes, len(c.set["cuda_graph_scope"]), c.text),
    )
    best = next((change for change in faster if change.fits), None)
    large = faster[0] if faster and faster[0] is not best else None
    return GraphHelp(
        best=best,
        too_large=large,
        over_bytes=0.0 if large is None else max(0.0, large.peak_device_bytes - device_limit(job)),
        forbidden=()
        if faster
        else tuple(
            Forbidden(graphs=kind, rule=found[0][0].id, because=found[0][1]) for kind, found in laws.items()
        ),
        priced=len(legal),
    )


def _captures(job: Job, plan: Plan) -> Iterator[dict[str, Any]]:
    """Every way to capture the plan but its own."""
    useful = useful_graph_scopes(job.model)
    now = plan.cuda_graph_impl, set(plan.cuda_graph_scope)
    for kind in GRAPH_IMPLS[1:]:
        sizes = (0,) if kind == FULL else range(1, len(useful) + 1)
        for scope in (some for size in sizes for some in combinations(useful, size)):
            if (kind, set(scope)) != now:
                yield {"cuda_graph_impl": kind, "cuda_graph_scope": scope}
