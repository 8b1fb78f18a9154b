"""Turn raw results of `kernels.py`, and of jobs ``host.*`` of `sweep.py`, into ``benchmarks/data/kernels_h200.json``.

Usage: ``python kernels_rows.py ROWS.json RAW.jsonl...``. Numbers keep four significant digits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]


def rounded(value: Any) -> Any:
    """The value with four significant digits in its numbers."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if one is not None}
    return value


def step(job: Row, result: Row) -> Row:
    """Host time of the steps of a small model, a layer and microbatch; embedding, output and schedule are in it."""
    name = job["id"].split(".")[1]
    layers, parts = job["m"]["num_layers"], job["num_microbatches"]
    steady = result["steps"][3:-1]
    a_layer = lambda key: median(one[key] for one in steady) * 1e3 / layers / parts
    return {
        "part": "layer_host",
        "layer": name,
        "layers": layers,
        "local_experts": job["m"].get("num_moe_experts"),
        "launch_host_us_a_layer": a_layer("launch_ms"),
        "forward_host_us_a_layer": a_layer("forward_launch_ms"),
        "kernels_a_layer": result["profile"]["kernels"] / layers / parts,
    }


if __name__ == "__main__":
    rows = []
    for path in sys.argv[2:]:
        for line in Path(path).read_text().splitlines():
            one = json.loads(line)
            if "part" in one:
                rows.append(rounded(one))
            elif one["job"]["id"].startswith("host.") and one["result"]["ok"]:
                rows.append(rounded(step(one["job"], one["result"])))
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n")
