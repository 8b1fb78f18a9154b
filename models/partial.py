"""A model of which only some dimensions are known: reading an unknown one raises, so nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final

from pydantic import TypeAdapter, ValidationError

from mbsolve.cards import CardError
from mbsolve.faults import wanted
from mbsolve.models.card import Model
from mbsolve.models.kinds import pattern_fault

__all__ = ["PartialModel", "UnknownDimensionError", "partial_model"]


# Fields that a card may leave out only because some kinds of models do not have them.
NEEDED_BY_SOME: Final = (
    *("ffn_hidden_size", "moe_topk", "moe_ffn_hidden_size", "shared_expert_ffn_hidden_size"),
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)


class UnknownDimensionError(LookupError):
    """A dimension was needed that the model does not state; ``field`` names it."""

    def __init__(self, model: str, field: str) -> None:
        super().__init__(f"{field} of {model} is not known")
        self.field = field


class _Unknown:
    """What stands for an unknown dimension inside a model."""

    def __repr__(self) -> str:
        return "unknown"


_UNKNOWN: Final = _Unknown()


class PartialModel(Model):
    """A model with unknown dimensions; see `partial_model`."""

    def __getattribute__(self, name: str) -> Any:
        """The value of a field.

        Raises
        ------
        UnknownDimensionError
            if the field is not known.
        """
        value = super().__getattribute__(name)
        if value is _UNKNOWN:
            raise UnknownDimensionError(super().__getattribute__("__dict__")["name"], name)
        return value

    def without(self, fields: Iterable[str]) -> PartialModel:
        """The same model with some more fields unknown."""
        return self.model_copy(update=dict.fromkeys(fields, _UNKNOWN))

    def __hash__(self) -> int:
        """Hash by name, which is always known."""
        return hash(self.name)


@cache
def _adapter(field: str) -> TypeAdapter[Any]:
    """What checks the value of one field of a model."""
    info = Model.model_fields[field]
    checked: Any = Annotated[info.annotation, info]
    return TypeAdapter(checked)


def partial_model(name: str, known: Mapping[str, Any]) -> PartialModel:
    """A model of which some fields are known.

    Parameters
    ----------
    name
        What the model is called.
    known
        Field -> value. Fields that a card may leave out have their defaults; all others are unknown.

    Raises
    ------
    CardError
        if a value is of a wrong type or out of bounds.
    """
    for field, value in known.items():
        try:
            _adapter(field).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise CardError(f"model {name}: {field} is {first['input']!r}, but {wanted(first)}.") from error
    pattern, layers = known.get("layer_pattern"), known.get("num_layers")
    if pattern is not None and layers is not None:
        fault = pattern_fault(pattern, layers, known.get("mtp_num_layers") or 0)
        if fault is not None:
            raise CardError(f"model {name}: {fault}")
    fields = {field: _UNKNOWN for field, info in Model.model_fields.items() if info.is_required()}
    fields |= {field: _UNKNOWN for field in NEEDED_BY_SOME if field not in known}
    return PartialModel.model_construct(**{**fields, "title": name, **known, "name": name})
