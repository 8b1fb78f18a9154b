"""Clock and power of a GPU while a probe runs, sampled by a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

PERIOD_S = 0.01


class Clocks:
    """Samples of one GPU from now on.

    Parameters
    ----------
    gpu : str
        Index of the GPU on this machine.
    """

    def __init__(self, gpu: str) -> None:
        self.file = Path(mkdtemp(prefix="clocks.")) / "samples"
        self.process = subprocess.Popen([sys.executable, __file__, gpu.split(",")[0], str(self.file)])

    def between(self, spans: list[tuple[float, float]]) -> dict[str, Any] | None:
        """Medians (MHz, W, degrees C) over spans of seconds since the epoch; None where there is no sample.

        ``mean_power_w`` is the energy counter's difference over the spans, divided by their seconds.
        """
        if not self.file.exists():
            return None
        lines = self.file.read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("]")]
        inside = [[row for row in rows if a <= row[0] <= b] for a, b in spans]
        seen = [row for part in inside for row in part]
        if not seen:
            return None
        long = [part for part in inside if len(part) > 1]
        seconds = sum(part[-1][0] - part[0][0] for part in long)
        joules = sum(part[-1][4] - part[0][4] for part in long) / 1e3
        reasons = 0
        for row in seen:
            reasons |= row[5]
        return {
            "sm_mhz": median(row[1] for row in seen),
            "sm_mhz_least": min(row[1] for row in seen),
            "power_w": round(median(row[2] for row in seen), 1),
            "mean_power_w": round(joules / seconds, 1) if seconds > 0.3 else None,
            "temperature_c": median(row[3] for row in seen),
            "throttle_reasons": hex(reasons),
            "samples": len(seen),
        }

    def stop(self) -> None:
        """End the sampling process."""
        self.process.terminate()
        self.process.wait()


def _sample(gpu: int, file: Path) -> None:
    import pynvml as nvml

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    with file.open("w", buffering=1) as out:
        while True:
            power = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0].value.uiVal
            row = [
                time.time(),
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                power / 1e3,
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            ]
            out.write(json.dumps(row) + "\n")
            time.sleep(PERIOD_S)


if __name__ == "__main__":
    _sample(int(sys.argv[1]), Path(sys.argv[2]))
