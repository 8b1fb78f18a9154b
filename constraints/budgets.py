"""The memory budgets: what a legal plan may take of a device and of a host, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mbsolve.constraints.evaluation import Evaluation
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.constants import source_of
from mbsolve.constraints.memory.device import device_limit, host_limit

__all__ = ["BUDGETS", "Budget"]

GIB = 2**30


@dataclass(frozen=True)
class Budget:
    """A bound on memory that is judged once no law is broken.

    Parameters
    ----------
    id : stable identifier.
    text : the bound in words.
    because : one line, formatted with the fullest ``stage``, what is ``needed`` and the ``limit``, both in GiB.
    reads : sizes that both sides are made of.
    source : where the sizes of the machine and the shares come from.
    needs : bytes that a plan takes.
    limit : bytes that it may take.
    """

    id: str
    text: str
    because: str
    reads: tuple[str, ...]
    source: str
    needs: Callable[[Evaluation], float]
    limit: Callable[[Job], float]

    def holds(self, job: Job, evaluation: Evaluation) -> bool:
        """Whether the plan stays within the budget."""
        return self.needs(evaluation) <= self.limit(job)

    def clause(self, job: Job, evaluation: Evaluation) -> str:
        """The reason in words, with the numbers of the case."""
        return self.because.format(
            stage=evaluation.worst_stage, needed=self.needs(evaluation) / GIB, limit=self.limit(job) / GIB
        )


def peak_of_device(evaluation: Evaluation) -> float:
    """Bytes that the fullest pipeline rank takes of its device at its peak."""
    return evaluation.worst_stage.peak_device_bytes


def pinned_on_host(evaluation: Evaluation) -> float:
    """Bytes that the ranks of the fullest node pin for what is offloaded."""
    return evaluation.host_bytes_per_node


BUDGETS: Final = (
    Budget(
        "hbm-capacity",
        "The peak of the fullest pipeline rank and the margin fit into the memory of a GPU: "
        "peak_device_bytes + margin of hbm_bytes <= hbm_bytes.",
        "pipeline rank {stage.stage} peaks at {needed:.1f} GiB ({stage.peak_moment}); "
        "a GPU has {limit:.1f} GiB after the margin",
        ("peak_device_bytes", "hbm_bytes", "margin"),
        "hbm_bytes of the machine's card; margin of the job",
        peak_of_device,
        device_limit,
    ),
    Budget(
        "host-ram-capacity",
        "What the ranks of a node pin for offload stays within a share of its memory: "
        "host_bytes_per_node <= host_share_permille / 1000 of host_ram_bytes_per_node.",
        "a node pins {needed:.0f} GiB for what is offloaded; {limit:.0f} GiB may be pinned",
        ("host_bytes_per_node", "host_ram_bytes_per_node", "host_share_permille"),
        f"host_ram_bytes_per_node of the machine's card; host_share_permille: {source_of('host_share_permille')}",
        pinned_on_host,
        host_limit,
    ),
)
