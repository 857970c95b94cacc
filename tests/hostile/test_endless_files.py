"""Files that are none, never end, or claim to have more than there is: nobody waits for them, and no memory goes."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from runlist.planes.kernel.functions import places
from tests.fixtures.daemon import Commands
from tests.hostile.read_kernel import library

_ROOM = 2 << 30
"""Bytes of address space: ten times what a command needs."""

_PLACES = """
import sys
from pathlib import Path
from runlist.planes.kernel.functions import places
try:
    print(places(Path(sys.argv[1]), ["cuInit"]))
except (ValueError, OSError) as error:
    print(error)
"""


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ROOM, _ROOM))


def looked_up(path: Path) -> str:
    """What a look at a library of somebody's prints."""
    return subprocess.run(
        [sys.executable, "-c", _PLACES, str(path)], capture_output=True, text=True, timeout=60, preexec_fn=bounded,
        check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.strip()  # fmt: skip


def test_a_library_says_where_its_functions_are(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(library(place=0x123))
    assert places(path, ["cuInit", "cuLaunchKernel"]) == {"cuInit": 0x123}


def test_a_library_that_is_none_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "libcuda.so.1"
    os.mkfifo(pipe)
    assert looked_up(pipe) == "it is no file"
    assert looked_up(Path("/dev/zero")) == "it is no file"
    empty = tmp_path / "empty"
    empty.touch()
    assert looked_up(empty) == "it is empty"


@pytest.mark.parametrize("section", [1, 2], ids=["symbols", "names"])
def test_a_library_with_a_table_of_a_tebibyte_takes_no_memory(tmp_path: Path, section: int) -> None:
    data = bytearray(library())
    struct.pack_into("<Q", data, 120 + section * 64 + 32, 1 << 40)
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(data)
    os.truncate(path, 1 << 42)
    assert looked_up(path).startswith("a table of it has ")


@pytest.mark.parametrize("words", [("profile", "import"), ("simulate", "--trace")], ids=["profile", "simulate"])
@pytest.mark.parametrize("name", ["endless.csv", "endless.toml", "endless.json"])
def test_a_file_that_never_ends_is_refused(
    commands: Commands, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    endless = tmp_path / name
    endless.symlink_to("/dev/zero")
    assert str(endless) in commands.fails(2, *words, str(endless), preexec_fn=bounded)
