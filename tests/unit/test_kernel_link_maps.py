"""The daemon's side of the kernel plane with maps of a kernel in memory, and a loader that is this process, too."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.kernel import link
from runlist.daemon.kernel.link import KernelLink
from runlist.planes.interface import Capture
from runlist.planes.kernel import bpf, kernel_types, loading, messages, refusing
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.kernel_types import KernelTypes
from runlist.planes.kernel.maps import STRUCTURES
from runlist.planes.kernel.messages import Answer
from runlist.protocol import environment_autogen as names
from runlist.protocol.kernel_autogen import Counter, Kind, What
from tests.fixtures.adoption import until
from tests.fixtures.bpf_in_memory import Bpf

# As they are to be: taken from the code they would hold whatever it says.
MOST_AT_ONCE = 64

PAGE = os.sysconf("SC_PAGE_SIZE")


class World:
    def __init__(self, folder: Path, kernel: Bpf) -> None:
        self.folder, self.kernel = folder, kernel
        self.heard: list[Sequence[Event]] = []
        self.began: list[Sequence[Event]] = []
        self.gaps = 0
        self.helpers = [11, 12]
        self.loader: socket.socket | None = None
        self.wanted: loading.Wanted | None = None
        self.written = 0
        self.attached: list[tuple[bpf.Map, bpf.Map]] = []
        self.policy: Any = SimpleNamespace(
            look=lambda: None, attach=lambda *maps: self.attached.append(maps), detach=self.attached.clear,
            number_for=lambda cgroup, uid, name: 1000 * cgroup + uid,
        )  # fmt: skip

    def link(self) -> KernelLink:
        plane: Any = SimpleNamespace(name="memory", capture=lambda: Capture({}, (), {}), state_dir=lambda: self.folder)
        return KernelLink(plane, self.heard.append, self._gap, self.policy, lambda: self.helpers, self.began.append)

    def _gap(self) -> None:
        self.gaps += 1

    def start(self, module: str, plane: str, ours: socket.socket, theirs: socket.socket) -> object:
        self.loader = theirs
        return SimpleNamespace(pid=77, wait=lambda seconds: 0, kill=lambda: None)

    def load(self) -> None:
        """What the loader does."""
        assert self.loader is not None
        self.wanted = messages.asked(self.loader.recv(messages.MAX_BYTES))
        loaded = loading.Loaded({}, [])
        loading._make_maps(loaded, None)
        loading._fill(loaded, self.wanted, KernelTypes({}))
        shared = [loaded.maps[name] for name in messages.SHARED]
        socket.send_fds(self.loader, [messages.answer(Answer())], shared)
        loaded.close()
        self.written = 0

    def tell(self, one: KernelLink, *records: bytes) -> None:
        """The kernel puts records into the ring."""
        fd = one.maps["events"].fd
        for record in records:
            held = struct.pack("<II", len(record), 0) + record.ljust((len(record) + 7) // 8 * 8, b"\0")
            os.pwrite(fd, held, 2 * PAGE + self.written)
            self.written += len(held)
        os.pwrite(fd, struct.pack("<Q", self.written), PAGE)

    def count(self, which: Counter, number: int) -> None:
        self.kernel.map("counters").content[struct.pack("<I", which)] = struct.pack("<Q", number)


def event(**fields: int | bytes) -> bytes:
    return bytes(STRUCTURES["EVENT"].pack(**{"what": What.MADE, "kind": Kind.GROUP, **fields}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    kernel = Bpf(cpus=bpf.possible_cpus())
    one = World(tmp_path, kernel)
    monkeypatch.setattr(bpf, "_libc", kernel)
    monkeypatch.setattr(kernel_types, "find", lambda: KernelTypes({}))
    monkeypatch.setattr(refusing, "attach", lambda *_: "")
    monkeypatch.setenv(names.KERNEL_PLANE, "on")
    monkeypatch.setattr(link.rights, "hindered", lambda: "")
    monkeypatch.setattr(link.helper, "start", one.start)
    monkeypatch.setattr(link, "FOLDER", tmp_path / "bpf" / "runlist")
    yield one
    if one.loader is not None:
        one.loader.close()


def with_it(world: World, test: Callable[[KernelLink], Awaitable[None]]) -> None:
    async def run() -> None:
        one = world.link()
        one.start()
        world.load()
        await until(lambda: one.works)
        # its ring is a file, which no event loop waits for: what is in it is read where the kernel would say so
        await test(one)
        one.close()

    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
            if not hasattr(fd, "take"):
                super().add_reader(fd, callback, *args)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


def test_the_loader_is_told_what_is_wanted_and_whom_nothing_is_refused(world: World) -> None:
    async def test(one: KernelLink) -> None:
        assert world.wanted is not None
        assert (world.wanted.own, world.wanted.budget, world.wanted.settle_ms) == (os.getpid(), 10_000, 1500)
        assert world.wanted.names is None  # there is no file system for names here
        assert sorted(world.wanted.exempt) == [11, 12]
        assert world.gaps == 1  # whatever was before
        ((policy, force),) = world.attached
        assert (world.kernel.of(policy.fd), world.kernel.of(force.fd)) == (
            world.kernel.map("policy"),
            world.kernel.map("force"),
        )

    with_it(world, test)
    assert world.attached == []


def test_what_the_kernel_tells_is_heard_in_its_order_and_what_is_none_is_passed_over(world: World) -> None:
    async def test(one: KernelLink) -> None:
        world.tell(one, event(pid=5, time_ns=1_500_000_000, name=b"one\0x"), b"short", event(pid=6), event(what=99))
        one._read()
        (heard,) = world.heard
        assert [(each.pid, each.time, each.name) for each in heard] == [(5, 1.5, "one"), (6, 0.0, "")]
        one._read()
        assert world.heard[1:] == [[]]
        world.tell(one, *[event(pid=number) for number in range(MOST_AT_ONCE + 1)])
        one._read()
        one._read()
        assert [len(each) for each in world.heard[2:]] == [MOST_AT_ONCE, 1]

    with_it(world, test)


def test_a_ring_that_makes_no_sense_ends_the_loader(world: World) -> None:
    async def test(one: KernelLink) -> None:
        os.pwrite(one.maps["events"].fd, struct.pack("<Q", 3 << 30), PAGE)
        one._read()
        assert (one.works, one.maps, one.state, world.gaps) == (False, {}, "its loader ended", 2)
        assert (one.pid, world.heard) == (0, [])
        assert one._timer is not None  # it is started again

    with_it(world, test)


def test_counters_are_those_of_all_processors(world: World) -> None:
    async def test(one: KernelLink) -> None:
        assert one.counter(Counter.SEEN) == 0
        value = struct.pack("<Q", 7) + struct.pack("<Q", 1) * (world.kernel.cpus - 1)
        world.kernel.map("counters").content[struct.pack("<I", Counter.SEEN)] = value
        assert one.counter(Counter.SEEN) == 7 + world.kernel.cpus - 1
        assert one.counter(Counter.EVENTS) == 0
        world.count(Counter.DROPPED, 4)
        assert (one.check(), world.gaps) == (False, 2)
        assert (one.check(), world.gaps) == (True, 2)

    with_it(world, test)


def test_what_is_counted_of_each_process_is_added_up(world: World) -> None:
    async def test(one: KernelLink) -> None:
        controls = world.kernel.map("controls").content
        for pid, command, number in ((5, 1, 3), (5, 2, 4), (6, 1, 1)):
            controls[struct.pack("<II", pid, command)] = struct.pack("<Q", number)
        assert one.counted("controls") == {5: 7, 6: 1}
        assert one.counted("refusals") == {}
        world.kernel.map("asked").content[struct.pack("<I", 5)] = struct.pack("<Q", 9)
        world.count(Counter.SEEN, 1)
        assert one.asking([5, 6]) == {5, 6}
        world.count(Counter.SEEN, 2)
        world.kernel.map("asked").content[struct.pack("<I", 6)] = struct.pack("<Q", 1)
        assert one.asking([5, 6]) == {6}

    with_it(world, test)


def test_helpers_that_are_started_again_are_refused_nothing_and_earlier_ones_are(world: World) -> None:
    async def test(one: KernelLink) -> None:
        exempt = world.kernel.map("exempt").content
        assert {struct.unpack("<I", key)[0] for key in exempt} == {11, 12}
        world.helpers = [12, 13]
        one.check()
        assert {struct.unpack("<I", key)[0] for key in exempt} == {12, 13}

    with_it(world, test)


def test_what_a_process_had_that_ended_goes_out_of_the_maps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SWEEP_S", 0.0)
    gone = 1 << 22  # no process has such a number

    def entry(name: str, pid: int, value: str, **fields: int) -> None:
        key = struct.pack("<I", pid).ljust(world.kernel.map(name).key, b"\1")
        world.kernel.map(name).content[key] = bytes(STRUCTURES[value].pack(**fields))

    async def test(one: KernelLink) -> None:
        for pid in (gone, os.getpid()):
            entry("groups", pid, "GROUP", owner=500, made_ns=10)
            entry("objects", pid, "OBJECT", owner=500)
            entry("processes", pid, "PROCESS", owner=500, cgroup=8, first_ns=5)
            key = bytes(STRUCTURES["MEMBER_KEY"].pack(cgroup=8, pid=pid))
            world.kernel.map("members").content[key] = bytes(8)
        before = len(os.listdir("/proc/self/fd"))
        one.forget(gone)
        await until(lambda: one._sweeping is None)
        assert len(os.listdir("/proc/self/fd")) == before
        for name in ("groups", "objects", "processes"):
            assert [struct.unpack_from("<I", key)[0] for key in world.kernel.map(name).content] == [os.getpid()], name
        (member,) = world.kernel.map("members").content
        assert STRUCTURES["MEMBER_KEY"].unpack(member)["pid"] == os.getpid()
        ((owner, swept),) = world.kernel.map("swept").content.items()
        assert owner == struct.pack("<Q", 500)
        assert STRUCTURES["OWNER"].unpack(swept) == {"processes": 1, "groups": 1, "objects": 1, "files": 0}

    with_it(world, test)


def test_what_an_earlier_daemon_was_told_is_what_we_begin_with_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, reused = world.folder / "left", []
    told = Event(What.MADE, Kind.GROUP, 1.0, 3, 5, 5, 7, 8, 9, 1, 2, 0, "name")
    monkeypatch.setattr(link.Names, "left", lambda names: left)
    monkeypatch.setattr(link.inheriting, "take_out_reused", reused.append)
    monkeypatch.setattr(link.inheriting, "made_before", lambda folder: [told] if folder == left else [])

    async def test(one: KernelLink) -> None:
        ((begun,),) = world.began
        assert (begun.entry, begun.pid, begun.object) == (3007, 5, 2)
        one._ended()
        one.start()
        assert len(world.began) == 1
        assert reused == [left, left]

    with_it(world, test)


def test_the_next_loaders_counters_begin_anew(world: World) -> None:
    async def test(one: KernelLink) -> None:
        for which in (Counter.DROPPED, Counter.FULL, Counter.SEEN):
            world.count(which, 4)
        one.check()
        one.asking([])
        one._ended()
        timer = one._timer
        one.start()
        assert one._timer is not timer
        world.load()
        await until(lambda: one.works)
        gaps, one._ended_unseen = world.gaps, False
        assert (one.check(), world.gaps, one._ended_unseen) == (True, gaps, False)
        assert one.asking([5]) == set()

    with_it(world, test)


def test_counters_that_nobody_may_read_are_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> bytes:
        raise PermissionError

    async def test(one: KernelLink) -> None:
        world.count(Counter.DROPPED, 4)
        with monkeypatch.context() as patch:
            patch.setattr(bpf.Map, "get", forbidden)
            patch.setattr(bpf.Map, "entries", forbidden)
            assert one.counter(Counter.DROPPED) == 0
            assert (one.check(), one.counted("controls"), one.asking([5])) == (True, {}, set())
            assert one.made_by(5, []) is None
        assert one.counter(Counter.DROPPED) == 4

    with_it(world, test)


def test_where_no_descriptor_is_left_none_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that ended then took some of the next ones for good."""
    monkeypatch.setattr(link, "SWEEP_S", 0.0)
    real, left = os.dup, [3]

    def dup(fd: int) -> int:
        if not left[0]:
            raise OSError(errno.EMFILE, "no")
        left[0] -= 1
        return real(fd)

    async def test(one: KernelLink) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", dup)
            one.forget(1 << 22)
            await until(lambda: one._sweeping is None)
        assert left == [0]
        assert len(os.listdir("/proc/self/fd")) == before

    with_it(world, test)


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.0, 0.2), (0.009, 0.2), (0.05, 1.0)])
def test_taking_out_what_ended_rests_for_twenty_times_as_long_as_it_took(
    world: World, monkeypatch: pytest.MonkeyPatch, took_s: float, rests_s: float
) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    async def test(one: KernelLink) -> None:
        one._sweep_took_s = took_s
        with monkeypatch.context() as patch:
            patch.setattr(link.asyncio, "sleep", sleep)
            one.forget(5)
            assert one._sweeping is not None
            await one._sweeping
        assert rests == [pytest.approx(rests_s)]

    with_it(world, test)


