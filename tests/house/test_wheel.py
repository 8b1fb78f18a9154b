"""The wheel, built through the source distribution, holds everything and nothing but ``mbsolve``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("mbsolve", "solver", "constraints", "hardware", "models", "pyproject.toml", "README.md", "LICENSE")
JUNK = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build in a copy: a build leaves folders behind that a later one would take for sources."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=JUNK)
        else:
            shutil.copy2(ROOT / part, source / part)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_every_file_of_the_tree_is_in_the_wheel(wheel: Path) -> None:
    wanted = {"mbsolve/py.typed"}
    for top in PARTS[:5]:
        prefix = "" if top == "mbsolve" else "mbsolve/"
        for suffix in ("py", "yaml"):
            for file in (ROOT / top).rglob(f"*.{suffix}"):
                place = file.relative_to(ROOT)
                if top != "mbsolve" or not any((ROOT / p).is_symlink() for p in place.parents):
                    wanted.add(prefix + place.as_posix())
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert found == wanted
    assert any(name.startswith("mbsolve/models/data/") for name in found)


def test_nothing_but_mbsolve_reaches_site_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mbsolve"}
    assert len(tops) == 2


def test_licence_and_command_are_declared(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        texts = {n.split("/", 1)[1]: archive.read(n).decode() for n in names(wheel) if ".dist-info/" in n}
    assert texts["licenses/LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "License-Expression: Apache-2.0" in texts["METADATA"]
    assert "mbsolve = mbsolve.cli:main" in texts["entry_points.txt"]


def test_unpacked_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    text = "import mbsolve, sys; from mbsolve.cli import main; print(mbsolve.__file__); sys.exit(main(['models']))"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "mbsolve"))
    assert "dsv3" in done.stdout
