"""A model of which only some dimensions are known: reading an unknown one raises, so nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mbsolve.models.card import Model

__all__ = ["PartialModel", "UnknownDimensionError", "partial_model"]


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

    def __hash__(self) -> int:
        """Hash by name, which is always known."""
        return hash(self.name)


def partial_model(name: str, known: Mapping[str, Any]) -> PartialModel:
    """A model of which some fields are known.

    Parameters
    ----------
    name
        What the model is called.
    known
        Field -> value. Fields that a card may leave out have their defaults; all others are unknown.
    """
    fields = {field: _UNKNOWN for field, info in Model.model_fields.items() if info.is_required()}
    return PartialModel.model_construct(**{**fields, "title": name, **known, "name": name})
