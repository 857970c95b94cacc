"""Where maps have names: for people, for the next daemon on the same socket, and for nobody who would misuse them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.captured import Captured, of_file
from runlist.planes.interface import Capture
from runlist.planes.kernel import bpf, inheriting
from runlist.planes.kernel.maps import STRUCTURES
from runlist.planes.kernel.names import FOREIGN_S, Names
from runlist.planes.nvidia.capture import CAPTURE
from runlist.protocol.kernel_autogen import Kind, What
from tests.fixtures.daemon import NOBODY
from tests.fixtures.kernel import GROUP, Asking, needs_kernel
from tests.fixtures.node import needs_programs, program

pytestmark = needs_kernel
CLIENT = 0xC1D00077
OURS, THEIRS = "/run/runlist/daemon.sock", "/run/user/1000/runlist/daemon.sock"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """The file system as it is mounted by default: everybody may write."""
    path = tmp_path / "bpf"
    path.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def ended() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def kill(names: Names, file: int, capture: Capture = CAPTURE) -> Path:
    """A daemon that was killed after a group was made: its names, which its loader left."""
    with Captured(names, capture=capture) as kernel:
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        kernel.loaded.close(leave=True)
        kernel.loaded.held, kernel.loaded.maps, kernel.loaded.names = [], {}, None
    return names.folder


@needs_programs("bpftool")
def test_bpftool_shows_the_maps(file: int, mounted: Path) -> None:
    tool = program("bpftool") or ""
    if subprocess.run([tool, "version"], capture_output=True).returncode:
        pytest.skip("this bpftool is a script that lacks the program of the running kernel")
    with Captured(Names(mounted / "runlist", 1, OURS)) as kernel:
        assert kernel.loaded.unpinned == ""
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        words = [tool, "-j", "map", "dump", "pinned", str(mounted / "runlist/1/groups")]
        found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        ours = [entry["formatted"] for entry in found if entry["formatted"]["key"]["pid"] == os.getpid()]
    assert [(one["key"]["object"], one["value"]["fd"], one["value"]["uid"]) for one in ours] == [(0x15, file, 0)]
    assert not (mounted / "runlist/1").exists()


def test_without_a_file_system_for_names_it_works_and_says_so(file: int, tmp_path: Path) -> None:
    with Captured(Names(tmp_path / "runlist", 1, OURS)) as kernel:
        assert kernel.loaded.unpinned.startswith("maps have no names in ")
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert [event.object for event in kernel.take() if event.pid == os.getpid()] == [0x15]


def test_what_a_daemon_left_is_its_successors_alone(file: int, mounted: Path, ended: int) -> None:
    above = mounted / "runlist"
    killed = kill(Names(above, ended, OURS), file)
    assert os.readlink(killed / "socket") == OURS
    ours, theirs = Names(above, os.getpid(), OURS), Names(above, os.getppid(), THEIRS)
    assert (ours.left(), theirs.left()) == (killed, None)
    with Captured(theirs):
        theirs.take_stale_away()
        assert ours.left() == killed  # it began a moment ago: somebody may come for them
    assert [event.what for event in inheriting.made_before(killed) if event.pid == os.getpid()] == [What.MADE]
    with Captured(ours):
        ours.take_stale_away()
        assert [folder.name for folder in above.iterdir()] == [str(os.getpid())]
    assert not list(above.iterdir())


def test_a_process_that_has_its_number_now_is_another(file: int, mounted: Path) -> None:
    above = mounted / "runlist"
    killed = kill(Names(above, os.getppid(), OURS), file)
    successor = Names(above, os.getpid(), OURS)
    assert successor.left() is None  # it runs
    (killed / "began").unlink()
    (killed / "began").symlink_to("1")
    assert successor.left() == killed


def test_what_nobody_comes_for_goes_in_time(
    file: int, mounted: Path, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill(Names(mounted / "runlist", ended, OURS), file)
    later = killed.stat().st_mtime + FOREIGN_S
    monkeypatch.setattr("time.time", lambda: later)
    Names(mounted / "runlist", os.getpid(), THEIRS).take_stale_away()
    assert killed.exists()
    monkeypatch.setattr("time.time", lambda: later + 1)
    Names(mounted / "runlist", os.getpid(), THEIRS).take_stale_away()
    assert not killed.exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_strangers_folder_is_left_alone(mounted: Path, tmp_path: Path, own: bool) -> None:
    """Whoever makes the folder first could have root remove any files, by a link in the place of a daemon's folder."""
    victims = tmp_path / "victims"
    victims.mkdir()
    number = str(os.getpid()) if own else "999999999"
    (victims / "precious").touch()
    above = mounted / "runlist"
    above.mkdir()
    (above / number).symlink_to(victims)
    os.lchown(above / number, NOBODY, NOBODY)
    os.chown(above, NOBODY, NOBODY)
    names = Names(above, os.getpid(), OURS)
    assert names.left() is None
    with Captured(names) as kernel:
        assert kernel.loaded.unpinned == f"maps have no names in {names.folder} ({above} belongs to somebody else)"
        names.take_stale_away()
    names.take_away()
    assert (victims / "precious").exists()
    assert [each.name for each in above.iterdir()] == [number]


