"""Device memory of the CUDA context and of NCCL communicators of two ranks, beside the allocator's.

Usage: ``torchrun --nproc-per-node 2 communicators.py``. Prints MiB in use on the device, and MiB that the allocator
reserves, after each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

RANK = int(os.environ["LOCAL_RANK"])


def say(what: str) -> None:
    """Print what is in use on the device now."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    if RANK == 0:
        reserved = torch.cuda.memory_reserved()
        print(f"{what}: device {(total - free) / 2**20:.0f}, reserved {reserved / 2**20:.0f}", flush=True)


def main() -> None:
    """Make groups one after the other, and use each for one kind of collective."""
    torch.cuda.set_device(RANK)
    torch.ones(1 << 22, device="cuda")
    say("context and a tensor")
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    square @ square
    say("a matrix product")
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    say("world")
    sent = torch.ones(64 << 20, device="cuda", dtype=torch.bfloat16)
    gathered = torch.empty(128 << 20, device="cuda", dtype=torch.bfloat16)
    received = torch.empty_like(sent)

    def exchange(group: dist.ProcessGroup | None) -> None:
        there = [
            dist.P2POp(dist.isend, sent, 1 - RANK, group),
            dist.P2POp(dist.irecv, received, 1 - RANK, group),
        ]
        for work in dist.batch_isend_irecv(there):
            work.wait()

    kinds: dict[str, Callable[[dist.ProcessGroup | None], object]] = {
        "all-reduce": lambda group: dist.all_reduce(sent, group=group),
        "all-gather": lambda group: dist.all_gather_into_tensor(gathered, sent, group=group),
        "reduce-scatter": lambda group: dist.reduce_scatter_tensor(sent, gathered, group=group),
        "all-to-all": lambda group: dist.all_to_all_single(received, sent, group=group),
        "send and receive": exchange,
    }
    for name, run in kinds.items():
        run(None)
        say(f"world, first {name}")
    for name, run in kinds.items():
        for number in (1, 2):
            group = dist.new_group([0, 1])
            say(f"group {number} for {name}, made")
            run(group)
            say(f"group {number} for {name}, used")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
