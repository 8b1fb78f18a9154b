"""Reports of users and public threads, and what mbsolve says of them, as tables for the accuracy page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mbsolve.constraints.check import Verdict, broken_laws
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.evaluation import Evaluation
from mbsolve.judge.answers import verdict
from mbsolve.judge.cases import Case, read_cases
from mbsolve.solver.api import solve

DATA = Path(__file__).with_name("data")
REPORTS, THREADS = DATA / "reports.yaml", DATA / "threads.yaml"
GB, GIB = 1e9, 2**30


def measured_bytes(found: Evaluation, metric: str) -> float:
    """What a report's figure is compared with: the state between steps, the allocated peak, or all of the device."""
    if metric == "allocated_after_step":
        return max(s.between_bytes for s in found.stages)
    worst = found.worst_stage
    return worst.peak_allocated_bytes if metric == "max_allocated" else worst.peak_device_bytes


def stated_bytes(expect: dict[str, Any]) -> tuple[float, str, float] | None:
    """The figure of a report: bytes, metric, and the tolerance as a share; None where there is none."""
    memory = expect.get("memory_gb")
    if isinstance(memory, dict) and "value" in memory:
        unit = GIB if memory["unit"] == "GiB" else GB
        return memory["value"] * unit, memory["metric"], memory["tol_pct"] / 100
    if "stage_peak_gib" in expect:
        return max(expect["stage_peak_gib"].values()) * GIB, expect["metric"], expect["tol_pct"] / 100
    return None


def judged(case: Case, report: dict[str, Any], laws: dict[str, list[str]]) -> tuple[str, bool]:
    """What mbsolve says of a report, and whether that is right."""
    expect = report["expect"]
    expect = expect["by_version"]["mcore>=0.16"] if "by_version" in expect else expect
    answer: Verdict = verdict(case)
    said: str = answer.verdict
    word = expect.get("verdict")
    # What failed by the allocator alone fits on paper.
    right = (
        said == word
        or (word == "fits_on_paper" and said == "feasible")
        or (word == "feasible" and said == "undecided" and answer.legal)
        # Some reports say of themselves that they do not judge the memory.
        or (word == "feasible" and "memory not judged" in expect.get("note", "") and answer.legal)
    )
    if word == "infeasible":
        ids = {expect["rule"]} if "rule" in expect else set(laws[expect["constraint"]])
        broken = {v.rule for v in answer.violations}
        right = right and bool(broken & ids)
        said += f" ({', '.join(sorted(broken))})"
    if "fits" in expect:
        right = right and answer.fits is expect["fits"]
    figure = stated_bytes(expect)
    if figure is not None and answer.evaluation is not None:
        wanted, metric, tolerance = figure
        error = measured_bytes(answer.evaluation, metric) / wanted - 1
        right = right and abs(error) <= tolerance
        said += f", memory {error:+.0%} (tolerance {tolerance:.0%})"
    return said, right


def ordered(candidates: list[Case], expect: dict[str, Any]) -> bool:
    """Whether candidates rank by step time and by memory as measured."""
    found = {c.name.split(".")[1]: evaluate(c.job, c.plan) for c in candidates}
    by_time = sorted(found, key=lambda name: found[name].step_seconds)
    by_memory = sorted(found, key=lambda name: found[name].worst_stage.peak_device_bytes)
    return bool(by_time == expect["throughput_order"] and by_memory == expect["memory_order_low_to_high"])


def solved(case: Case, expect: dict[str, Any]) -> tuple[str, bool]:
    """What the solver finds for a job that leaves its configuration free, and whether it answers for every size."""
    said, right = [], True
    for gpus in (case.job.gpus, *expect.get("also_solve_for_gpus", ())):
        job = case.job.model_copy(update={"gpus": gpus})
        outcome = solve(job, top=2, fixed=case.demands)
        plan = outcome.plans[0].plan if outcome.plans else None
        right = right and plan is not None and not broken_laws(job, plan)
        grid = (
            "none" if plan is None else f"tp={plan.tp} cp={plan.cp} pp={plan.pp} ep={plan.ep} etp={plan.etp}"
        )
        said.append(f"{gpus} GPUs: {outcome.status}, {grid}")
    return "; ".join(said), right


def table(file: Path = REPORTS) -> str:
    """Every report of a file, what is expected, what is said, and what a wrong answer waits for."""
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    reports = {report["id"]: report for report in raw["cases"]}
    waiting = any("waits_for" in report for report in reports.values())
    head = ["report", "kind", "expected", "said", "right"] + (["waits for"] if waiting else [])
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    right_ones = 0
    cases = read_cases(file)
    for case in cases:
        report = reports[case.name.split(".")[0]]
        if case.demands is not None:
            said, right = solved(case, report["expect"])
        elif case.skipped is not None:
            said, right = case.skipped, False
        else:
            said, right = judged(case, report, raw.get("rule_ids", {}))
        if report.get("kind") == "rank":
            right = ordered([c for c in cases if c.name.split(".")[0] == report["id"]], report["expect"])
        right_ones += right
        expected = report["expect"].get("verdict") or (
            "by version" if "by_version" in report["expect"] else "order"
        )
        row = [
            f"{case.name} {report['source']}",
            report.get("kind", "check"),
            expected,
            said,
            "yes" if right else "no",
        ]
        if waiting:
            row.append("" if right else report.get("waits_for", ""))
        lines.append(f"| {' | '.join(row)} |")
    return f"{right_ones} of {len(cases)} right.\n\n" + "\n".join(lines)
