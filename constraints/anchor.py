"""A measured run of one's own that predictions are scaled by."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Anchor"]


class Anchor(BaseModel):
    """How much longer the steps of a model take on a machine than they are predicted to.

    A constant factor on every step, and so on each of its terms: it changes what is shown, and no order.

    Parameters
    ----------
    factor : measured over predicted step time of the run, above 0.
    by : the file that the run stands in.
    doubts : laws that the run breaks here, though it ran.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = Field(gt=0, allow_inf_nan=False)
    by: str
    doubts: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The factor and where it is from: "anchored: x1.07 by RUN.yaml"."""
        doubts = f", which breaks {', '.join(self.doubts)} here" if self.doubts else ""
        return f"anchored: x{self.factor:.3g} by {self.by}{doubts}"
