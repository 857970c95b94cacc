"""The daemon's side of the kernel plane, by what is in the kernel's maps."""

from __future__ import annotations

import asyncio
import signal
import struct
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist import interpreter
from runlist.daemon.kernel import link
from runlist.daemon.kernel.link import KernelLink
from runlist.daemon.kernel.made import Made, made_by
from runlist.planes.interface import Capture
from runlist.planes.kernel import rights
from runlist.planes.kernel.maps import STRUCTURES
from runlist.protocol.kernel_autogen import Counter
from tests.fixtures.adoption import until

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_RETRY_S = 60.0
LONG_LIFE_S = 10.0
RETRY_S = 0.5


class Kernel:
    """Its maps, and a link that works."""

    def __init__(self) -> None:
        self.counters: dict[Counter, int] = {}
        self.requests: dict[int, int] = {}
        self.gaps = 0
        policy: Any = SimpleNamespace(look=lambda: None, detach=lambda: None)
        self.link = KernelLink(
            SimpleNamespace(name="memory"), lambda _: None, self._gap, policy, list, lambda _: None,  # type: ignore[arg-type]
        )  # fmt: skip
        self.link._ring = SimpleNamespace()  # type: ignore[assignment]
        self.link.maps["counters"] = self._map(lambda key: self.counters.get(Counter(key)), processors=2)
        self.link.maps["asked"] = self._map(self.requests.get)

    @staticmethod
    def _map(get: Callable[[int], int | None], processors: int = 1) -> Any:
        def found(key: bytes) -> bytes | None:
            number = get(*struct.unpack("<I", key))
            return None if number is None else struct.pack("<Q", number) + struct.pack("<Q", 0) * (processors - 1)

        return SimpleNamespace(get=found, fd=-1)

    def _gap(self) -> None:
        self.gaps += 1


