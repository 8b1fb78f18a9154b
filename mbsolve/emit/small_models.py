"""Small models of continuous-integration runs, described by the launcher flags that a row keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Unmodelled", "small_model"]


class Unmodelled(Exception):
    """A configuration has something that is not modelled; the message names it."""


def small_model(row: Mapping[str, Any], arch: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dimensions and settings of a small model from its launcher flags.

    Raises
    ------
    Unmodelled
        naming the first thing that is not modelled.
    """
    name = str(row["model"])
    for word, what in (
        ("T5", "an encoder and a decoder"),
        ("BERT", "an encoder"),
        ("MIMO", "several towers"),
    ):
        if word in name:
            raise Unmodelled(f"the model has {what}")
    if arch.get("hybrid_layer_pattern"):
        raise Unmodelled("a small hybrid model whose state sizes are not recorded")
    if arch.get("transformer_impl") != "transformer_engine":
        raise Unmodelled("layers without Transformer Engine are not modelled")
    if arch.get("attention_backend") not in ("flash", "fused"):
        # The default backend is not recorded, and an unfused one keeps the score matrices.
        raise Unmodelled("attention that is not known to be fused is not modelled")
    if arch.get("hidden_dropout") != 0.0 or arch.get("attention_dropout") != 0.0:
        raise Unmodelled("dropout masks are not modelled")
    if "vocab_size" not in arch:
        raise Unmodelled("not recorded: the vocabulary of a small model")
    raise Unmodelled("small models with learned positions are not modelled")
