"""The list of packages, the map of their folders, the links and the folders themselves are in step."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = SETTINGS["tool"]["setuptools"]
LINKED = ("solver", "constraints", "hardware", "models")


def folders() -> dict[str, str]:
    """Every package of the tree -> its folder; links are not followed."""
    found = {}
    for top in ("mbsolve", *LINKED):
        for marker in (ROOT / top).rglob("__init__.py"):
            place = marker.parent.relative_to(ROOT)
            if any((ROOT / part).is_symlink() for part in (place, *place.parents)):
                continue
            name = ".".join(place.parts)
            found[name if top == "mbsolve" else f"mbsolve.{name}"] = place.as_posix()
    return found


def test_every_package_is_listed() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(folders())
    assert len(set(SETUPTOOLS["packages"])) == len(SETUPTOOLS["packages"])


def test_packages_at_the_root_are_mapped_to_their_folders() -> None:
    wanted = {n: f for n, f in folders().items() if n == "mbsolve" or not f.startswith("mbsolve/")}
    assert SETUPTOOLS["package-dir"] == wanted


@pytest.mark.parametrize("name", LINKED)
def test_links_point_at_the_folders(name: str) -> None:
    link = ROOT / "mbsolve" / name
    # Without support for links a checkout has a file that holds the target.
    target = str(link.readlink()) if link.is_symlink() else link.read_text(encoding="utf-8").strip()
    assert target == f"../{name}"


def test_every_data_file_is_shipped() -> None:
    for name, folder in folders().items():
        patterns = SETUPTOOLS["package-data"].get(name, [])
        for file in (ROOT / folder).rglob("*"):
            local = file.relative_to(ROOT / folder)
            nested = any((ROOT / folder / parent / "__init__.py").is_file() for parent in local.parents[:-1])
            if not file.is_file() or nested or file.suffix in (".py", ".pyc"):
                continue
            if any(part in LINKED for part in local.parts[:1]) and name == "mbsolve":
                continue
            assert any(fnmatch(PurePosixPath(local).as_posix(), p) for p in patterns), f"{name}: {local}"


def test_every_pattern_of_data_finds_something() -> None:
    for name, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert list((ROOT / folders()[name]).glob(pattern)), f"{name}: {pattern}"
