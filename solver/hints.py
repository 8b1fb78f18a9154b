"""The nearest changes that give an infeasible job a plan: each was solved, and says what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mbsolve.constraints.demands import DemandError, narrow, pertinent
from mbsolve.constraints.domains import domains
from mbsolve.constraints.evaluate import evaluate
from mbsolve.constraints.job import Job, derive
from mbsolve.hardware.card import PRECISION_CLASS
from mbsolve.solver.conflict import BUDGETS, MOST_WORK, Conflict, has_plan, logic_of
from mbsolve.solver.found import Found, Objective, OutOfTime
from mbsolve.solver.outcome import Hint
from mbsolve.solver.search import Search

__all__ = ["MOST_SHAPES", "Say", "hints"]

Say = Callable[[str], None] | None

GIB = 2**30
# Shapes among which a plan is looked for: a job far too large has tens of thousands that are nearly as lean.
MOST_SHAPES = 4000
# Tokens below which a shorter sequence is no proposal.
SHORTEST = 1024
# Seconds from which a time is given in whole ones.
LONG = 100
# How far the GPUs are doubled.
DOUBLINGS = 5


@dataclass(frozen=True)
class _Asked:
    """What was asked, and how to ask for something near it."""

    job: Job
    objective: Objective
    fixed: Mapping[str, Any]
    forbid: Sequence[str]
    conflict: Conflict
    say: Say

    def solve(self, change: Mapping[str, Any]) -> Found | None:
        """The best plan of the job with some of its fields changed, or the best one known after much work.

        Raises
        ------
        OutOfTime
            when no plan is known by then.
        """
        if change and self.still(change):
            return None
        if self.say is not None:
            self.say(f"explaining: {', '.join(f'{k}={v}' for k, v in change.items()) or 'one demand less'}")
        job, forbid = self.near(change)
        try:
            demands = narrow(domains(job), self.fixed, forbid)
        except DemandError:
            return None
        search = Search(job, demands, self.objective, most_work=MOST_WORK)
        try:
            return None if search.pool.empty else search.best([])
        except OutOfTime:
            found = search.incumbent()
            if found is None:
                raise
            return found

    def near(self, change: Mapping[str, Any]) -> tuple[Job, tuple[str, ...]]:
        """The job with some of its fields changed, and what of the forbidden values it could have."""
        job = self.job.model_copy(update=change)
        return job, pertinent(domains(job), self.forbid)

    def still(self, change: Mapping[str, Any]) -> bool:
        """Whether the rules and demands of the conflict are one with some fields of the job changed, too."""
        if not self.conflict.rules:
            return False
        job = self.job.model_copy(update=change)
        forbid = pertinent(domains(job), self.conflict.forbid)
        try:
            logic = logic_of(job, self.conflict.fixed, forbid, self.conflict.rules)
        except DemandError:
            return True
        return not logic.together(logic.members)

    def possible(self) -> bool:
        """Whether there is a plan."""
        return has_plan(self.job, self.fixed, self.forbid, BUDGETS)

    def seen(self, change: Mapping[str, Any]) -> bool:
        """Whether a change is seen to give a plan, without looking far."""
        job, forbid = self.near(change)
        try:
            return has_plan(job, self.fixed, forbid, BUDGETS, MOST_SHAPES)
        except (OutOfTime, DemandError):
            return False

    @property
    def members(self) -> list[str]:
        """All demands, as `without` takes them."""
        return [*self.fixed, *(f"--forbid {text}" for text in self.forbid)]

    def without(self, members: Sequence[str]) -> _Asked:
        """The same without some demands: names of decisions, or ``--forbid TEXT``."""
        return replace(
            self,
            fixed={k: v for k, v in self.fixed.items() if k not in members},
            forbid=[text for text in self.forbid if f"--forbid {text}" not in members],
        )

    def cost(self, found: Found, change: Mapping[str, Any] | None = None) -> str:
        """What a plan takes, in words."""
        e = evaluate(self.job.model_copy(update=change or {}), found.plan)
        seconds = f"{e.step_seconds:.0f}" if e.step_seconds >= LONG else f"{e.step_seconds:.3g}"
        return f"{'' if found.proven else 'at most '}{seconds} s a step, {e.worst_stage.peak_device_bytes / GIB:.1f} GiB"


def hints(
    job: Job,
    objective: Objective,
    fixed: Mapping[str, Any],
    forbid: Sequence[str],
    conflict: Conflict,
    say: Say = None,
) -> tuple[list[Hint], list[str], list[str]]:
    """Single changes that give a plan, the nearest of each kind; those that were tried and do not; what was left open."""
    asked = _Asked(job, objective, fixed, forbid, conflict, say)
    out, tried, unsettled = list[Hint](), list[str](), list[str]()
    kinds = {
        "fewer demands": _demands,
        "another precision": _precisions,
        "more GPUs": _gpus,
        "a larger batch": _batch,
        "another length": _length,
    }
    for name, kind in kinds.items():
        try:
            for text, hint in kind(asked):
                if hint is None:
                    tried.append(text)
                else:
                    out.append(hint)
        except OutOfTime:
            unsettled.append(name)
    return out, tried, unsettled


Tried = Iterator[tuple[str, Hint | None]]


def _demands(asked: _Asked) -> Tried:
    """Each demand of the conflict left out; where none is enough, as few demands as are."""
    members = [*asked.conflict.fixed, *(f"--forbid {text}" for text in asked.conflict.forbid)]
    works = False
    for member in members:
        rest = asked.without([member])
        found = rest.solve({})
        works = works or found is not None
        yield _told([member]), _relaxed(rest, [member], found)
    if works or len(asked.members) <= 1 or not asked.without(asked.members).possible():
        return
    gone = _needless(asked)
    rest = asked.without(gone)
    yield _told(gone), _relaxed(rest, gone, rest.solve({}))


def _needless(asked: _Asked) -> list[str]:
    """Demands without which there is a plan, none of which could stay; there is one without all of them."""
    gone = asked.members
    for member in asked.members:
        fewer = [name for name in gone if name != member]
        gone = fewer if asked.without(fewer).possible() else gone
    return gone


def _told(members: Sequence[str]) -> str:
    fixed = [name for name in members if not name.startswith("--")]
    words = [f"fixing {', '.join(fixed)}"] if fixed else []
    return f"without {' and '.join([*words, *(name for name in members if name.startswith('--'))])}"


def _relaxed(asked: _Asked, members: Sequence[str], found: Found | None) -> Hint | None:
    """The plan without some demands, and what their decisions are in it."""
    if found is None:
        return None
    sizes = {**found.values, **derive(asked.job, found.values), **found.plan.model_dump()}
    values = {name: sizes[name] for name in members if name in sizes}
    return Hint(set=values, text=f"{_told(members)}: {asked.cost(found)}")


def _precisions(asked: _Asked) -> Tried:
    """The other precisions of the machine; where memory is in the way, one of each width, since like ones need alike."""
    widths = {PRECISION_CLASS[asked.job.precision]}
    for precision in asked.job.machine.supported_precisions:
        width = PRECISION_CLASS[precision]
        if precision == asked.job.precision or (asked.conflict.budgets and width in widths):
            continue
        widths.add(width)
        change = {"precision": precision}
        found = asked.solve(change)
        if found is not None:
            yield precision, Hint(set=change, text=f"in {precision}: {asked.cost(found, change)}")
            return
        if asked.conflict.budgets:
            yield f"--precision {precision}", None


def _gpus(asked: _Asked) -> Tried:
    """The fewest GPUs that are seen to give a plan: doubled until they do, then bisected.

    Beyond one node whole ones are taken.
    """
    node, below = asked.job.gpus_per_node, asked.job.gpus
    inside = [below * 2**i for i in range(1, DOUBLINGS) if below * 2**i < node]
    nodes = [-(-below // node) * node * 2**i for i in range(DOUBLINGS + 1)]
    for doubled in (size for size in (*inside, *nodes) if size > below):
        found = asked.solve({"gpus": doubled})
        if found is None:
            below = doubled
            continue
        gpus, step = doubled, node if doubled > node else 1
        while (middle := (below + gpus) // 2 // step * step) > below:
            below, gpus = (below, middle) if asked.seen({"gpus": middle}) else (middle, gpus)
        found = asked.solve({"gpus": gpus}) if gpus < doubled else found
        if found is not None:
            text = f"with {gpus} GPUs: {asked.cost(found, {'gpus': gpus})}"
            yield f"{gpus} GPUs", Hint(set={"gpus": gpus}, text=text)
            return
    yield from _gpus_and_demands(asked)
    yield f"doubling to {below} GPUs", None


def _gpus_and_demands(asked: _Asked) -> Tried:
    """More GPUs without some demands, where demands that are no part of the conflict are in the way."""
    beside = set(asked.members) - {*asked.conflict.fixed, *(f"--forbid {t}" for t in asked.conflict.forbid)}
    if not beside or not asked.conflict.budgets:
        return
    for gpus in (2 * asked.job.gpus, 4 * asked.job.gpus):
        job, forbid = asked.near({"gpus": gpus})
        larger = replace(asked, job=job, forbid=forbid)
        if larger.without(larger.members).possible():
            gone = _needless(larger)
            rest = larger.without(gone)
            hint = _relaxed(rest, gone, rest.solve({}))
            if hint is not None:
                text = f"with {gpus} GPUs, {hint.text}"
                yield text, Hint(set={"gpus": gpus, **hint.set}, text=text)
                return


def _batch(asked: _Asked) -> Tried:
    """Twice the sequences of a step, and twice that, where rules are in the way."""
    if asked.conflict.budgets:
        return
    for factor in (2, 4, 8):
        change = {"gbs": asked.job.gbs * factor}
        found = asked.solve(change)
        if found is not None:
            text = f"with a global batch of {change['gbs']}: {asked.cost(found, change)}"
            yield text, Hint(set=change, text=text)
            return


def _length(asked: _Asked) -> Tried:
    """Where memory is in the way, half the sequence length and half of that; else the next whole multiple of 1,024.

    The tokens of a step are kept, as nearly as whole sequences can.
    """
    job = asked.job
    lengths = [-(-job.seq_len // SHORTEST) * SHORTEST]
    if asked.conflict.budgets:
        lengths = [job.seq_len // f for f in (2, 4) if not job.seq_len % f and job.seq_len // f >= SHORTEST]
    for length in (n for n in lengths if n != job.seq_len):
        change = {"seq_len": length, "gbs": max(1, job.gbs * job.seq_len // length)}
        found = asked.solve(change)
        if found is not None:
            text = f"with sequences of {length} tokens: {asked.cost(found, change)}"
            yield text, Hint(set={"seq_len": length}, text=text)
            return
    if asked.conflict.budgets and lengths:
        yield f"sequences of {lengths[-1]} tokens", None
