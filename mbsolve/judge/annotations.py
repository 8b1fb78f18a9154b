"""Verdicts as annotations of a GitHub workflow: one line for each broken rule, at the file that breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mbsolve.constraints.check import Finding, Verdict, Violation
from mbsolve.judge.cases import Case
from mbsolve.judge.text import repairs_text

__all__ = ["annotate"]

TEXT = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
PROPERTY = (*TEXT, (":", "%3A"), (",", "%2C"))


def annotate(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> str:
    """The lines of all verdicts; empty when there is nothing to say.

    A file with many jobs names the job in the text.
    """
    jobs = Counter(case.file for case in cases)
    lines: list[str] = []
    for case, verdict in zip(cases, verdicts, strict=True):
        name = case.name.removeprefix(f"{case.file}:") if jobs[case.file] > 1 else None
        for level, findings in (("error", verdict.violations), ("warning", verdict.warnings)):
            said = [(one, _title(verdict, one), _mends(verdict, one)) for one in findings]
            lines += _lines(level, case.file, name, said)
    return "".join(f"{line}\n" for line in lines)


def _title(verdict: Verdict, found: Finding) -> str:
    """The rule; of a budget that the defaults exceed, that the verdict rests on values that nobody stated."""
    rests = verdict.leaner
    if rests is None or found.rule not in rests.over:
        return found.rule
    return f"{found.rule}: {verdict.verdict} only with {rests.text}"


def _mends(verdict: Verdict, found: Finding) -> str:
    """What would mend a broken law, in words; empty for a warning."""
    repairs = found.repairs if isinstance(found, Violation) else ()
    return f"; would {repairs_text(verdict, repairs)}" if repairs else ""


def _lines(
    level: str, file: str, job: str | None, findings: Iterable[tuple[Finding, str, str]]
) -> Iterator[str]:
    for found, title, mends in findings:
        because = f"{'' if job is None else f'{job}: '}{found.because}{mends}"
        place = f"file={_escaped(file, PROPERTY)},title={_escaped(title, PROPERTY)}"
        yield f"::{level} {place}::{_escaped(because, TEXT)}"


def _escaped(text: str, signs: Iterable[tuple[str, str]]) -> str:
    for sign, written in signs:
        text = text.replace(sign, written)
    return text
