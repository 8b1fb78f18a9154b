"""Rules of some releases hold in the targets that stand for them, and in no other."""

from __future__ import annotations

import pytest

from mbsolve.constraints.rule import Normalisation, Rule
from mbsolve.constraints.rules.catalogue import CANONICAL, RULES
from mbsolve.constraints.rules.normalisations import NORMALISATIONS
from mbsolve.constraints.versions import RELEASES, holds_in, parsed
from mbsolve.constraints.vocabulary import TARGETS

LAWS: tuple[Rule | Normalisation, ...] = (*RULES, *NORMALISATIONS)
BOUNDED = [law for law in LAWS if law.since or law.until]


def test_every_target_has_its_releases() -> None:
    assert set(RELEASES) == set(TARGETS)
    for releases in RELEASES.values():
        assert all(parsed(f"{package} {number}") for package, number in releases.items())


@pytest.mark.parametrize("law", BOUNDED, ids=lambda law: law.id)
def test_versions_are_well_formed_and_in_order(law: Rule | Normalisation) -> None:
    bounds = [parsed(text) for text in (law.since, law.until) if text]
    assert bounds == sorted(bounds) and len({package for package, _ in bounds}) == 1


def test_some_laws_are_of_some_releases() -> None:
    assert {law.id for law in BOUNDED} >= {"query-groups-vs-tp", "cg-whole-layer-moe"}


def test_every_law_holds_somewhere_and_names_targets() -> None:
    for law in LAWS:
        assert set(law.targets) <= set(TARGETS)
        assert any(law.holds_for(target) for target in TARGETS), law.id
    assert all(rule.holds_for(target) for rule in CANONICAL for target in TARGETS)


@pytest.mark.parametrize("law", BOUNDED, ids=lambda law: law.id)
def test_a_law_of_other_releases_does_not_hold_in_a_target(law: Rule | Normalisation) -> None:
    for target in TARGETS:
        mine = {package: parsed(f"{package} {number}")[1] for package, number in RELEASES[target].items()}
        if law.since and parsed(law.since)[1] > mine.get(parsed(law.since)[0], (99,)):
            assert not law.holds_for(target)
        if law.until and parsed(law.until)[1] < mine.get(parsed(law.until)[0], (99,))[:2]:
            assert not law.holds_for(target)


@pytest.mark.parametrize(
    ("since", "until", "where"),
    [
        ("", "", TARGETS),
        ("mcore 0.16", "", TARGETS),
        ("mcore 0.19.2", "", TARGETS),
        ("mcore 0.20", "", ("bridge", "megatron-lm")),
        ("", "mcore 0.19", ("bridge-0.6",)),
        ("", "mcore 0.19.1", ()),
        ("mcore 0.17", "mcore 0.18", ()),
        ("bridge 0.7", "", ("bridge", "megatron-lm")),
        ("", "bridge 0.6", ("bridge-0.6",)),
    ],
)
def test_bounds(since: str, until: str, where: tuple[str, ...]) -> None:
    assert tuple(target for target in TARGETS if holds_in(target, (), since, until)) == where
    assert not holds_in("bridge", ("megatron-lm",), since, until)


@pytest.mark.parametrize(
    "text", ["0.16", "mcore 16", "mcore v0.16", "mcore 0.16 ", "core 0.16", "mcore >=0.16"]
)
def test_odd_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no version"):
        parsed(text)