def test_who_has_the_number_of_one_that_ended_meanwhile_is_not_it(file: int, mounted: Path, ended: int) -> None:
    """While no programs run, nobody hears that a process ends. Who has its number then would have its groups counted
    for it.
    """
    killed = kill(Names(mounted / "runlist", ended, OURS), file)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as later:  # it ends with its input
        pid, cgroup, owner = later.pid, 77, 5
        record = STRUCTURES["PROCESS"].pack(first_ns=1, groups=3, cgroup=cgroup, owner=owner)
        key = struct.pack("<III", pid, CLIENT, 0x15)
        entered = {
            "processes": (struct.pack("<I", pid), bytes(record)),
            "groups": (key, bytes(STRUCTURES["GROUP"].pack(made_ns=1, owner=owner))),
            "objects": (key, bytes(STRUCTURES["OBJECT"].pack(kind=Kind.GROUP, owner=owner))),
            "files": (struct.pack("<Ii", pid, 9), bytes(STRUCTURES["FILE"].pack(client=CLIENT, owner=owner))),
            "members": (bytes(STRUCTURES["MEMBER_KEY"].pack(cgroup=cgroup, pid=pid)), bytes(8)),
        }
        for name, (each, value) in entered.items():
            fd = bpf.get(str(killed / name))
            bpf.Map(fd, len(each), len(value)).put(each, value)
            os.close(fd)
        made = {event.pid for event in inheriting.made_before(killed)}  # also of other tests that run now
        assert os.getpid() in made
        assert pid not in made
        inheriting.take_out_reused(killed)
        with Captured(Names(mounted / "runlist", os.getpid(), OURS)) as kernel:
            left = [name for name, (each, _) in entered.items() if kernel.map(name).get(each) is not None]
            still = kernel.map("groups").get(struct.pack("<III", os.getpid(), CLIENT, 0x15))
    assert left == []
    assert still is not None


@pytest.mark.parametrize("gone", ["groups", "owners"])
@pytest.mark.parametrize("instead", ["nothing", "a map of another version"])
def test_maps_that_are_not_all_left_are_nobodys(
    answering: Path, file: int, mounted: Path, ended: int, gone: str, instead: str
) -> None:
    """What an owner has would be counted without being there, so that its room is less for ever; or the other way."""
    capture = of_file(answering)
    killed = kill(Names(mounted / "runlist", ended, OURS), file, capture)
    (killed / gone).unlink()
    if instead != "nothing":
        fd = bpf.make_map("other", bpf.MapType.HASH, 4, 4, 1)
        bpf.pin(fd, str(killed / gone))
        os.close(fd)
    assert inheriting.made_before(killed) == []
    with Captured(Names(mounted / "runlist", os.getpid(), OURS), capture=capture) as kernel:
        left = {name: list(kernel.map(name).all_keys()) for name in ("owners", "objects", "groups", "processes")}
    assert left == {"owners": [], "objects": [], "groups": [], "processes": []}
