"""What a measured row ran, in a form that rows can be compared by."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from mbsolve.constraints.vocabulary import Plan
from mbsolve.judge.cases import Case
from mbsolve.models.card import CardError, Model, load_model
from mbsolve.models.flops import flops_per_token

__all__ = ["Sizes", "model_words", "sizes_of"]

# Fields of a card that say where it is from, and none of its dimensions.
ABOUT: Final = ("title", "sources", "published_params")


class Sizes(BaseModel):
    """What one row ran, for what compares rows.

    Parameters
    ----------
    model : name of the card, with what differs from it.
    gpus, seq_len, gbs : of the job.
    step_flops : model FLOPs of a step in the stack's counting, of all GPUs.
    plan : fields of the plan and of the settings that are not at their defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    gpus: int
    seq_len: int
    gbs: int
    step_flops: float
    plan: dict[str, Any] = {}

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.gbs * self.seq_len


def sizes_of(case: Case) -> Sizes:
    """What a configuration runs."""
    job, usual = case.job, Plan()
    chosen = {name: getattr(case.plan, name) for name in Plan.model_fields}
    changed = {name: value for name, value in chosen.items() if value != getattr(usual, name)}
    return Sizes(
        model=model_words(job.model),
        gpus=job.gpus,
        seq_len=job.seq_len,
        gbs=job.gbs,
        step_flops=flops_per_token(job.model, job.seq_len) * job.seq_len * job.gbs,
        plan=changed | job.settings.model_dump(exclude_defaults=True),
    )


def model_words(model: Model) -> str:
    """The name of a model, with the fields in which it is not the card of that name."""
    try:
        card = load_model(model.name)
    except CardError:
        return model.name
    changed = {
        name: getattr(model, name)
        for name in type(card).model_fields
        if name not in ABOUT and getattr(model, name) != getattr(card, name)
    }
    return f"{model.name} ({', '.join(f'{k}={v}' for k, v in changed.items())})" if changed else model.name
