"""Taking processes over and letting them go: all or nothing, and every file closed once."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.tasks.managed import SuspendedBy
from runlist.daemon.tree import adoption
from runlist.errors import NoTargetError, RunlistError
from runlist.proc.owners import Owner
from tests.fixtures.adoption import (
    FOUND,
    PID,
    SET_TIMESLICE,
    World,
    child,
    in_a_daemon,
    own_usage,
    slices,
)
from tests.fixtures.fake_rm import CHANNEL, COMPUTE, GROUP, INVALID_ARGUMENT, UUIDS, Call, FakeClient

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


def test_what_a_process_has_is_managed_and_put_back() -> None:
    async def test(world: World) -> None:
        client, other = world.tenant(), world.tenant(gpu=UUIDS[1])
        root = world.root(**{"class": "batch"})
        await world.adopt(root)
        (process,) = world.processes.under(PID)
        assert set(process.tasks) == set(UUIDS)
        assert slices(client) == slices(other) == [1] * 4
        assert (len(world.keeping.guarded), world.borrower.open) == (2, 1)  # both clients are on one file
        await world.adopt(root)  # nothing is new
        assert (len(world.keeping.guarded), world.borrower.open) == (2, 1)
        later = world.tenant(fd=9)
        await world.adopt(root, new_only=True)
        assert (len(world.keeping.guarded), world.borrower.open) == (3, 2)
        assert process.tasks[UUIDS[0]].task.contexts == 2
        assert world.processes.remove_root(root) == []
        assert slices(client) == slices(other) == slices(later) == FOUND

    in_a_daemon(test)


def refusing(client: FakeClient, *, all_of_it: bool = False) -> Callable[[Call], int | None]:
    """The driver refuses to set slices of a client: all of it, or those that it did not have when it was found."""

    def answer(call: Call) -> int | None:
        mine = call.command == SET_TIMESLICE and call.client == client.handle
        return INVALID_ARGUMENT if mine and (all_of_it or int.from_bytes(call.params, "little") not in FOUND) else None

    return answer


@pytest.mark.parametrize("all_of_it", [True, False])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_control_that_fails_leaves_nothing(failing: int, all_of_it: bool) -> None:
    """Of one of three contexts: when it is guarded, and when it gets its share."""

    async def test(world: World) -> None:
        clients = [world.tenant(fd=fd) for fd in (7, 8, 9)]
        for file in world.rm.processes[PID].values():
            file.on_control = refusing(clients[failing], all_of_it=all_of_it)
        with pytest.raises(RunlistError):
            await world.adopt(world.root())
        assert world.nothing_is_left()
        assert all(slices(client) == FOUND for client in clients)

    in_a_daemon(test)


def test_a_control_that_fails_later_leaves_what_was_there() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root()
        await world.adopt(root)
        in_force = slices(client)
        world.rm.tenant(PID, 9).on_control = refusing(world.tenant(fd=9), all_of_it=True)
        with pytest.raises(RunlistError):
            await world.adopt(root)
        assert slices(client) == in_force
        (process,) = world.processes.under(PID)
        assert (process.tasks[UUIDS[0]].task.contexts, len(world.keeping.guarded), world.borrower.open) == (
            1,
            1,
            1,
        )

    in_a_daemon(test)


def test_settings_that_cannot_be_leave_nothing() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        with pytest.raises(RunlistError, match="a burst goes with a cap"):
            await world.adopt(world.root(burst="5ms"))
        assert world.nothing_is_left()
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_one_that_comes_to_a_tree_with_too_much_memory_is_suspended_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.tenant()
        world.tenant(gpu=UUIDS[1])
        root = world.root()
        monkeypatch.setattr(root.quota, "is_over", lambda gpu: gpu == UUIDS[0])
        await world.adopt(root)
        over, other = (world.processes.managed[PID].tasks[gpu] for gpu in UUIDS[:2])
        assert list(over.suspended_by) == [SuspendedBy.MEMORY]
        assert over.remark == "suspended: its tree holds more memory than its limit"
        assert (over.share.enabled, other.share.enabled, other.remark) == (False, True, "")

    in_a_daemon(test)


def test_who_opened_nothing_of_the_gpu_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        finder = world.adoption._finder
        monkeypatch.setattr(finder, "may_have_work", lambda pid: False)
        monkeypatch.setattr(finder, "find", lambda *_, **__: pytest.fail("it is not to be looked at"))
        root = world.root()
        root.old = True
        await world.adopt(root, new_only=True)
        assert root.old  # the first look is still to come

    in_a_daemon(test)


def test_a_policy_that_refuses_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        monkeypatch.setattr(world.gpus.scheduler(UUIDS[0]), "refusal", lambda task: "it would not fit")
        with pytest.raises(RunlistError, match="is not managed: it would not fit"):
            await world.adopt(world.root())
        assert world.nothing_is_left()
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_without_a_descriptor_for_a_process_all_that_was_found_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.tenant()

        def dup(fd: int) -> int:
            if world.borrower.copies:  # it was looked at
                raise OSError(errno.EMFILE, "Too many open files")
            return os.dup(fd)

        monkeypatch.setattr(adoption, "os", SimpleNamespace(dup=dup, close=os.close))
        with pytest.raises(OSError, match="Too many open files"):
            await world.adopt(world.root())
        assert len(world.borrower.copies) == 1
        assert world.nothing_is_left()
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_one_file_with_two_descriptors_is_had_once() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        world.rm.processes[PID][9] = world.rm.processes[PID][8]
        root = world.root()
        await world.adopt(root)
        (process,) = world.processes.under(PID)
        assert (process.tasks[UUIDS[0]].task.contexts, world.borrower.open) == (1, 1)
        world.processes.remove_root(root)
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_another_file_under_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        del world.rm.processes[PID][8]
        client = world.tenant()
        first = world.borrower.copies[0]
        monkeypatch.setattr(
            "runlist.daemon.tasks.managed.borrow.still_has", lambda pid, fd, copy: pid == PID and bool(first.closed)
        )
        await world.adopt(root, new_only=True)
        assert slices(client) != FOUND
        assert (len(world.keeping.guarded), world.borrower.open) == (1, 1)

    in_a_daemon(test)


@pytest.mark.parametrize("how", ["root", "process"])
def test_one_that_is_let_go_while_it_is_looked_at_stays_so(how: str) -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root()
        loop = asyncio.get_running_loop()

        async def let_go() -> None:
            if how == "root":
                world.processes.remove_root(root)
                world.root()  # somebody attaches it again at once: that look is not this one
            else:
                root.excluded.add(PID)

        world.borrower.meanwhile = lambda: asyncio.run_coroutine_threadsafe(let_go(), loop).result()
        await world.adopt(root)
        assert world.nothing_is_left()
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_what_came_by_fork_is_the_parents() -> None:
    async def test(world: World) -> None:
        with child() as pid:
            world.rm.processes[pid] = world.rm.processes.setdefault(PID, {})
            world.tenant()
            root = world.root()
            await world.adopt(root, pid)  # though its parent is not managed yet
            assert world.nothing_is_left()
            await world.adopt(root)
            await world.adopt(root, pid)
            assert list(world.processes.managed) == [PID]

    in_a_daemon(test)


@pytest.mark.parametrize(
    ("listed", "anothers"), [([], True), ([PID], True), (["child"], False), ([PID, "child"], True)]
)
def test_whom_the_driver_names_has_what_both_have(listed: list[int | str], anothers: bool) -> None:
    """A child that gives its descriptors to its parent, which nobody looks at, is managed all the same."""

    async def test(world: World) -> None:
        with child() as pid:
            world.census.pids = lambda: {pid if one == "child" else int(one) for one in listed}
            world.rm.processes[pid] = world.rm.processes.setdefault(PID, {})
            world.tenant()
            await world.adopt(world.root(), pid)
            assert list(world.processes.managed) == ([] if anothers else [pid])

    in_a_daemon(test)


def test_a_descendant_may_end_while_its_tree_is_taken_over() -> None:
    async def test(world: World) -> None:
        with child() as pid:
            world.tenant()
            world.borrower.meanwhile = lambda: os.kill(pid, signal.SIGKILL)
            root = world.root()
            await world.search.everything_of(root)
            assert list(world.processes.managed) == [PID]
            with pytest.raises(NoTargetError):
                await world.adopt(root, 1 << 22)

    in_a_daemon(test)


def test_two_that_look_at_the_same_time_manage_it_once() -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root()
        await asyncio.gather(*(world.adopt(root, new_only=new_only) for new_only in (False, True, False)))
        assert (len(world.keeping.guarded), world.borrower.open) == (1, 1)
        assert not world.adoption._locks

    in_a_daemon(test)


@pytest.mark.parametrize("suspended", [True, False])
def test_channels_that_were_made_while_their_group_was_off_are_enabled_when_they_are_found(suspended: bool) -> None:
    """Whether the driver enables them by itself nobody knows. A task that was never suspended costs no control."""

    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root()
        await world.adopt(root)
        (task,) = world.tasks()
        for enabled in (False, True) if suspended else ():
            task.set_enabled(enabled)
        late = client.add(CHANNEL, client.of_class(GROUP)[0], enabled=False)
        client.add(COMPUTE, late)
        await world.adopt(root)
        assert client.objects[late].enabled is suspended

    in_a_daemon(test)


def test_what_may_be_armed_is_settled_before_its_new_channels_are_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root()
        await world.adopt(root)
        (task,) = world.tasks()
        did: list[str] = []
        task.on_settle = lambda: did.append("settled")
        monkeypatch.setattr(world.keeping, "renew", lambda key: did.append("entered"))
        await world.adopt(root)
        assert did == []  # nothing is new
        for group in client.of_class(GROUP)[:2]:
            client.add(COMPUTE, client.add(CHANNEL, group))
        await world.adopt(root)
        assert did[:2] == ["settled", "entered"]
        assert task.task.contexts == 2  # the second group computes now, too

    in_a_daemon(test)


def test_what_is_found_as_soon_as_it_is_there_may_still_be_in_the_making() -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        (task,) = world.tasks()
        assert task.settles_at <= 0.0  # it may have been there for long
        found_ms, attached_ms = task.discovery_ms, task.attach_ms
        assert 0 < found_ms <= attached_ms
        world.tenant(fd=9)
        began = time.monotonic()
        await world.adopt(root, new_only=True)
        assert began + 1.5 <= task.settles_at <= time.monotonic() + 1.5
        assert (task.discovery_ms, task.attach_ms) == (found_ms, attached_ms)  # of the first of it

    in_a_daemon(test)


def test_contexts_that_a_process_closed_are_forgotten_and_the_rest_is_looked_after() -> None:
    async def test(world: World) -> None:
        client, kept = world.tenant(), world.tenant(fd=9)
        await world.adopt(world.root(**{"class": "batch"}))
        assert slices(kept) == [500] * 4  # two contexts: not at tiny slices
        for handle in list(client.objects):
            if handle in client.objects:
                client.free(handle)
        for _ in range(2):
            world.checks.check(files=True, slices=True)
        (process,) = world.processes.under(PID)
        assert process.tasks[UUIDS[0]].task.contexts == 1
        assert slices(kept) == [1] * 4
        assert (len(world.keeping.guarded), world.borrower.open) == (1, 1)
        kept.objects.clear()
        world.checks.check(files=True, slices=True)
        assert world.nothing_is_left()

    in_a_daemon(test)


def test_one_that_may_be_armed_is_settled_before_its_contexts_go() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        world.tenant(fd=9)
        await world.adopt(world.root())
        (task,) = world.tasks()
        guarded: list[int] = []
        task.on_settle = lambda: guarded.append(len(world.keeping.guarded))
        for handle in list(client.objects):
            if handle in client.objects:
                client.free(handle)
        for _ in range(2):
            world.checks.check(files=True, slices=True)
        assert (guarded[0], len(world.keeping.guarded)) == (2, 1)

    in_a_daemon(test)


def test_what_a_tree_may_have_had_for_long_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look among all clients takes the driver long; after it, what is new is among the newest."""

    async def test(world: World) -> None:
        world.tenant()
        looks: list[bool] = []
        find = world.adoption._finder.find

        def noted(*which: Any, new: bool) -> Any:
            looks.append(new)
            return find(*which, new=new)

        monkeypatch.setattr(world.adoption._finder, "find", noted)
        root = world.root()
        assert not root.awaited  # nobody waits for it unless that is said
        await world.adopt(root, new_only=True)
        root.old = True  # as one is that a rule names
        for _ in range(2):
            await world.adopt(root, new_only=True)
        await world.adopt(root)
        assert looks == [True, False, True, False]

    in_a_daemon(test)


