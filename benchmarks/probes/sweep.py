"""Run probe jobs, a process each, side by side on the GPUs of this machine.

Usage: ``python sweep.py JOBS.jsonl OUT.jsonl SECONDS``. A job begins once its ``need_gib`` are free on its GPU; a job with
``timed`` has the GPU to itself, one with ``quiet`` also waits until no other process is importing. Raw results are appended to ``OUT.jsonl``; `rows.py` turns them into rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

HERE = Path(__file__).parent
MODELS = json.loads((HERE / "models.json").read_text())
GPUS = torch.cuda.device_count()
SIDE_BY_SIDE, MEMORY_GIB = 7, 128.0
LOGS = Path(mkdtemp(prefix="probes."))


def expanded(job: dict[str, Any]) -> dict[str, Any]:
    """The job with the dimensions of its model in place of the name."""
    model = {**MODELS[job["model"]], **job.get("m", {})}
    if job.get("num_layers_override"):
        model["num_layers"] = job["num_layers_override"]
    dense = job.get("dense_first_layers")
    if model.get("num_moe_experts") and dense is not None:
        model["moe_layer_freq"] = [0] * dense + [1] * (model["num_layers"] - dense)
    return {**job, "model": model}


class Sweep:
    """A queue of jobs, worked off by a few threads for each GPU."""

    def __init__(self, jobs: list[dict[str, Any]], out: Path, seconds: float) -> None:
        self.jobs, self.out, self.end = iter(jobs), out, time.time() + seconds
        self.lock = threading.Condition()
        self.free = [MEMORY_GIB] * GPUS
        self.importing = 0

    def run(self) -> None:
        """Work until the jobs or the seconds are used up."""
        threads = [
            threading.Thread(target=self._worker, args=(i % GPUS,)) for i in range(SIDE_BY_SIDE * GPUS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _worker(self, gpu: int) -> None:
        while time.time() < self.end - 5:
            with self.lock:
                job = next(self.jobs, None)
            if job is None:
                return
            result = self._one(job, gpu)
            with self.lock, self.out.open("a") as out:
                out.write(json.dumps({"job": job, "result": result}) + "\n")
            print(job["id"], "ok" if result["ok"] else f"FAILED {result.get('err', '')[:200]}", flush=True)

    def _one(self, job: dict[str, Any], gpu: int) -> dict[str, Any]:
        """Run one job in a process of its own; it waits after its imports until its memory is free."""
        log = LOGS / job["id"]
        need = MEMORY_GIB if job.get("timed") else job.get("need_gib", 40)
        found: dict[str, Any] | None = None
        timer: threading.Timer | None = None
        importing = True
        with self.lock:
            self.importing += 1
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "rank.py"), json.dumps(expanded(job))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)},
            )
            assert process.stdout is not None and process.stdin is not None
            for line in process.stdout:
                if line.startswith("READY"):
                    with self.lock:
                        self.importing, importing = self.importing - 1, False
                        self.lock.notify_all()
                        self.lock.wait_for(
                            lambda: self.free[gpu] >= need and not (job.get("quiet") and self.importing)
                        )
                        self.free[gpu] -= need
                    timer = threading.Timer(
                        min(job.get("limit_s", 150), max(5, self.end - time.time())), process.kill
                    )
                    timer.start()
                    process.stdin.write("GO\n")
                    process.stdin.flush()
                elif line.startswith("RESULT "):
                    found = json.loads(line[7:])
            process.wait()
        if importing:
            with self.lock:
                self.importing -= 1
                self.lock.notify_all()
        if timer is not None:
            timer.cancel()
            with self.lock:
                self.free[gpu] += need
                self.lock.notify_all()
        if found is None:
            return {"ok": False, "err": f"died {process.returncode}", "tb": log.read_text()[-2500:]}
        return found


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    Sweep([json.loads(line) for line in lines if line.strip()], Path(sys.argv[2]), float(sys.argv[3])).run()
