"""Judged step times on the accuracy page, and the figures of them that may not get worse."""

from __future__ import annotations

from mbsolve.judge.timing import Timing
from mbsolve.judge.timing_tables import Table, timing_tables


def parts(found: Timing) -> list[str]:
    """The tables, each under a heading with its notes above it."""
    out = []
    for table in timing_tables(found):
        out += [f"### {table.title}", *table.notes, _markdown(table)]
    return out


def _markdown(table: Table) -> str:
    lines = [
        f"| {' | '.join(table.heads)} |",
        f"|{'---|' * table.words}{'---:|' * (len(table.heads) - table.words)}",
        *(f"| {' | '.join(row)} |" for row in table.rows),
    ]
    return "\n".join(lines)


def limits(found: Timing) -> dict[str, dict[str, float]]:
    """Name -> how many cases there are (``rows``) and figures of which less is better."""
    out: dict[str, dict[str, float]] = {}
    for name, order in (("order", found.ranking), ("order, tuned runs", found.ranking_of_tuned)):
        if order is not None:
            out[name] = {
                "rows": len(order.groups),
                "wrong order": 1 - order.right / order.pairs if order.pairs else 0.0,
                "1 - mean tau": 1 - order.mean_tau,
                "mean regret": order.mean_regret,
                "worst regret": order.worst_regret,
            }
    if found.pairs is not None and found.pairs.median_error is not None:
        out["one change at a time"] = {
            "rows": found.pairs.apart,
            "wrong sign": 1 - found.pairs.right / found.pairs.apart,
            "median error": found.pairs.median_error,
        }
    if found.anchoring is not None:
        e = found.anchoring.nearest
        out["anchored by the nearest row"] = {
            "rows": e.rows,
            "median": e.median,
            "mean": e.mean,
            "p90": e.p90,
        }
    return out
