"""The visible, ordered list of every cost term."""

from __future__ import annotations

from mbsolve.constraints.memory.catalogue import MEMORY_TERMS
from mbsolve.constraints.rule import Term
from mbsolve.constraints.time.catalogue import TIME_TERMS

TERMS: tuple[Term, ...] = (*MEMORY_TERMS, *TIME_TERMS)
