"""The daemon when the kernel's programs told less than there was: it looks at once, and not when it next would."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runlist.planes.kernel.maps import STRUCTURES
from runlist.protocol.kernel_autogen import RING_BYTES
from tests.emulated.test_kernel_plane import blind, loader_of, managed, seeing, twin
from tests.fixtures.daemon import Daemon, Slices, Worker, wait_for
from tests.fixtures.kernel import SET_TIMESLICE, Asking, needs_kernel

__all__ = ["blind", "seeing", "twin"]
pytestmark = needs_kernel
Start = Callable[..., Worker]
SOON_S = 20.0
"""Much less than the time between two looks while the kernel tells of all."""
FULL = RING_BYTES // (8 + STRUCTURES["EVENT"].size) + 1
"""So many events have no room in the ring."""


class Changed:
    """What a tenant does of which the daemon is told nothing, and that the daemon finds it: another process that makes
    groups, or a slice that it sets itself.
    """

    def __init__(self, daemon: Daemon, tenant: Worker, slices: Slices, what: str) -> None:
        daemon.client.attach(tenant.pid, "batch")
        wait_for(lambda: [task.channels for task in managed(daemon, tenant.pid)] == [20])
        self._daemon, self._tenant, self._slices, self._what = daemon, tenant, slices, what
        self._ours = slices.compute(tenant.pid)

    def begin(self) -> None:
        if self._what == "a slice":
            assert self._tenant.do("slice 5000")["refused"] == 0
        else:
            self._child = int(self._tenant.do("spawn")["pid"])

    def found(self) -> None:
        if self._what == "a slice":
            wait_for(lambda: self._slices.compute(self._tenant.pid) == self._ours, timeout=SOON_S)
        else:
            wait_for(partial(managed, self._daemon, self._child), timeout=SOON_S)


def flood(path: Path) -> None:
    """More than the ring has room for, by two processes each of four users: of one so much would be held back."""
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            asking = Asking(os.open(path, os.O_RDWR | os.O_CLOEXEC), 0xC1D00077)
            uid = 60_001 + number // 2
            os.setresuid(uid, uid, uid)
            for _ in range(FULL * 3 // 16):
                asking.controlled(0x15, SET_TIMESLICE)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


@pytest.mark.parametrize("what", ["a slice", "a process"])
def test_what_had_no_room_in_the_ring_is_found_by_looking(
    seeing: Daemon, blind: None, worker: Start, slices: Slices, twin: Path, what: str
) -> None:
    changed = Changed(seeing, worker(), slices, what)
    os.kill(seeing.pid, signal.SIGSTOP)
    try:
        flood(twin)
        changed.begin()
    finally:
        os.kill(seeing.pid, signal.SIGCONT)
    changed.found()
    assert "the kernel told more than was taken in time; looking" in seeing.log.read_text()


@pytest.mark.parametrize("what", ["a slice", "a process"])
def test_what_was_done_without_a_loader_is_found_by_looking(
    seeing: Daemon, blind: None, worker: Start, slices: Slices, what: str
) -> None:
    seeing.faults = ("its loader ended",)
    changed = Changed(seeing, worker(), slices, what)
    before = loader_of(seeing)
    os.kill(before, signal.SIGKILL)
    changed.begin()
    wait_for(lambda: loader_of(seeing) not in (0, before))
    changed.found()
