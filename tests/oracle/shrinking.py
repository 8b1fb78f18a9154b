"""The plainest configuration that still differs in the same way: fields are taken back to their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mbsolve.constraints.vocabulary import Settings
from tests.oracle.disagreements import Finding, compare
from tests.oracle.packages import ask
from tests.oracle.requests import request
from tests.oracle.sampling import Sample

Judge = Callable[[Sequence[Sample]], Sequence[Finding]]


def asked(samples: Sequence[Sample]) -> list[Finding]:
    """The findings on some configurations, by the rules and the real packages."""
    answers = ask([request(sample.job, sample.plan) for sample in samples])
    return [compare(sample, answer) for sample, answer in zip(samples, answers, strict=True)]


def shrunk(sample: Sample, kind: str, judge: Judge = asked) -> Sample:
    """A configuration of the same kind of finding that loses it when any one more field is taken back.

    Parameters
    ----------
    judge : gives the finding on each of some configurations; asked once a round.
    """
    while True:
        plainer = list(_plainer(sample))
        found = judge([_without(sample, fields) for fields in plainer]) if plainer else []
        fit = [fields for fields, finding in zip(plainer, found, strict=True) if finding.kind == kind]
        if not fit:
            return sample
        # All at once where that does, else the first.
        together = _without(sample, [name for fields in fit for name in fields])
        whole = len(fit) > 1 and judge([together])[0].kind == kind
        sample = together if whole else _without(sample, fit[0])


def _plainer(sample: Sample) -> Iterator[list[str]]:
    """Names of fields that are not at their defaults."""
    yield from ([name] for name in sample.plan.model_dump(exclude_defaults=True))
    yield from ([name] for name in sample.job.settings.model_dump(exclude_defaults=True))
    if sample.job.precision != "bf16":
        yield ["precision"]


def _without(sample: Sample, names: Sequence[str]) -> Sample:
    job, plan = sample
    defaults = type(plan)().model_dump()
    of_plan = {name: defaults[name] for name in names if name in defaults}
    settings = Settings().model_dump()
    of_settings: dict[str, Any] = {name: settings[name] for name in names if name in settings}
    update: dict[str, Any] = {"settings": job.settings.model_copy(update=of_settings)}
    if "precision" in names:
        update["precision"] = "bf16"
    return Sample(job.model_copy(update=update), plan.model_copy(update=of_plan))
