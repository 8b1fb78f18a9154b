"""The step and the memory of one plan in whole quanta: exactly the numbers that the solver compares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mbsolve.constraints.evaluate import Priced, plan_moments, priced, replay_of
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory.device import device_limit, host_limit_per_rank, reserved_permille
from mbsolve.constraints.moment_counts import COLUMN
from mbsolve.constraints.placement import STAGE_COUNTS, stage_classes
from mbsolve.constraints.quantise import BYTES_PER_QUANTUM, PERMILLE, permille_down, permille_up, quanta
from mbsolve.constraints.rule import RESERVED, Row
from mbsolve.constraints.time.step import exposure, soft_max_quanta
from mbsolve.constraints.vocabulary import Plan


class Quantised(NamedTuple):
    """Quanta of a plan: step time, peak device memory, pinned host memory of one rank, and the two limits."""

    step: int
    peak: int
    host: int
    peak_limit: int
    host_limit: int

    @property
    def fits(self) -> bool:
        """Whether both budgets hold."""
        return self.peak <= self.peak_limit and self.host <= self.host_limit


def ceil_div(a: int, b: int) -> int:
    """Integer division, rounded up."""
    return -(-a // b)


def memory_limits(job: Job) -> tuple[int, int]:
    """Quanta that one device may hold (margin subtracted), and that one rank may pin on its host."""
    device = int(device_limit(job)) // BYTES_PER_QUANTUM
    host = int(host_limit_per_rank(job)) // BYTES_PER_QUANTUM
    return device, host


def bubble_weight(pp: int, vpp: int, ranks: int) -> int:
    """Thousandths of a stage class's pass that the pipeline bubble adds to the step."""
    return ceil_div((pp - 1) * ranks * PERMILLE, vpp * pp)


def exposed_quanta(total: int, share: float, hides: float, window: int) -> int:
    """`time.step.exposed` in whole quanta, rounded up."""
    always = ceil_div(permille_up(share) * total, PERMILLE)
    return max(always, ceil_div(PERMILLE * total - permille_down(hides) * window, PERMILLE))


def quantised(job: Job, plan: Plan) -> Quantised:
    """Evaluate a plan in whole quanta."""
    p = priced(job, plan)
    device, host = _memory(p, *RESERVED), _memory(p, "host_bytes")
    context = sum(int(quanta(v, "bytes")) for _, v in p.terms["context_bytes"])
    peak = ceil_div(reserved_permille(job) * device, PERMILLE) + context
    return Quantised(_step(p), peak, host, *memory_limits(job))


def _memory(p: Priced, *rows: Row) -> int:
    terms = [entry for row in rows for entry in p.terms[row]]
    if not terms:
        return 0
    index = np.array([COLUMN[t.per] for t, _ in terms], np.int64)
    value = np.array([v for _, v in terms], float)
    return max(
        int(quanta(m.counts[:, index] * value, "bytes").sum(axis=1).max())
        for m in plan_moments(p.job, p.plan)
    )


def _row(p: Priced, row: Row, counts: dict[str, int]) -> int:
    return sum(int(quanta(v * counts[t.per], "seconds")) for t, v in p.terms[row])


def _step(p: Priced) -> int:
    job, plan = p.job, p.plan
    classes = stage_classes(job.model, plan.pp, plan.vpp, p.values["split"], replay_of(plan))
    totals, windows = [], (0, 0)
    bubble = 0
    for i, (key, ranks) in enumerate(classes.items()):
        counts: dict[str, int] = dict(zip(STAGE_COUNTS, key, strict=True))
        fd, fh = _row(p, "forward_device", counts), _row(p, "forward_host", counts)
        bd, bh = _row(p, "backward_device", counts), _row(p, "backward_host", counts)
        total = soft_max_quanta(fd, fh) + soft_max_quanta(bd, bh) + _row(p, "transfer", counts)
        if i == 0:
            windows = (max(bd, bh), max(fd, fh))
        totals.append(total)
        bubble += bubble_weight(plan.pp, plan.vpp, ranks) * total
    once = {"one": 1}
    reduce = exposed_quanta(
        _row(p, "grad_reduce", once),
        *exposure(job, plan.pp, plan.vpp, job.settings.overlap_grad_reduce),
        windows[0],
    )
    gather = exposed_quanta(
        _row(p, "param_gather", once),
        *exposure(job, plan.pp, plan.vpp, job.settings.overlap_param_gather),
        windows[1],
    )
    whole = p.values["microbatches"] * max(totals) + reduce + gather + _row(p, "tail", once)
    return ceil_div(PERMILLE * whole + bubble, PERMILLE)
