"""A second solve beside the first, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from mbsolve.constraints.job import Job
from mbsolve.solver import api
from mbsolve.solver.outcome import Outcome


class Beside:
    """A solve that runs while the caller works; on a machine with one core it runs when it is asked for.

    Parameters
    ----------
    job, demands : as for `api.solve`; ``progress`` cannot be among them.
    """

    def __init__(self, job: Job, **demands: Any) -> None:
        self.job, self.demands = job, demands
        self._pool: ProcessPoolExecutor | None = None
        self._future: Future[Outcome] | None = None
        if (os.cpu_count() or 1) > 1:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._future = self._pool.submit(api.solve, job, **demands)

    def result(self) -> Outcome:
        """The outcome; waits for it."""
        if self._future is None or self._pool is None:
            return api.solve(self.job, **self.demands)
        try:
            return self._future.result()
        finally:
            self.stop()

    def stop(self) -> None:
        """Give up on it; no process is left behind."""
        if self._pool is None:
            return
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
