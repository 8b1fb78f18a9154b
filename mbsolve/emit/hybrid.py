"""The layer pattern of a hybrid model with its pipeline stages marked, as the stack reads it."""

from __future__ import annotations

from mbsolve.constraints.placement import expand_layout


def marked_pattern(pattern: str, layout: str | None) -> str:
    """Return the pattern with ``|`` between the virtual stages of a layout; as it is without one.

    Parameters
    ----------
    pattern
        A layer pattern, MTP parts included.
    layout
        A pipeline layout with one ``t`` for each of its layers.
    """
    if layout is None:
        return pattern
    main, *mtp = pattern.split("/")
    stages, at = [], 0
    for stage in expand_layout(layout):
        size = stage.count("t")
        stages.append(main[at : at + size])
        at += size
    return "/".join(("|".join(stages), *mtp))


def layout_of(pattern: str) -> str:
    """Return the layout that the marks in a pattern say; the inverse of `marked_pattern`, repeats written out."""
    main, *mtp = pattern.split("/")
    stages = ["t" * len(stage) for stage in main.split("|")]
    return "E" + "|".join(stages) + "m" * len(mtp) + "L"
