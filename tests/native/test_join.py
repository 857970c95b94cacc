"""Lending from inside: a process hands the daemon its control descriptor."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runlist.daemon.requests.messages import Kind
from runlist.tenant import MAGIC, RECORD, VERSION
from tests.fixtures.compiler import compiler
from tests.fixtures.daemon import NOBODY, needs_root, short_path
from tests.fixtures.ear import Ear

__all__ = ["short_path"]

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
SOURCES = (HERE / "joiner.cpp", NATIVE / "tenant/join.cpp", NATIVE / "tenant/link.cpp")
CLIENT = 0xC1D0_0042


class Joined(NamedTuple):
    """How it went, seen from inside."""

    pid: int
    error: int
    before: int
    after: int
    nanoseconds: int
    processor_ns: int


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """Built once, where every user can run it."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    folder.chmod(0o755)
    built = folder / "joiner"
    words = ["-std=c++20", "-O1", "-fno-exceptions", "-fno-rtti", f"-I{NATIVE}", f"-I{NATIVE.parent}"]
    words += [*map(str, SOURCES), "-o", str(built)]
    done = subprocess.run(
        [*compiler("CXX", ("c++", "g++", "clang++", "zig-c++")), *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    yield built
    shutil.rmtree(folder)


def join(
    program: Path, messages: Path | None, *words: object, more: dict[str, str] | None = None, **options: Any
) -> Joined:
    """Run it; errno and its descriptors stay."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RUNLIST_", "XDG_"))}
    if messages is not None:
        environment["RUNLIST_MESSAGES"] = str(messages)
    environment.update(more or {})
    process = subprocess.Popen(
        [program, str(CLIENT), *map(str, words)], stdout=subprocess.PIPE, text=True, env=environment, **options
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    joined = Joined(process.pid, *map(int, out.split()))
    assert joined.error == 77, "errno was touched"
    assert joined.before == joined.after, "a descriptor was left open"
    return joined


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """What stands for the control file and for the region."""
    control, region = tmp_path / "control", tmp_path / "region"
    control.write_text("control")
    region.write_text("region")
    return control, region


def is_file(fd: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(fd), path.stat())


@pytest.mark.parametrize("count", [1, 2])
def test_the_daemon_gets_copies_of_the_descriptors(
    short_path: Path, program: Path, files: tuple[Path, Path], count: int
) -> None:
    with Ear(short_path / "messages.sock") as ear:
        joined = join(program, ear.path, *files[:count])
        heard = ear.next()
        assert (heard.pid, heard.uid) == (joined.pid, os.getuid())  # the kernel's word, not the message's
        assert (heard.message.kind, heard.message.nanoseconds, heard.message.priority) == (Kind.JOIN, CLIENT, 0)
        assert len(heard.message.descriptors) == count
        for fd, path in zip(heard.message.descriptors, files, strict=False):
            assert is_file(fd, path)
            os.close(fd)
        assert not ear.messages.dropped


def test_the_record_on_the_wire(short_path: Path, program: Path, files: tuple[Path, Path]) -> None:
    path = short_path / "raw.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        raw.bind(str(path))
        raw.settimeout(60)
        join(program, path, *files)
        record, descriptors, _, _ = socket.recv_fds(raw, 100, 10)
        for fd in descriptors:
            os.close(fd)
        assert record == RECORD.pack(MAGIC, VERSION, Kind.JOIN, 0, 0, CLIENT, 0)
        assert len(descriptors) == 2


def test_a_descriptor_that_is_none_is_not_sent(short_path: Path, program: Path, files: tuple[Path, Path]) -> None:
    with Ear(short_path / "messages.sock") as ear:
        join(program, ear.path, 190)
        join(program, ear.path, files[0], 190)
        joined = join(program, ear.path, files[0])
        heard = ear.next()
        assert heard.pid == joined.pid
        os.close(heard.message.descriptors[0])


@pytest.mark.parametrize("messages", [None, "/nowhere/messages.sock", "x" * 200, "/"])
def test_without_a_daemon_it_costs_microseconds(program: Path, files: tuple[Path, Path], messages: str | None) -> None:
    path = Path(messages) if messages is not None else None
    best = min(join(program, path, *files, 1000).processor_ns for _ in range(3))
    assert best < 100_000


def test_a_daemon_that_is_stopped_is_waited_for_once_and_shortly(
    short_path: Path, program: Path, files: tuple[Path, Path]
) -> None:
    path = short_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))
        assert 0.25 <= join(program, path, *files, 1000).nanoseconds * 1000 / 1e9 < 10


def test_one_for_which_there_was_no_room_is_told_of_once_while_it_works(
    short_path: Path, program: Path, files: tuple[Path, Path]
) -> None:
    """It was told of but once: a flood of somebody else's, or a relay that had to start, had nobody ever manage it."""
    path = short_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
            other.setblocking(False)
            while True:
                other.sendto(b"a flood", str(path))
        process = subprocess.Popen(
            [program, str(CLIENT), *map(str, files), "1", "again"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "RUNLIST_MESSAGES": str(path)},
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        deaf.setblocking(False)
        heard: list[tuple[bytes, int]] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append((deaf.recv(100), 0))
        assert {said for said, _ in heard} == {b"a flood"}
        process.communicate("\n", timeout=60)
        heard.clear()
        with contextlib.suppress(BlockingIOError):
            while True:
                record, descriptors, _, _ = socket.recv_fds(deaf, 100, 10)
                heard.append((record, len(descriptors)))
                for fd in descriptors:
                    os.close(fd)
        assert heard == [(RECORD.pack(MAGIC, VERSION, Kind.JOIN, 0, 0, CLIENT, 0), 2)]


def test_many_that_join_at_a_time_are_all_heard(short_path: Path, program: Path, files: tuple[Path, Path]) -> None:
    """More than the socket's queue has room for."""
    with Ear(short_path / "messages.sock") as ear:
        join(program, ear.path, *files, 300)
        for _ in range(300):
            for fd in ear.next().message.descriptors:
                os.close(fd)


def test_closed_standard_streams_are_not_replaced(short_path: Path, program: Path, files: tuple[Path, Path]) -> None:
    with Ear(short_path / "messages.sock") as ear:
        closed = join(program, ear.path, *files, preexec_fn=lambda: os.closerange(0, 1))
        heard = ear.next()
        assert heard.pid == closed.pid
        assert all(map(is_file, heard.message.descriptors, files))
        for fd in heard.message.descriptors:
            os.close(fd)


@needs_root
def test_only_a_place_of_ones_own_or_of_root_is_trusted(
    short_path: Path, program: Path, files: tuple[Path, Path]
) -> None:
    short_path.chmod(0o755)
    for path in (files[0].parent, *files):
        path.chmod(0o755)
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    beside = {"RUNLIST_SOCKET": str(short_path / "daemon.sock")}
    with Ear(short_path / "messages.sock") as ear:
        ear.path.chmod(0o666)
        os.chown(short_path, 4711, 4711)
        join(program, None, "0", more=beside, **user)
        os.chown(short_path, 0, 0)
        joined = join(program, None, "0", more=beside, **user)
        heard = ear.next()
        assert (heard.pid, heard.uid) == (joined.pid, NOBODY)
        os.close(heard.message.descriptors[0])
