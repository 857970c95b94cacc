"""Process ids are used again: whoever asked for a process that has ended asked for nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runlist.daemon.requests.own import OwnSettings
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.proc.process import owner_of
from tests.fixtures.adoption import OF_CHILD, child, own_usage
from tests.fixtures.daemon import NOBODY, needs_root, wait_for
from tests.fixtures.manager import Managed, a_daemon

pytestmark = [needs_root, pytest.mark.usefixtures("own_usage")]
__all__ = ["own_usage"]

VICTIM = NOBODY - 1
_SYS_CLONE3 = 435
_SYS_SETRESGID, _SYS_SETRESUID = {"x86_64": (119, 117), "aarch64": (149, 147)}.get(platform.machine(), (0, 0))
_libc = ctypes.CDLL(None, use_errno=True)

Asks = Callable[[Managed, int, int], Any]


def start_as(user: int, pid: int = 0) -> int:
    """A process of a user that does nothing, with this id if one is named."""
    made = _clone_as(pid) if pid else os.fork()  # a clone by hand may have a lock of a thread that just starts
    if made == 0:
        for call in (_SYS_SETRESGID, _SYS_SETRESUID):  # the C library's own wait for threads, which are its parent's
            _libc.syscall(call, user, user, user)
        while True:
            signal.pause()
    assert made > 0, os.strerror(ctypes.get_errno())
    wait_for(lambda: owner_of(made) == user, "the process to be that user's")
    return made


def _clone_as(pid: int) -> int:
    ids = (ctypes.c_int * 1)(pid)
    words = (0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(ids), 1, 0)
    arguments = ctypes.create_string_buffer(struct.pack("11Q", *words))
    return int(_libc.syscall(_SYS_CLONE3, arguments, ctypes.c_size_t(88)))


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def mine() -> Iterator[int]:
    """A process of nobody."""
    pid = start_as(NOBODY)
    yield pid
    end(pid)


def becomes_anothers(world: Managed, user: int = VICTIM) -> None:
    """While what is above a process is found, it ends, and its id is another one's, of that user."""

    async def find_ancestors(pid: int) -> None:
        await asyncio.sleep(0.02)  # the kernel tells when one began to 10 ms
        end(pid)
        assert start_as(user, pid) == pid

    world.processes.find_ancestors = find_ancestors  # type: ignore[method-assign]


ASK: dict[str, Asks] = {
    "attach": lambda world, pid, user: world.manager.attach(pid, {"class": "batch", "cap": "1"}, True, user),
    "run": lambda world, pid, user: world.manager.launches.begin(pid, {"cap": "1"}, world.borrower, None, user),
    "manage": lambda world, pid, user: OwnSettings(world.manager).manage(pid, {"cap": "1"}, None, user),
}


@pytest.mark.parametrize("asks", ASK.values(), ids=ASK)
def test_what_was_asked_for_ones_own_is_not_done_to_anothers(mine: int, asks: Asks) -> None:
    async def test(world: Managed) -> None:
        becomes_anothers(world)
        with pytest.raises(NoPermissionError, match=f"process {mine} belongs to user {VICTIM}"):
            await asks(world, mine, NOBODY)
        assert not world.processes.roots

    a_daemon(test)


@pytest.mark.parametrize("user", [0, NOBODY])
@pytest.mark.parametrize("how", ["attach", "run"])
def test_what_was_asked_for_a_process_that_has_ended_is_done_to_none(mine: int, how: str, user: int) -> None:
    """Also by root, who may do all, and to another one of the same user: a command may wait for hours."""

    async def test(world: Managed) -> None:
        becomes_anothers(world, NOBODY)
        with pytest.raises(NoTargetError, match=f"process {mine} has ended"):
            await ASK[how](world, mine, user)
        assert not world.processes.roots

    a_daemon(test)


def test_who_asked_for_itself_and_ended_leaves_for_nobody_else(mine: int) -> None:
    """Its connection may be open still, with a process that it started."""

    async def test(world: Managed) -> None:
        own = OwnSettings(world.manager)
        await own.manage(mine, {"class": "batch"}, None, NOBODY)
        end(mine)
        world.manager.release(0)
        assert start_as(VICTIM, mine) == mine
        await own.manage(mine, {"class": "latency"}, None, VICTIM)
        with pytest.raises(NoPermissionError):
            own.leave(mine, NOBODY)
        assert world.processes.roots[mine].own[mine].settings == {"class": "latency"}
        assert own.leave(mine, VICTIM) == []

    a_daemon(test)


def test_who_hangs_up_lets_go_of_its_own_command_alone(mine: int) -> None:
    async def test(world: Managed) -> None:
        await world.manager.launches.begin(mine, {}, world.borrower, None, NOBODY)
        world.manager.release(NOBODY)
        end(mine)
        assert start_as(VICTIM, mine) == mine
        theirs: Any = object()
        await world.manager.launches.begin(mine, {}, theirs, None, VICTIM)
        await world.manager.launches.hung_up(mine, world.borrower)
        assert theirs in world.processes.roots[mine].borrowers

    a_daemon(test)


@pytest.mark.parametrize("noticed", [False, True], ids=["just now", "noticed"])
def test_a_driver_limits_nobody_elses_memory(mine: int, noticed: bool) -> None:
    """Where it does so by cgroup a tree is moved into one, from the process at its top on."""

    async def test(world: Managed) -> None:
        moved: list[int] = []
        limits: Any = world.processes._driver_limits
        limits.work, limits.enter = True, moved.append
        await world.manager.launches.begin(mine, {}, world.borrower, None, NOBODY)
        root = world.processes.roots[mine]
        with child() as left:
            world.processes.inherit(root, [left])
            end(mine)
            assert start_as(VICTIM, mine) == mine
            if noticed:
                world.processes._root_ended(root)
            with pytest.raises((NotSupportedError, NoTargetError)):
                world.manager.change(mine, {"memory": "1G"}, NOBODY)
        assert moved == []

    a_daemon(test)


def test_a_name_that_is_used_again_is_who_has_it_now(mine: int) -> None:
    """A command ended and left a tree; its id is that of a process in somebody else's tree now, which they suspend."""

    async def test(world: Managed) -> None:
        await world.manager.launches.begin(mine, {}, world.borrower, None, NOBODY)
        left = world.processes.roots[mine]
        with child() as one:
            world.processes.inherit(left, [one])
            end(mine)
            world.processes._root_ended(left)
            assert start_as(VICTIM, mine) == mine
            world.tenant(mine, OF_CHILD)
            root = world.root()
            root.uid = VICTIM
            await world.adopt(root, mine)
            (task,) = world.manager.suspend(mine, True, VICTIM)
            assert task.task.key.pid == mine
            with pytest.raises(NoPermissionError):
                world.manager.suspend(mine, True, NOBODY)
            world.manager.detach(mine, VICTIM)
            assert left in world.processes.roots.values()

    a_daemon(test)
