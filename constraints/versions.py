"""The releases that a target stands for, and whether a law of some releases holds in it."""

from __future__ import annotations

import re
from typing import Final

VERSION: Final = re.compile(r"(?P<package>mcore|bridge) (?P<number>\d+\.\d+(?:\.\d+)?)")

# Package -> release. Where none is given, it is the newest commit, which has everything since and nothing until.
RELEASES: Final[dict[str, dict[str, str]]] = {
    "bridge": {"mcore": "0.20.0"},
    "bridge-0.6": {"mcore": "0.19.2", "bridge": "0.6.2"},
    "megatron-lm": {"mcore": "0.20.0"},
}


def parsed(text: str) -> tuple[str, tuple[int, ...]]:
    """The package and the numbers of a version, as "mcore 0.16".

    Raises
    ------
    ValueError
        if it is spelled otherwise.
    """
    found = VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no version like 'mcore 0.16'")
    return found["package"], tuple(map(int, found["number"].split(".")))


def holds_in(target: str, targets: tuple[str, ...], since: str, until: str) -> bool:
    """Whether a law holds in a target.

    Parameters
    ----------
    targets : those that it is for; empty means all.
    since, until : first and last release with it; empty where none is known. "0.16" means all of 0.16, so that a law
        until it holds in 0.16.3 too.
    """
    if targets and target not in targets:
        return False
    releases = RELEASES[target]
    if since:
        package, first = parsed(since)
        if package in releases and _numbers(releases[package]) < first:
            return False
    if until:
        package, last = parsed(until)
        if package not in releases or _numbers(releases[package])[: len(last)] > last:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
