"""The kernel plane's loader, and what it hands over and leaves, without a kernel: files stand for maps."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from runlist.errors import NotSupportedError, RunlistError
from runlist.planes.interface import Capture
from runlist.planes.kernel import bpf, btf, inheriting, loader, loading, maps, messages
from runlist.planes.kernel.functions import places
from runlist.planes.kernel.messages import Answer
from runlist.planes.kernel.types import Types
from runlist.protocol.kernel_autogen import Kind

WANTED = loading.Wanted(Capture({}, (), {}), 7, 100)


@pytest.fixture
def daemon() -> Iterator[socket.socket]:
    """The daemon's end of what is the loader's standard input, which runs in this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before, interrupt = os.dup(0), signal.getsignal(signal.SIGINT)
    os.dup2(theirs.fileno(), 0)
    theirs.close()
    ours.send(messages.ask(WANTED))
    yield ours
    os.dup2(before, 0)
    os.close(before)
    ours.close()
    signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize("ends_well", [True, False])
def test_the_loader_hands_maps_over_and_leaves_their_names_to_who_comes_after_a_killed_daemon(
    daemon: socket.socket, monkeypatch: pytest.MonkeyPatch, ends_well: bool
) -> None:
    made = {name: os.memfd_create(name) for name in ("spilled", *reversed(messages.SHARED))}
    left: list[bool] = []

    def close(self: loading.Loaded, *, leave: bool = False) -> None:
        left.append(leave)

    def load(wanted: loading.Wanted) -> loading.Loaded:
        assert wanted == WANTED
        return loading.Loaded(made, [], unpinned="no names", lenient="no BPF_LSM")

    monkeypatch.setattr(loading.Loaded, "close", close)
    monkeypatch.setattr(loader, "_load", load)
    if ends_well:
        daemon.send(b".")
    else:
        daemon.shutdown(socket.SHUT_WR)
    assert loader.main() == 0
    assert left == [not ends_well]
    said, fds, _, _ = socket.recv_fds(daemon, messages.MAX_BYTES, 100)
    assert messages.answered(said) == Answer(unpinned="no names", lenient="no BPF_LSM")
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(made[name]).st_ino for name in messages.SHARED]
    for fd in (*fds, *made.values()):
        os.close(fd)


@pytest.mark.parametrize("error", [RunlistError("the kernel is too old"), OSError("the kernel is too old")])
def test_a_loader_that_cannot_says_why(
    daemon: socket.socket, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(_: loading.Wanted) -> loading.Loaded:
        raise error

    monkeypatch.setattr(loader, "_load", load)
    assert loader.main() == 1
    assert messages.answered(daemon.recv(messages.MAX_BYTES)) == Answer(unable="the kernel is too old")


@pytest.mark.parametrize(
    ("hindered", "said"),
    [
        ("no right", "no right"),
        ("", "tracepoints cannot be reached (No such file): mount tracefs, or run the daemon as the machine's root"),
    ],
)
def test_what_hinders_the_loader_is_said_and_nothing_is_loaded(
    daemon: socket.socket, monkeypatch: pytest.MonkeyPatch, hindered: str, said: str
) -> None:
    def no_tracing() -> int:
        raise OSError(2, "No such file")

    monkeypatch.setattr(loading, "read_object", lambda: b"")
    monkeypatch.setattr(loader.rights, "hindered", lambda: hindered)
    monkeypatch.setattr(loader.rights, "open_tracing", no_tracing)
    monkeypatch.setattr(loader.rights, "keep_two", lambda: pytest.fail("rights are given up"))
    monkeypatch.setattr(loading, "load", lambda *_: pytest.fail("it is loaded"))
    assert loader.main() == 1
    assert messages.answered(daemon.recv(messages.MAX_BYTES)) == Answer(unable=said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(12, "Cannot allocate memory"), "the kernel makes no map asked: Cannot allocate memory"),
        (PermissionError(1, "Operation not permitted"), "run the daemon as root"),
    ],
)
def test_a_map_that_cannot_be_made_is_said_and_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    made: list[str] = []

    def make(name: str, *_: object) -> int:
        made.append(name)
        if name == "asked":
            raise error
        return os.memfd_create(name)

    monkeypatch.setattr(bpf, "make_map", make)
    monkeypatch.setattr(bpf, "load_types", lambda _: os.memfd_create("types"))
    monkeypatch.setattr(loading.program, "read", lambda _: ([], b""))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotSupportedError, match=said):
        loading.load(WANTED, b"", -1)
    assert len(os.listdir("/proc/self/fd")) == before
    names = [each.name for each in maps.MAPS]
    assert made == names[: names.index("asked") + 1]


# -- what a daemon left that was killed -------------------------------------------------------------


def packed(structure: str, **fields: int | bytes) -> bytes:
    return bytes(maps.STRUCTURES[structure].pack(**fields))


