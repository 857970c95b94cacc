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


def test_a_loader_of_another_version_than_the_daemon_says_so(
    daemon: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another one was installed while the daemon runs: else it would be started again without end."""
    monkeypatch.setattr(messages, "VERSION", messages.VERSION + 1)
    monkeypatch.setattr(loader, "_load", lambda _: pytest.fail("it is loaded"))
    assert loader.main() == 1
    said = messages.answered(daemon.recv(messages.MAX_BYTES))
    assert said == Answer(unable="another version of Runlist was installed meanwhile: start the daemon anew")


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
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic() + 1)  # the machine slept since
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


def types_in(blob: bytes) -> list[tuple[int, str, int, object]]:
    """Kind, name, size and the rest of each type, by <linux/btf.h>."""
    magic, version, flags, head, types_at, types_bytes, names_at, names_bytes = struct.unpack_from("<HBBIIIII", blob)
    assert (magic, version, flags, head, types_at) == (0xEB9F, 1, 0, 24, 0)
    assert names_at == types_bytes
    assert len(blob) == head + types_bytes + names_bytes
    names, at, found = blob[head + names_at :], head, []

    def text(place: int) -> str:
        return names[place : names.index(b"\0", place)].decode()

    while at < head + types_bytes:
        name, info, size = struct.unpack_from("<III", blob, at)
        kind, count, at = info >> 24, info & 0xFFFF, at + 12
        rest: object
        if kind == 1:
            (rest,) = struct.unpack_from("<I", blob, at)
            at += 4
        elif kind == 3:
            rest = struct.unpack_from("<III", blob, at)
            at += 12
        else:
            assert kind == 4
            rest = [
                (text(field), of, place) for field, of, place in struct.iter_unpack("<III", blob[at : at + 12 * count])
            ]
            at += 12 * count
        found.append((kind, text(name), size, rest))
    return found


def test_types_are_whole_in_the_kernels_form() -> None:
    """Integers with their bits, sign and meaning; arrays; structures whose members name them by their numbers."""
    types = Types({"ONE": "small:B 3x first:I name:16s many:3Q signed:i", "NEXT": "short:H"})
    found = types_in(types.blob())
    signed, char = 1 << 24, 2 << 24
    integers = {"unsigned char": (1, 8), "unsigned short": (2, 16), "unsigned int": (4, 32),
                "unsigned long long": (8, 64), "int": (4, signed | 32), "char": (1, char | 8)}  # fmt: skip
    assert {name: (size, rest) for kind, name, size, rest in found if kind == 1} == integers
    number = {name: place for place, (_, name, _, _) in enumerate(found, 1) if name}
    arrays = {place: rest for place, (kind, _, _, rest) in enumerate(found, 1) if kind == 3}
    int_ = number["unsigned int"]
    of_text, of_many = arrays
    assert arrays == {of_text: (number["char"], int_, 16), of_many: (number["unsigned long long"], int_, 3)}
    kind, _, size, members = found[types.ids["ONE"] - 1]
    assert (kind, size) == (4, 52)
    assert members == [
        ("small", number["unsigned char"], 0), ("first", int_, 32), ("name", of_text, 64), ("many", of_many, 192),
        ("signed", number["int"], 384),
    ]  # fmt: skip
    assert found[types.ids["NEXT"] - 1] == (4, "next", 2, [("short", number["unsigned short"], 0)])
    assert (types.ids["u32"], types.ids["u64"]) == (int_, number["unsigned long long"])
