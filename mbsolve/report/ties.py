"""What is said of plans whose step times are too near to tell which is less."""

from __future__ import annotations

from collections.abc import Sequence

from mbsolve.constraints.error_bars import pair_error
from mbsolve.report import words
from mbsolve.solver.outcome import Ranked
from mbsolve.solver.tie import count_unusual

__all__ = ["tie_text"]


def tie_text(plans: Sequence[Ranked], *, ordered: bool) -> str:
    """One paragraph on the plans that tie with the first; empty where none does.

    Parameters
    ----------
    ordered : whether they are ordered as ties; where memory is the objective they are not.
    """
    ties = [one for one in plans if one.tie_with_best]
    if len(ties) < 2:
        return ""
    others = [str(one.rank) for one in ties[1:]]
    which = f"plans {', '.join(others)} are" if len(others) > 1 else f"plan {others[0]} is"
    told = (
        f"A tie: {which} within {pair_error():.1%} of plan 1, the error of a predicted difference, so any of them may be "
        "the fastest."
    )
    if ordered and len(others) > 1:
        told += (
            " After plan 1 they are ordered by free memory (whole GiB), then by how few features they use."
        )
    roomy = max(ties, key=lambda one: (one.evaluation.headroom_bytes, -one.rank))
    simple = min(ties, key=lambda one: (count_unusual(one.plan.values()), one.rank))
    free = f"leaves the most memory free ({words.gib(roomy.evaluation.headroom_bytes)} GiB)"
    if roomy is simple:
        return f"{told} Of these plan {roomy.rank} {free} and uses the fewest features."
    return f"{told} Of these plan {roomy.rank} {free}, plan {simple.rank} uses the fewest features."
