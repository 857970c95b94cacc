"""The loader of the kernel plane, as the daemon sees it: a socket stands for it, and its maps are never read."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.kernel import link
from runlist.daemon.kernel.link import KernelLink
from runlist.planes.interface import Capture, DriverFiles
from runlist.planes.kernel import bpf, messages
from runlist.planes.kernel.messages import Answer
from runlist.protocol import environment_autogen as names
from tests.fixtures.adoption import until

CAPTURE = Capture({}, (), {}, DriverFiles(*[0] * len(DriverFiles.__struct_fields__)))


class Silent:
    """A ring in which nothing ever is."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        pass


class Kernel:
    """What stands for the loader and its maps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.gaps = 0
        self.capture: Capture | None = CAPTURE
        self.loaders: list[socket.socket] = []
        self.error: OSError | None = None
        self.hindered = ""
        monkeypatch.setenv(names.KERNEL_PLANE, "on")
        monkeypatch.setattr(link.rights, "hindered", lambda: self.hindered)
        monkeypatch.setattr(link.helper, "start", self._start)
        monkeypatch.setattr(link.Names, "left", lambda _: None)
        monkeypatch.setattr(link, "Ring", Silent)
        monkeypatch.setattr(bpf.Map, "get", lambda *_: None)
        self.policy: Any = SimpleNamespace(look=lambda: None, attach=lambda *_: None, detach=lambda: None)

    def _start(self, module: str, plane: str, ours: socket.socket, theirs: socket.socket) -> object:
        assert (module, plane) == (link.LOADER, "memory")
        if self.error is not None:
            for sock in (ours, theirs):
                sock.close()
            raise self.error
        theirs.settimeout(60)
        self.loaders.append(theirs)
        return SimpleNamespace(pid=77, wait=lambda seconds: 0, kill=lambda: None)

    def _gap(self) -> None:
        self.gaps += 1

    def made(self) -> KernelLink:
        plane: Any = SimpleNamespace(name="memory", capture=lambda: self.capture, state_dir=lambda: self.folder)
        return KernelLink(plane, lambda _: None, self._gap, self.policy, list, lambda _: None)

    def answers(self, said: Answer, count: int = len(messages.SHARED)) -> None:
        fds = [os.eventfd(0) for _ in range(count)]
        socket.send_fds(self.loaders[-1], [messages.answer(said)], fds)
        for fd in fds:
            os.close(fd)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    one = Kernel(tmp_path, monkeypatch)
    yield one
    for sock in one.loaders:
        sock.close()


def run(test: Callable[[], Any]) -> None:
    async def whole() -> None:
        before = len(os.listdir("/proc/self/fd"))
        await test()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("lacks", "state"),
    [
        ({"capture": None}, "the kernel sees no requests to this device"),
        ({"switch": "off"}, "off: RUNLIST_KERNEL_PLANE=on switches it on"),
        ({"switch": None}, "off: RUNLIST_KERNEL_PLANE=on switches it on"),
        ({"switch": "1"}, "off: RUNLIST_KERNEL_PLANE=on switches it on"),
        ({"hindered": "no right"}, "no right"),
    ],
)
def test_where_it_cannot_be_or_nobody_wants_it_no_loader_is_started(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, lacks: dict[str, Any], state: str
) -> None:
    async def test() -> None:
        kernel.capture = lacks.get("capture", CAPTURE)
        kernel.hindered = lacks.get("hindered", "")
        if lacks.get("switch", "on") is None:
            monkeypatch.delenv(names.KERNEL_PLANE)
        else:
            monkeypatch.setenv(names.KERNEL_PLANE, lacks.get("switch", "on"))
        one = kernel.made()
        assert one.state == "not started"
        with capture_logs() as log:
            one.start()
        assert [line["value"] for line in log] == (["1"] if lacks.get("switch") == "1" else [])
        assert (one.state, one.works, one.pid, kernel.loaders) == (state, False, 0, [])
        assert not one.check()
        assert not one.has_counted()
        assert one.asking([1, 2]) == set()
        assert one.counted("controls") == {}
        one.close()

    run(test)


def test_a_loader_that_cannot_be_started_is_started_again(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "RETRY_S", 0.001)

    async def test() -> None:
        kernel.error = OSError(11, "no room")
        one = kernel.made()
        one.start()
        assert one.state == "no loader can be started: [Errno 11] no room"
        kernel.error = None
        await until(lambda: kernel.loaders)
        assert one.pid == 77
        assert messages.asked(kernel.loaders[0].recv(messages.MAX_BYTES)).own == os.getpid()
        one.close()
        assert kernel.loaders[0].recv(10) == b"."  # it is to leave nothing behind
        kernel.loaders[0].close()

    run(test)


@pytest.mark.parametrize(
    ("said", "count", "state"),
    [
        (Answer(unable="the kernel is too old"), 0, "the kernel is too old"),
        (Answer(), len(messages.SHARED) - 1, "its loader is of another version"),
    ],
)
def test_a_loader_that_is_of_no_use_is_not_tried_again(kernel: Kernel, said: Answer, count: int, state: str) -> None:
    async def test() -> None:
        one = kernel.made()
        one.start()
        kernel.answers(said, count)
        await until(lambda: one.state == state)
        assert (one.works, kernel.gaps, one._timer) == (False, 0, None)
        one.close()
        kernel.loaders[0].close()

    run(test)


def test_a_loader_of_another_version_is_not_taken_at_its_word(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events would be of another form, and all of them passed over."""

    async def test() -> None:
        one = kernel.made()
        one.start()
        kernel.answers(Answer())
        monkeypatch.setattr(messages, "VERSION", messages.VERSION + 1)
        await until(lambda: one.state != "not started")
        assert one.state == (
            "its loader cannot be understood: another version of Runlist was installed meanwhile: start the daemon anew"
        )
        assert (one.works, one.maps, one._timer) == (False, {}, None)
        one.close()
        kernel.loaders[0].close()

    run(test)


def test_maps_that_came_are_closed_once_where_their_ring_cannot_be_waited_for(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_reader(loop: asyncio.SelectorEventLoop, file: object, *call: Any) -> None:
        if isinstance(file, Silent):
            raise OSError(12, "Cannot allocate memory")
        add(loop, file, *call)

    add = asyncio.SelectorEventLoop.add_reader
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", add_reader)

    async def test() -> None:
        one = kernel.made()
        one.start()
        kernel.answers(Answer())
        closed: list[int] = []
        close = os.close
        monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
        await until(lambda: one.state != "not started")
        assert one.state == "its loader cannot be understood: [Errno 12] Cannot allocate memory"
        assert (one.works, one.maps, len(closed)) == (False, {}, len(messages.SHARED))
        one.close()
        kernel.loaders[0].close()

    run(test)


def test_it_works_from_the_loaders_word_until_its_end(kernel: Kernel) -> None:
    async def test() -> None:
        one = kernel.made()
        one.start()
        kernel.answers(Answer(unpinned="maps have no names", lenient="no BPF_LSM"))
        await until(lambda: one.works)
        assert (one.state, one.lenient, kernel.gaps) == ("maps have no names", "no BPF_LSM", 1)
        assert one.told == "on"
        assert set(one.maps) == set(messages.SHARED)
        kernel.loaders[0].close()
        await until(lambda: not one.works)
        assert (one.state, kernel.gaps, one.maps) == ("its loader ended", 2, {})
        assert one.told == one.state
        one.close()

    run(test)
