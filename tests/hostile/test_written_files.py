"""What root's commands write in a folder of somebody else: nothing gets to where links of theirs lead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist import files
from runlist.errors import ExitCode, NoPermissionError
from runlist.operations.profiles import Store
from tests.fixtures.daemon import NOBODY, Commands, needs_root

pytestmark = needs_root

Write = Callable[[Path], object]


def write_into(path: Path) -> None:
    with open(files.descriptor(path), "wb") as file:
        file.write(b"ours")


WRITE: dict[str, Write] = {"replace": lambda path: files.replace(path, b"ours"), "open": write_into}
every_way = pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of nobody's, beside one of root's."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / "file").write_text("precious")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


def link(path: Path, target: Path | str, owner: int = NOBODY) -> None:
    path.symlink_to(target)
    os.chown(path, owner, owner, follow_symlinks=False)


def is_untouched(theirs: Path) -> bool:
    roots = theirs.parent / "roots"
    return os.listdir(roots) == ["file"] and (roots / "file").read_text() == "precious"


@every_way
@pytest.mark.parametrize("there", [True, False], ids=["file", "new"])
def test_a_file_in_a_strangers_folder_is_written_there(theirs: Path, write: Write, there: bool) -> None:
    if there:
        (theirs / "out").write_text("an older one")
    write(theirs / "out")
    assert (theirs / "out").read_bytes() == b"ours"
    assert os.listdir(theirs) == ["out"]


@every_way
@pytest.mark.parametrize("name", ["file", "none"])
def test_a_strangers_link_is_not_followed(theirs: Path, write: Write, name: str) -> None:
    link(theirs / "out", theirs.parent / "roots" / name)
    link(theirs / "folder", "../roots")
    for path in (theirs / "out", theirs / "folder" / name, theirs / "folder" / "more"):
        with pytest.raises(OSError, match=r"link of user 65534|no regular file"):
            write(path)
    assert is_untouched(theirs)


@every_way
def test_a_folder_that_is_swapped_all_the_time_gets_what_is_written_or_nobody(theirs: Path, write: Write) -> None:
    (theirs / "real").mkdir()
    link(theirs / "link", theirs.parent / "roots")
    (theirs / "now").mkdir()
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for other in ("link", "real"):
                os.rename(theirs / "now", theirs / "spare")
                os.rename(theirs / other, theirs / "now")
                os.rename(theirs / "spare", theirs / other)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(300):
            try:
                write(theirs / "now" / "more")
            except OSError:
                continue
    finally:
        done.set()
        swapping.join()
    assert is_untouched(theirs)


def test_links_of_our_own_are_followed(theirs: Path) -> None:
    link(theirs / "out", theirs.parent / "roots" / "file", owner=0)
    link(theirs / "folder", theirs.parent / "roots", owner=0)
    write_into(theirs / "out")
    assert (theirs.parent / "roots" / "file").read_bytes() == b"ours"
    files.replace(theirs / "folder" / "file", b"anew")
    assert (theirs.parent / "roots" / "file").read_bytes() == b"anew"
    link(theirs / "circle", "circle", owner=0)
    with pytest.raises(OSError, match="levels of symbolic links"):
        write_into(theirs / "circle")


def test_devices_and_pipes_are_written_to_by_their_names(theirs: Path) -> None:
    write_into(Path("/dev/null"))
    reader, writer = os.pipe()
    write_into(Path(f"/dev/fd/{writer}"))
    assert os.read(reader, 9) == b"ours"
    for fd in (reader, writer):
        os.close(fd)


def test_a_trace_goes_to_no_file_that_a_stranger_chose(theirs: Path, commands: Commands) -> None:
    link(theirs / "a.pftrace", theirs.parent / "roots" / "file")
    said = commands.fails(
        ExitCode.USAGE, "trace", "--out", "a.pftrace", "--seconds", "0.01", cwd=theirs
    )  # as in a shell of `sudo`
    assert said == "a.pftrace: a link of user 65534's leads elsewhere: name a file that can be written"
    assert is_untouched(theirs)


def test_profiles_are_kept_in_no_strangers_folder(theirs: Path) -> None:
    """`sudo` may leave HOME as it was."""
    link(theirs / ".lock", theirs.parent / "roots" / "none")
    with pytest.raises(NoPermissionError, match="belongs to somebody else: no profiles can be kept there"):
        Store(theirs).clear("a GPU")
    link(theirs / "profiles", theirs.parent / "roots")
    with pytest.raises(NoPermissionError):
        Store(theirs / "profiles" / "more").clear("a GPU")
    assert is_untouched(theirs)
