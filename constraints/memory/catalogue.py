"""The visible, ordered list of memory terms. The first part of a name groups it in reports."""

from __future__ import annotations

from mbsolve.constraints.memory.buffers import BUFFER_TERMS
from mbsolve.constraints.memory.device import DEVICE_TERMS
from mbsolve.constraints.memory.dispatchers import DISPATCHER_TERMS
from mbsolve.constraints.memory.graphs import GRAPH_TERMS
from mbsolve.constraints.memory.host import HOST_TERMS
from mbsolve.constraints.memory.resident import RESIDENT_TERMS
from mbsolve.constraints.memory.tensors import SAVED_TERMS
from mbsolve.constraints.memory.transients import TRANSIENT_TERMS
from mbsolve.constraints.memory.transients_recurrent import RECURRENT_TRANSIENTS
from mbsolve.constraints.memory.unsent import UNSENT_TERMS
from mbsolve.constraints.rule import Term

MEMORY_TERMS: tuple[Term, ...] = (
    *RESIDENT_TERMS,
    *BUFFER_TERMS,
    *SAVED_TERMS,
    *TRANSIENT_TERMS,
    *RECURRENT_TRANSIENTS,
    *UNSENT_TERMS,
    *GRAPH_TERMS,
    *DISPATCHER_TERMS,
    *HOST_TERMS,
    *DEVICE_TERMS,
)
