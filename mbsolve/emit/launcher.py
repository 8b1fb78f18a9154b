"""What stands around the call of a training program: torchrun's processes, and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mbsolve.emit.entry import Entry
from mbsolve.emit.script import Call, unknown_in

__all__ = ["read_launcher"]

NODES: Final = ("--nnodes",)
PROCESSES: Final = ("--nproc-per-node", "--nproc_per_node")
ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def read_launcher(where: str, out: Entry, call: Call, at: int) -> None:
    """Read the number of GPUs from the words before the program, and the allocator from the environment."""
    words = call.words[:at]
    given: dict[str, str] = {}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in NODES or name in PROCESSES:
            kind = "nodes" if name in NODES else "processes"
            given[kind] = value if equals else words[i + 1] if i + 1 < len(words) else ""
    for kind, text in list(given.items()):
        unknown = unknown_in(text)
        if unknown is not None:
            out.ignored[f"${unknown}"] = f"the number of {kind} that it holds is not in the file"
        if not (text.isdecimal() and 0 < len(text) < 8):
            given[kind] = ""
    processes, nodes = given.get("processes"), given.get("nodes", "1")
    if processes and nodes:
        out.state(where, "gpus", int(processes) * int(nodes))
        if int(nodes) > 1:
            out.state(where, "gpus_per_node", int(processes))
    _allocator(where, out, call.variables)


def _allocator(where: str, out: Entry, variables: Mapping[str, str]) -> None:
    for name in ALLOCATOR:
        text = variables.get(name)
        if text is not None and unknown_in(text) is None:
            out.state(where, "expandable_segments", "expandable_segments:true" in text.casefold())
            return