def test_a_process_is_a_root_once() -> None:
    async def test(world: World) -> None:
        world.root()
        with pytest.raises(RunlistError, match="managed already"):
            world.root()

    in_a_daemon(test)


def test_looks_at_a_process_are_its_users_and_of_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.tenant()
        asked: list[tuple[object, int]] = []
        run = world.adoption._workers.run

        async def noted(owner: Owner, root: int, *look: Any) -> Any:
            asked.append((owner, root))
            return await run(owner, root, *look)

        monkeypatch.setattr(world.adoption._workers, "run", noted)
        monkeypatch.setattr(world.adoption._finder, "may_have_work", lambda pid: pid == PID)
        with child() as top:
            root = world.root(top)
            await world.adopt(root, new_only=True)
            assert asked == [(Owner.of(PID, os.getuid()), top)] * 2
            del asked[:]
            assert not await world.adoption.may_have_work(top)  # below itself
            assert asked == [(Owner.of(top, os.getuid()), top)]

    in_a_daemon(test)


def test_a_second_context_of_a_process_never_has_a_slice_shorter_than_a_switch() -> None:
    """Two of them would stop each other."""

    async def test(world: World) -> None:
        first = world.tenant()
        root = world.root(**{"class": "batch"})
        await world.adopt(root)
        assert slices(first) == [1] * 4
        second, given = world.tenant(fd=9), []

        def note(call: Call) -> int | None:
            if call.command == SET_TIMESLICE and call.client == second.handle:
                given.append(int.from_bytes(call.params, "little"))
            return None

        world.rm.tenant(PID, 9).on_control = note
        await world.adopt(root)
        assert slices(second) == given == [500] * 4

    in_a_daemon(test)
