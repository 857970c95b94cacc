"""What the source distribution has: all that a build, the tests and a reader need."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".ci/", ".github/")
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


def test_it_has_what_the_repository_has(archive: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    with tarfile.open(archive) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {name for name in tracked if not name.startswith(LEFT_OUT)}
    assert wanted <= inside, sorted(wanted - inside)[:10]
    assert not [name for name in inside if name.startswith((*LEFT_OUT, "build/", ".venv/", "dist/"))]


def test_its_metadata_say_what_is_optional(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        (name,) = [name for name in opened.getnames() if name.endswith("/PKG-INFO")]
        text = opened.extractfile(name).read().decode()
    head = text.partition("\n\n")[0].splitlines()
    assert "License-Expression: Apache-2.0" in head
    assert "Description-Content-Type: text/markdown" in head
    needed = [line for line in head if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert needed
    assert not [line for line in needed if "matplotlib" in line or "torch" in line or "grpc" in line]
    assert [line for line in head if line.startswith("Requires-Dist: matplotlib") and "plot" in line]