def test_what_a_process_made_is_told_while_events_come(world: World) -> None:
    async def test(one: KernelLink) -> None:
        world.kernel.map("processes").content[struct.pack("<I", 5)] = bytes(STRUCTURES["PROCESS"].pack(groups=3))
        found = one.made_by(5, [])
        assert found is not None
        assert (found.groups, found.channels) == (3, 0)
        one._ended()
        assert one.made_by(5, []) is None

    with_it(world, test)


def test_why_it_does_not_work_is_said_once(world: World) -> None:
    async def test(one: KernelLink) -> None:
        with capture_logs() as log:
            for reason in ("no room", "no room", "its loader ended", "no room"):
                one._say(reason)
                assert one.state == reason
        assert [line["reason"] for line in log] == ["no room", "its loader ended", "no room"]

    with_it(world, test)


@pytest.mark.parametrize("ends", [True, False])
def test_at_the_end_the_loader_is_waited_for_and_killed_if_it_stays(world: World, ends: bool) -> None:
    """It may be stopped. Then it takes the names of its maps away no more, and the daemon does."""
    did: list[object] = []
    folder = world.folder / "bpf" / "runlist" / str(os.getpid())
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    (folder / "groups").touch()

    def wait(seconds: float) -> int:
        did.append(seconds)
        if not ends:
            raise subprocess.TimeoutExpired("loader", seconds)
        return 0

    async def test(one: KernelLink) -> None:
        one._process = SimpleNamespace(pid=77, wait=wait, kill=lambda: did.append("killed"))  # type: ignore[assignment]
        one.close()
        assert one.pid == 0
        assert world.loader is not None
        assert world.loader.recv(10) == b"."  # it is to leave nothing behind

    with_it(world, test)
    assert did == ([5] if ends else [5, "killed", 1])
    assert folder.exists() == ends  # a true loader has removed it