def key(pid: int, client: int, number: int) -> bytes:
    return packed("OBJECT_KEY", pid=pid, client=client, object=number)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[bytes, bytes]]:
    """The entries of maps that have names in a folder."""
    entries: dict[str, dict[bytes, bytes]] = {each.name: {} for each in maps.MAPS if each.inherited}
    by_fd: dict[int, maps.Described] = {}

    def get(path: str) -> int:
        name = Path(path).name
        if name not in entries:
            raise FileNotFoundError
        fd = os.memfd_create(name)
        by_fd[fd] = next(each for each in maps.MAPS if each.name == name)
        return fd

    def of(one: bpf.Map) -> Mapping[bytes, bytes]:
        return entries[by_fd[one.fd].name]

    monkeypatch.setattr(bpf, "get", get)
    monkeypatch.setattr(bpf, "describe", lambda fd: (by_fd[fd].kind, *by_fd[fd].sizes, by_fd[fd].entries))
    monkeypatch.setattr(bpf.Map, "entries", lambda one: list(of(one).items()))
    monkeypatch.setattr(bpf.Map, "get", lambda one, key: of(one).get(key))
    return entries


def test_what_processes_had_made_is_told_as_of_who_made_it(
    left: dict[str, dict[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is of who made it: of that cgroup, user and name. All else is of its process."""
    me, now_ns = os.getpid(), time.monotonic_ns()
    for pid, first_ns in ((me, now_ns), (1 << 22, now_ns), (os.getppid(), 0)):  # that number had another one before
        left["processes"][struct.pack("<I", pid)] = packed("PROCESS", cgroup=5, first_ns=first_ns, uid=1, name=b"own")
        left["files"][packed("FILE_KEY", pid=pid, fd=9)] = packed("FILE", client=70)
        for number, kind in ((3, Kind.CHANNEL), (2, Kind.GROUP)):
            left["objects"][key(pid, 70, number)] = packed("OBJECT", parent=1, kind=kind)
    left["objects"][key(me, 71, 4)] = packed("OBJECT", parent=1, kind=Kind.GROUP)  # on a file that is closed
    left["groups"][key(me, 70, 2)] = packed("GROUP", cgroup=6, uid=2, name=b"group")
    left["groups"][key(me, 70, 3)] = packed("GROUP", cgroup=7, uid=3, name=b"other")  # not of what is no group
    before = len(os.listdir("/proc/self/fd"))
    made = inheriting.made_before(Path("/left"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert [(each.kind, each.object, each.cgroup, each.uid, each.name, each.fd, each.parent) for each in made] == [
        (Kind.GROUP, 2, 6, 2, "group", 9, 1),
        (Kind.CHANNEL, 3, 5, 1, "own", 9, 1),
    ]
    assert {(each.pid, each.tid, each.client) for each in made} == {(me, me, 70)}
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic() + 1000)  # the machine slept since
    assert [each.object for each in inheriting.made_before(Path("/left"))] == [2, 3]
    del left["groups"][key(me, 70, 2)]
    assert inheriting.made_before(Path("/left"))[0].name == "own"
    del left["groups"]
    assert inheriting.made_before(Path("/left")) == []


# -- types and libraries ----------------------------------------------------------------------------


def test_fields_of_maps_have_their_names_and_places_in_the_kernels_form() -> None:
    types = Types({"ONE": "first:I 4x name:16s last:Q", "OTHER": "4x last:H"})
    wanted = btf.Wanted({"one": ("first", "name", "last"), "other": ("last",)}, ())
    found = btf.read(types.blob(), wanted)
    assert found.places == {"one_first": 0, "one_name": 8, "one_last": 24, "other_last": 4}
    assert types.ids.keys() == {"u32", "u64", "ONE", "OTHER"}


def library(at: Mapping[str, int]) -> bytes:
    """A library with these functions at these addresses. Two parts of it are loaded, one right behind the other."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in at)
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, address in at.items():
        symbols += struct.pack("<IBBHQQ", names.index(b"\0" + name.encode() + b"\0") + 1, 2, 0, 1, address, 1)
    segments = b"".join(
        struct.pack("<IIQQQQQQ", kind, 5, offset, start, start, size, size, 1)
        for kind, offset, start, size in ((4, 0x900, 0x1000, 0x400), (1, 0x100, 0x1000, 0x80), (1, 0x800, 0x1080, 0x80))
    )
    head = 64 + len(segments) + 2 * 64
    sections = struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, head, len(symbols), 1, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, head + len(symbols), len(names), 0, 0, 1, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 64 + len(segments), 0, 64, 56, 3, 64, 2, 0
    )
    return header + segments + sections + symbols + names


def test_a_function_is_in_the_part_of_the_file_that_is_loaded_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "library"
    at = {"first": 0x1000, "last_of_one": 0x107F, "first_of_next": 0x1080, "last": 0x10FF}
    path.write_bytes(library(at).ljust(0x900, b"\0"))
    assert places(path, [*at, "absent"]) == {
        "first": 0x100, "last_of_one": 0x17F, "first_of_next": 0x800, "last": 0x87F,
    }  # fmt: skip
    for address in (0xFFF, 0x1100):
        path.write_bytes(library({"nowhere": address}))
        with pytest.raises(ValueError, match=f"nothing of it is at {address:#x}"):
            places(path, ["nowhere"])
        assert places(path, ["absent"]) == {}
