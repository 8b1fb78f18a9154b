"""Turn raw results of `sweep.py` into rows as ``benchmarks/data/probes_more.json`` and ``probes_time.json`` have them.

Usage: ``python rows.py ROWS.json RAW.jsonl...``. Of a job that ran twice the last result counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

SOURCE = (
    "our own measurement, one H200: one rank, collectives faked, megatron-core 0.19.2, transformer-engine 2.20.2, "
    "torch 2.11"
)
TIMES = ("fwd_bwd_ms", "launch_ms", "forward_launch_ms", "optimizer_ms", "fill_ms")


def row(job: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """One row: what was run, and what was seen; GiB are 2^30 bytes."""
    optimizer, config = job.get("opt", {}), job.get("cfg", {})
    graph, model = job.get("graph") or {}, job.get("m", {})
    out: dict[str, Any] = {
        "id": job["id"],
        "model": job["model"],
        "num_layers_override": model.get("num_layers") or job.get("num_layers_override"),
        "dense_first_layers": job.get("dense_first_layers"),
        "mtp_layers": job.get("mtp_layers", 0),
        "layer_pattern": model.get("hybrid_layer_pattern"),
        "linear_attention_freq": model.get("linear_attention_freq"),
        "gpus": job["gpus"],
        "vpp": job.get("vpp"),
        "pp_rank": job.get("pp_rank", 0),
        "seq_len": job["seq_len"],
        "num_microbatches": job["num_microbatches"],
        "fp8": job.get("fp8"),
        "fine_grained_offload_modules": config.get("offload_modules"),
        "optimizer_offload_fraction": optimizer.get("optimizer_offload_fraction"),
        "precision_aware_optimizer": bool(optimizer.get("use_precision_aware_optimizer")),
        "optimizer_fp8_recipe": optimizer.get("fp8_recipe"),
        "grad_dtype": job.get("grad_dtype", "fp32"),
        "main_param_dtype": optimizer.get("main_params_dtype", "fp32"),
        "moment_dtype": optimizer.get("exp_avg_dtype", "fp32"),
        "store_param_remainders": optimizer.get("store_param_remainders"),
        "cuda_graph_impl": graph.get("impl"),
        "cuda_graph_scope": graph.get("modules"),
        "cp_comm_type": config.get("cp_comm_type"),
        "dispatcher": config.get("moe_token_dispatcher_type"),
        "ep_overlap": config.get("overlap_moe_expert_parallel_comm"),
        "delay_wgrad": config.get("delay_wgrad_compute"),
        "initialised": job.get("initialise", True),
        "collectives_filled": job.get("fill", True),
        "moe_permute_fusion": config.get("moe_permute_fusion"),
        "apply_rope_fusion": config.get("apply_rope_fusion"),
        "expandable_segments": False if "alloc_conf" in job else None,
        "activation_offload_fraction": config.get("activation_offload_fraction"),
        "hardware": "h200",
        "source": SOURCE,
    }
    out |= {name: job.get(name, 1) for name in ("tp", "pp", "cp", "ep", "etp", "mbs")}
    out |= {name: config.get(name) for name in config if name.startswith("recompute_")}
    out |= seen(job, result) if result["ok"] else {"outcome": result["err"][:200]}
    return {name: value for name, value in out.items() if value is not None}


def seen(job: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """What a run measured: memory of its last step, times of those after the first three.

    The step that a profile slowed down is not among them.
    """
    profile, capture = result.get("profile"), result.get("capture")
    steps = result["steps"][:-1] if profile else result["steps"]
    last, steady = steps[-1], steps[3:] if len(steps) > 4 else steps[-1:]
    times = TIMES if job.get("timed") else ()
    for step in steps:
        step["fill_ms"] = step.get("fill", {}).get("ms")
    return {
        "params_this_rank": result["params"],
        "expert_params_this_rank": result["expert_params"],
        "weights_gib": result["weights"],
        "before_first_step_gib": result["static"],
        "between_steps_gib": last["after"],
        "peak_allocated_gib": max(last["pass_peak"], last["optimizer_peak"]),
        "peak_reserved_gib": result["reserved_peak"],
        "reserved_between_steps_gib": last["reserved"],
        "first_step_peak_gib": steps[0]["pass_peak"],
        "optimizer_peak_gib": last["optimizer_peak"],
        "first_optimizer_peak_gib": steps[0]["optimizer_peak"],
        "before_optimizer_gib": last["before_optimizer"],
        "optimizer_state_gib": result["optimizer_state"],
        "capture": capture and {name: capture[name] for name in ("seconds", "allocated", "peak")},
        "host_pinned_gib": result.get("host_allocated_peak") or None,
        "offloaded_bytes_a_microbatch": result.get("offloaded_bytes") or None,
        "host": result.get("host") if job.get("opt", {}).get("optimizer_cpu_offload") else None,
        "profile": profile and profile_of(profile),
        "outcome": "ok",
        "inherited_gib": 0,
        "clocks": result.get("clocks"),
        "kernel_names": profile
        and job.get("timed")
        and {name: profile["top"][name] for name in list(profile["top"])[:25]},
        **{
            name: round(median(step[name] for step in steady), 2)
            for name in times
            if steady[0].get(name) is not None
        },
    }


def profile_of(raw: dict[str, Any]) -> dict[str, Any]:
    """Kernels of a profiled step by kind, and the calls of the host that took more than 0.3 ms in all."""
    out = {name: raw[name] for name in ("kernels", "kernel_ms", "busy_ms", "by_kind")}
    return {**out, "host_calls": {name: call for name, call in raw["api"].items() if call[1] > 0.3}}


if __name__ == "__main__":
    found = {}
    for path in sys.argv[2:]:
        for line in Path(path).read_text().splitlines():
            one = json.loads(line)
            found[one["job"]["id"]] = row(one["job"], one["result"])
    lines = ",\n".join(json.dumps(found[name]) for name in sorted(found))
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n")
