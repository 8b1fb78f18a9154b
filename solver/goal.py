"""What a search aims at: the best plan known of each key, and the score that still matters."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

Key = tuple[Any, ...]

# A bound this much above a score tells a plan that is worse from one that is as good.
ABOVE: Final = 1 + 1e-9
# The first level is so much above the least bound, and each so much above the one before; after some even steps the
# steps double, and then comes the last one.
FIRST: Final = 0.08
RISE: Final = 0.03
EVEN: Final = 16
LEVELS: Final = 22


class Goal:
    """Scores of the best plans known, by key (`tie.key_of`), in the unit of the objective.

    While too few plans are known, the search goes through levels: it first looks for plans under a low one, and
    under the next when it has seen all of those.

    Parameters
    ----------
    last : what no plan reaches: the last level.
    """

    def __init__(self, last: float) -> None:
        self.wanted, self.last, self.level, self._climbed = 1, last, 0.0, 0
        self.best: dict[Key, float] = {}

    def note(self, key: Key, score: float) -> bool:
        """Take a plan into account; True when it is the best of its key."""
        better = score < self.best.get(key, math.inf)
        if better:
            self.best[key] = score
        return better

    @property
    def target(self) -> float:
        """What is too much to be wanted: just above the score of the last plan wanted, or above the level."""
        if len(self.best) < self.wanted:
            return self.level * ABOVE
        return min(self.level, sorted(self.best.values())[self.wanted - 1]) * ABOVE

    def room(self, key: Key) -> float:
        """What is too much for a plan with this key to be wanted."""
        return min(self.target, self.best.get(key, math.inf) * ABOVE)

    def climb(self, frontier: float) -> bool:
        """Go to the next level, above ``frontier``, under which there is nothing; False after the last one."""
        if self.level >= self.last:
            return False
        self._climbed += 1
        step = FIRST if self._climbed == 1 else RISE * 2 ** max(0, self._climbed - EVEN)
        self.level = min(self.last, max(self.level, frontier) * (1 + step))
        if self._climbed > LEVELS or math.isinf(frontier):
            self.level = self.last
        return True


def least(bounds: dict[Key, float], shape: Key, excluded: Collection[Key]) -> float:
    """The least bound of a shape over the keys that are not excluded; ``bounds`` are by the features of the key."""
    return min((b for key, b in bounds.items() if (*shape, *key) not in excluded), default=math.inf)
