"""An outcome as text for a terminal or a file: plain characters, no colour, made for 80 to 120 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from mbsolve.constraints.error_bars import never_timed
from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import Plan, Settings
from mbsolve.report import words
from mbsolve.report.sections import memory_lines, plain, section, subject, time_lines, wrap
from mbsolve.report.ties import tie_text
from mbsolve.solver.outcome import Hint, Outcome, Ranked

JOB_OPTIONS = {"gpus": "gpus", "seq_len": "seq", "gbs": "gbs", "gpus_per_node": "gpus-per-node"} | {
    "precision": "precision",
    "block_gpus": "block",
    "margin": "margin",
    "target": "target",
}


def render(
    job: Job,
    outcome: Outcome,
    *,
    width: int = 100,
    reasons: Sequence[str] = (),
    run: Sequence[str] = (),
) -> str:
    """The whole report of a solve.

    Parameters
    ----------
    width : columns, 80 or more for the table to stay whole.
    reasons : sentences on why the best plan is as it is (`report.why.reasons`).
    run : lines that launch the best plan (`emit.launch.command`); printed as they are.
    """
    parts = ["\n".join(_headline(job, outcome, width))]
    best = outcome.best
    if best:
        parts += [
            _table(outcome.plans, width),
            wrap(tie_text(outcome.plans, ordered=outcome.objective == "time"), width, "", "  "),
            section("Time", time_lines(best.evaluation, width), width),
            section("Memory", memory_lines(job, best.evaluation, width), width),
            section("Plan 1", _decisions(job, best), width),
            section("Why", [f"- {text}" for text in reasons], width),
            section("Other plans", [_difference(best, other) for other in outcome.plans[1:]], width),
        ]
    elif outcome.status == "INFEASIBLE":
        parts.append(_explanation(job, outcome, width))
    parts += [_assumed(outcome, width), section("Notes", _notes(job, outcome), width)]
    if best and run:
        parts.append("\n".join(["Run it:", *(f"  {line}" for line in run)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(job: Job, outcome: Outcome, width: int) -> list[str]:
    return [wrap(subject(job), width), wrap(f"{outcome.status}: {_status(outcome)}", width)]


def _status(outcome: Outcome) -> str:
    space = words.number(outcome.statistics.raw_space)
    among = f" among {space} configurations" if outcome.statistics.raw_space else ""
    if outcome.status == "OPTIMAL":
        goal = "no plan is faster" if outcome.objective == "time" else "no plan needs less memory"
        return f"proven for the cost model, {goal}{among}"
    if outcome.status == "FEASIBLE":
        return f"the search stopped before the proof{_gap(outcome)}"
    if outcome.status == "INFEASIBLE":
        return f"proven, no plan{among}"
    return "time ran out before a plan was found; this does not mean that there is none"


def _gap(outcome: Outcome) -> str:
    best = outcome.best
    if best and outcome.objective == "time" and outcome.bound_seconds:
        gap = best.evaluation.step_seconds / outcome.bound_seconds - 1
        return f"; no plan can be faster than {words.seconds(outcome.bound_seconds)} (gap {max(gap, 0):.1%})"
    if best and outcome.objective == "memory" and outcome.bound_bytes:
        return f"; no plan can need less than {words.gib(outcome.bound_bytes)} GiB"
    return ""


def _table(plans: Sequence[Ranked], width: int) -> str:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    heads = (
        "#\n",
        "TPxCPx\nDPxPP",
        "ETPxEPx\nEDPxPP",
        "VPP\n",
        "micro-\nbatch",
        "step\n",
        "tokens\n/s/GPU",
        "TFLOP\n/s/GPU",
        "used\nGiB",
        "free\nGiB",
        "host GiB\n/node",
    )
    for index, head in enumerate(heads):
        left = index in (1, 2)
        table.add_column(Text(head), justify="left" if left else "right", no_wrap=True)
    for ranked in plans:
        e = ranked.evaluation
        cells = (
            str(ranked.rank),
            words.grid(e.grids.dense),
            words.grid(e.grids.expert),
            str(ranked.plan.vpp),
            str(ranked.plan.mbs),
            words.seconds(e.step_seconds),
            f"{e.tokens_per_second_per_gpu:.0f}",
            f"{e.tflops_per_gpu:.0f}",
            words.gib(e.worst_stage.peak_device_bytes),
            words.gib(e.headroom_bytes),
            words.gib(e.host_bytes_per_node),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return plain(table, width)


def _decisions(job: Job, ranked: Ranked) -> list[str]:
    plan, e = ranked.plan, ranked.evaluation
    overlap = words.word(plan.ep_overlap) + (", with delayed wgrad" if plan.delay_wgrad else "")
    experts = [("dispatcher", plan.dispatcher), ("EP overlap", overlap)] if job.model.is_moe else []
    rows = [
        ("sequence parallelism", words.word(plan.sequence_parallel)),
        ("layers", words.layout(plan)),
        *experts,
        ("recompute", words.recompute(plan)),
        ("offload", words.offload(plan, e)),
        ("CUDA graphs", words.graphs(plan)),
        ("precision-aware optimizer", words.word(plan.precision_aware_optimizer)),
    ]
    return [f"{name}: {text}" for name, text in rows]


def _difference(best: Ranked, other: Ranked) -> str:
    names = other.differs_from_best or tuple(
        name for name in Plan.model_fields if getattr(best.plan, name) != getattr(other.plan, name)
    )
    parts = [
        f"{words.decision(name)} {words.word(words.value_of(other.plan, name))} "
        f"(not {words.word(words.value_of(best.plan, name))})"
        for name in names
    ]
    old, new = best.evaluation, other.evaluation
    more = new.worst_stage.peak_device_bytes - old.worst_stage.peak_device_bytes
    cost = f"{words.change(new.step_seconds, old.step_seconds)} time{', a tie' if other.tie_with_best else ''}, {more / words.GIB:+.1f} GiB"
    return f"{other.rank}: {cost}: {'; '.join(parts) or 'the same decisions'}"


def _explanation(job: Job, outcome: Outcome, width: int) -> str:
    explanation = outcome.explanation
    if explanation is None:
        return "No plan: the rules and the memory of the machine leave none."
    lines = [
        wrap(f"No plan: {job.model.name} at {job.seq_len} tokens on {job.gpus} {job.machine.name}.", width)
    ]
    demands = [cause.text for cause in explanation.causes if cause.rule.startswith("demand")]
    clauses = [(_listed(demands), "demand" if len(demands) == 1 else "demands")] if demands else []
    clauses += [(c.text.rstrip("."), c.rule) for c in explanation.causes if not c.rule.startswith("demand")]
    for index, (text, name) in enumerate(clauses):
        lines.append(wrap(f"{'and' if index else 'Because'} {text}  [{name}]", width, "  ", "    "))
    if explanation.hints:
        lines += ["", "What would help:"]
        lines += [wrap(f"- {hint_text(hint)}", width, "  ", "    ") for hint in explanation.hints]
    if explanation.tried:
        lines += ["", wrap(f"Tried, and no plan either: {'; '.join(explanation.tried)}.", width)]
    if explanation.unsettled:
        lines += ["", wrap(f"Not settled, too much work: {'; '.join(explanation.unsettled)}.", width)]
    return "\n".join(lines)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def hint_text(hint: Hint) -> str:
    """A hint with the options that follow it."""
    options = " ".join(_option(name, value) for name, value in hint.set.items())
    return f"{hint.text.rstrip('.')}: {options}" if options and options not in hint.text else hint.text


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        spelled = str(value).lower()
    elif isinstance(value, list | tuple):
        spelled = f"[{','.join(str(item) for item in value)}]"
    else:
        spelled = "none" if value is None else str(value)
    if name in JOB_OPTIONS:
        return f"--{JOB_OPTIONS[name]} {spelled}"
    return f"--{'set' if name in Settings.model_fields else 'fix'} {name}={spelled}"


def _assumed(outcome: Outcome, width: int) -> str:
    if not outcome.assumed:
        return ""
    text = ", ".join(f"{name}={words.word(value)}" for name, value in outcome.assumed.items())
    return "\n".join(["Assumed:", wrap(text, width, "  ")])


def _notes(job: Job, outcome: Outcome) -> list[str]:
    best = outcome.best
    if not best:
        return []
    bar = best.evaluation.error_bar
    out = [f"- step times are estimates; expect them within {bar:.0%} of a measured step"]
    never = never_timed(job)
    if never is not None:
        out.append(f"- {never}")
    if 0 < outcome.proven < len(outcome.plans):
        out.append(f"- the ranking is proven up to plan {outcome.proven}")
    if job.target == "megatron-lm":
        out.append(
            "- no card has what DATA_TOKENIZER_AND_SCHEDULE stands for below, the base and the scaling of a rotary "
            "embedding, or the weights of a router's losses: add them"
        )
    return out