def with_a_kernel(test: Callable[[Kernel], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Kernel())

    asyncio.run(run())


def test_who_has_asked_the_driver_for_something_since() -> None:
    async def test(kernel: Kernel) -> None:
        asking = kernel.link.asking
        assert asking([7, 8]) == set()
        kernel.counters[Counter.SEEN] = 3
        kernel.requests.update({7: 2, 8: 1})
        assert asking([7, 8, 9]) == {7, 8, 9}  # nobody knows what the last had asked
        assert asking([7, 8, 9]) == set()
        kernel.requests[8] = 5
        assert asking([7, 8, 9]) == set()  # no request was seen in all
        kernel.counters[Counter.SEEN] = 4
        assert asking([7, 8, 9]) == {8}
        kernel.counters[Counter.SEEN] = 5
        assert asking([7]) == set()
        kernel.link._ring = None
        kernel.counters[Counter.SEEN] = 6
        assert asking([7]) == set()

    with_a_kernel(test)


def test_what_was_dropped_is_a_gap_once() -> None:
    async def test(kernel: Kernel) -> None:
        assert kernel.link.check()
        kernel.counters[Counter.DROPPED] = 3
        assert (kernel.link.check(), kernel.gaps) == (False, 1)
        assert (kernel.link.check(), kernel.gaps) == (True, 1)
        kernel.link._ring = None
        kernel.counters[Counter.DROPPED] = 4
        assert (kernel.link.check(), kernel.gaps) == (False, 1)

    with_a_kernel(test)


def test_there_is_more_to_learn_once_more_was_seen_or_refused() -> None:
    async def test(kernel: Kernel) -> None:
        has_counted = kernel.link.has_counted
        assert [has_counted(), has_counted()] == [True, False]
        for which in (Counter.SEEN, Counter.REFUSED):
            kernel.counters[which] = 1
            assert [has_counted(), has_counted()] == [True, False]

    with_a_kernel(test)


def test_what_processes_had_that_ended_goes_for_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SWEEP_S", 0.001)
    swept: list[object] = []
    monkeypatch.setattr(link, "take_out_ended", lambda maps, among: swept.append((maps, among)))

    async def test(kernel: Kernel) -> None:
        monkeypatch.setattr(kernel.link, "_copies", lambda: "copies")
        for pids, among in (([1, 2, 1], {1, 2}), ([3], {3}), ([4, None, 5], None), ([6], {6})):
            for pid in pids:
                kernel.link.forget(pid)
            await until(lambda: kernel.link._sweeping is None)
            assert swept.pop() == ("copies", among)
            assert swept == []
        kernel.counters[Counter.FULL] = 1  # a map is full of what ended unseen
        kernel.link.check()
        kernel.link.check()
        await until(lambda: kernel.link._sweeping is None)
        kernel.link.check()  # it was full before, and nothing came since
        await until(lambda: kernel.link._sweeping is None)
        assert swept == [("copies", None)]

    with_a_kernel(test)


def test_what_a_process_made_is_told_by_its_groups() -> None:
    def packed(name: str, **values: int) -> bytes:
        return bytes(STRUCTURES[name].pack(**values))

    groups = {
        packed("OBJECT_KEY", pid=7, client=70, object=number): packed("GROUP", channels=number, compute=1, copy=2)
        for number in (3, 4)
    }
    processes = {struct.pack("<I", 7): packed("PROCESS", groups=9)}
    maps: Any = {"groups": SimpleNamespace(get=groups.get), "processes": SimpleNamespace(get=processes.get)}
    assert made_by(maps, 7, [(70, 3), (70, 4), (71, 3), (70, 5)]) == Made(9, 7, 2, 4)
    assert made_by(maps, 70, [(7, 3)]) is None


def test_a_loader_that_ends_soon_is_started_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def test(kernel: Kernel) -> None:
        of = kernel.link
        of._ring, of.maps, of._started = None, {}, time.monotonic()
        monkeypatch.setattr(of, "_loop", SimpleNamespace(call_later=lambda seconds, _: rests.append(seconds)))
        for _ in range(10):
            of._ended()
            assert of.state == "its loader ended"
        of._started -= 2 * LONG_LIFE_S
        of._ended()

    with_a_kernel(test)
    assert rests == [min(RETRY_S * 2**times, LONGEST_RETRY_S) for times in range(10)] + [RETRY_S]


def test_a_loader_that_does_not_end_is_ended() -> None:
    """As one that is stopped: its programs would go on, and count everything once more on the maps of the next."""

    loader = subprocess.Popen(["sleep", "600"])
    loader.send_signal(signal.SIGSTOP)

    async def test(kernel: Kernel) -> None:
        kernel.link._process = loader
        kernel.link._ring, kernel.link.maps = None, {}
        kernel.link._ended()

    with_a_kernel(test)
    assert loader.returncode == -signal.SIGKILL


def test_a_loader_that_does_not_answer_is_ended_and_another_one_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ANSWER_S", 0.01)
    monkeypatch.setattr(link, "RETRY_S", 0.01)
    monkeypatch.setenv("RUNLIST_KERNEL_PLANE", "on")
    monkeypatch.setattr(rights, "hindered", str)
    monkeypatch.setattr(interpreter, "command", lambda _: ["sleep", "600"])
    started: list[subprocess.Popen[bytes]] = []

    async def test(kernel: Kernel) -> None:
        of = kernel.link
        monkeypatch.setattr(of, "_plane", SimpleNamespace(name="memory", capture=lambda: Capture({}, (), {})))
        monkeypatch.setattr(link, "daemon_socket", lambda _: Path("/nowhere"))
        of._ring, of.maps = None, {}
        of.start()
        assert of._process is not None
        started.append(of._process)
        await until(lambda: of.state == "its loader does not answer")
        assert started[0].returncode == -signal.SIGKILL
        await until(lambda: of._process not in (None, started[0]))
        assert of._process is not None
        of._process.kill()
        of.close()

    with_a_kernel(test)
