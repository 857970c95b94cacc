"""One task and one process as the daemon has them, with contexts that note what is done to them."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.tasks.managed import GAVE_WAY, Count, ManagedProcess, ManagedTask, Own, SuspendedBy
from runlist.errors import ContextGone, RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey
from runlist.proc.process import Program


class Context:
    def __init__(self, found_us: int = 2048, competing: int = 1, client: int = 70) -> None:
        self.found_us, self.competing, self.client = found_us, competing, client
        self.handle: Any = object()
        self.groups = {5: "a group"}
        self.group_ids = [found_us]
        self.did: list[Any] = []
        self.fails: Exception | None = None
        self.touched: set[str] = set()

    def _do(self, what: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.did.append(what)

    def set_timeslice(self, microseconds: int | None) -> None:
        self._do(microseconds)

    def suspend(self) -> None:
        self._do("off")

    def resume(self) -> None:
        self._do("on")

    def resume_at_once(self) -> None:
        self._do("what computes is on")

    def rouse(self) -> None:
        self._do("roused")

    def preempt(self) -> None:
        self._do("preempted")

    def will_touch(self, name: str) -> bool:
        new = name not in self.touched
        self.touched.add(name)
        return new

    def set_control(self, name: str, word: str | None) -> None:
        self._do((name, word))

    def forget_groups(self) -> None:
        self.groups.clear()

    def put_back(self) -> list[str]:
        self._do("put back")
        return [f"trouble of {self.found_us}"]

    def done(self) -> list[Any]:
        done, self.did = self.did, []
        return done


def managed(*contexts: Context, pid: int = 1) -> ManagedTask:
    task = Task(TaskKey(pid, "GPU-0"), TaskClass.NORMAL, "program", 1000, 0.0)
    return ManagedTask(task, dict(enumerate(contexts, 10)))  # type: ignore[arg-type]


def test_one_that_is_new_is_on_and_nothing_was_done_to_it() -> None:
    one = managed(Context())
    assert (one.share.enabled, one.disabled, one.copies, one.gave_way, one.queued) == (True, False, False, False, False)
    assert (one.remark, one.is_off, one.is_shared, one.told(), one.watched_at()) == ("", False, False, None, None)
    assert (one.discovery_ms, one.attach_ms, one.room_ms) == (0.0, 0.0, None)
    one.ask_for_work(asked=True)  # it has no library: nobody to ask


def test_a_share_without_a_slice_means_the_longest_that_it_was_found_with() -> None:
    assert managed(Context(1024), Context(4096), Context(2048)).slice_us(Share()) == 4096
    assert managed(Context(1024)).slice_us(Share(7)) == 7
    assert managed().slice_us(Share()) == 0


def test_all_contexts_are_suspended_and_resumed_and_that_is_counted_once() -> None:
    contexts = Context(), Context()
    one = managed(*contexts)
    for enabled, did, count in (
        (False, "off", 1),
        (False, "off", 1),
        (True, "on", 1),
        (True, "on", 1),
        (False, "off", 2),
    ):
        one.set_enabled(enabled)
        assert [context.done() for context in contexts] == [[did], [did]]
        assert (one.share.enabled, one.counts[Count.SUSPENSIONS], one.is_off) == (enabled, count, not enabled)


def test_a_control_that_fails_leaves_the_share_and_may_have_stopped_something() -> None:
    one = managed(context := Context())
    context.fails = RunlistError("no")
    with pytest.raises(RunlistError, match="no"):
        one.set_enabled(False)
    assert (one.share.enabled, one.disabled, one.counts[Count.SUSPENSIONS]) == (True, True, 0)
    with pytest.raises(RunlistError, match="no"):
        one.set_timeslice(5)
    assert one.share.timeslice_us is None


def test_a_context_whose_client_was_freed_keeps_no_other_from_it() -> None:
    gone, here = Context(), Context()
    one = managed(gone, here)
    gone.fails = ContextGone("the client was freed")
    one.set_timeslice(5)
    assert (here.done(), gone.groups, one.share.timeslice_us) == ([5], {}, 5)


def test_what_the_actuator_suspended_comes_on_by_what_computes_and_is_not_counted_again() -> None:
    one = managed(context := Context())
    one.was_suspended()
    assert (one.share.enabled, one.remark, one.counts[Count.SUSPENSIONS], one.disabled) == (False, GAVE_WAY, 1, True)
    one.set_enabled(False)
    assert (context.done(), one.counts[Count.SUSPENSIONS], one.copies) == (["off"], 1, False)
    one.was_suspended()
    one.set_enabled(True)
    assert (context.done(), one.is_off) == (["what computes is on"], False)


def test_one_that_may_go_off_at_once_is_settled_before_anything_else() -> None:
    one = managed(context := Context())

    def settle() -> None:
        one.on_settle = None
        one.was_suspended()

    one.on_settle = settle
    one.set_enabled(False)  # it went off just now: no second control
    assert (context.done(), one.share.enabled) == ([], False)
    one.set_enabled(True)
    context.done()
    one.on_settle = settle
    one.set_enabled(True)
    assert (context.done(), one.share.enabled) == (["what computes is on"], True)
    one.on_settle = settle
    one.set_right()  # a stranger may have changed it
    assert context.done() == ["off"]


def test_causes_of_suspension_add_up() -> None:
    one = managed(Context())
    one.suspend_for(SuspendedBy.ROOM)
    one.suspend_for(SuspendedBy.MEMORY, "over its limit")
    assert (one.task.suspended, one.queued, one.remark) == (True, True, "over its limit")
    one.let_go(SuspendedBy.MEMORY)
    assert (one.task.suspended, one.remark) == (True, "")
    one.suspend_for(SuspendedBy.POLICY, "it did what it may not")
    assert one.remark == "it did what it may not"
    for cause in (SuspendedBy.ROOM, SuspendedBy.POLICY, SuspendedBy.USER):
        one.let_go(cause)
    assert (one.task.suspended, one.queued, one.remark) == (False, False, "")


# -- one that another carries ----------------------------------------------------------------------


def test_whom_another_one_carries_goes_off_and_comes_on_by_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    carrier, one = managed(Context(), pid=2), managed(context := Context())
    one.be_carried(carrier)
    assert (one.unsure_until, one.is_shared) == (105.0, True)
    one.set_enabled(False)
    assert (context.done(), one.share.enabled, one.disabled) == ([], False, False)
    carrier.set_enabled(False)
    assert one.is_off
    late = Context()
    one.take_in(late)  # type: ignore[arg-type]
    one.rouse()
    one.was_suspended()
    assert (late.done(), context.done(), one.copies, one.disabled) == ([], [], False, False)
    carrier.set_enabled(True)
    one.be_carried(None)
    assert (one.share.enabled, one.is_off, one.is_shared) == (True, False, False)


def test_channels_of_its_own_that_are_off_come_on_though_another_one_carries_it() -> None:
    carrier, one = managed(Context(), pid=2), managed(context := Context())
    one.set_enabled(False)
    one.be_carried(carrier)
    assert (context.done(), one.share.enabled) == (["off"], False)  # its own keep it off
    one.set_enabled(True)
    one.set_enabled(True)
    assert (context.done(), one.disabled) == (["on"], False)


# -- what comes later ------------------------------------------------------------------------------


def test_a_context_that_comes_later_is_as_the_others_are() -> None:
    one, late = managed(context := Context()), Context()
    one.take_in(late)  # type: ignore[arg-type]
    assert late.done() == []
    one.set_enabled(False)
    one.take_in(late)  # type: ignore[arg-type]
    assert late.done() == ["off"]
    one.set_enabled(True)
    one.take_in(late)  # type: ignore[arg-type]
    assert late.done() == ["on"]  # it may have been made while its group was off
    one.was_suspended()
    context.done()
    one.take_in(late)  # type: ignore[arg-type]
    assert (context.done(), one.copies) == (["off"], False)  # which groups compute may have changed


def test_how_many_contexts_compete_is_told_where_it_changed() -> None:
    one = managed(Context(competing=2), Context(competing=1))
    one.recount()
    assert one.task.contexts == 3
    before = one.task
    one.recount()
    assert one.task is before
    one.contexts.clear()
    one.recount()
    assert one.task.contexts == 1
    assert managed(Context(7), Context(9)).group_ids == {7, 9}


def test_a_control_of_the_driver_is_set_everywhere_and_known_until_it_is_the_default() -> None:
    contexts, renewed = (Context(), Context()), []
    one = managed(*contexts)
    for word, known in (("high", {"interleave": "high"}), ("low", {"interleave": "low"}), (None, {})):
        one.set_control("interleave", word, renewed.append)
        assert [context.done() for context in contexts] == [[("interleave", word)]] * 2
        assert one.controls == known
    assert renewed == [10, 11]  # their undo grew once


def test_it_is_roused_where_it_is_on_and_preempted_whatever_comes_of_it() -> None:
    one = managed(context := Context())
    one.rouse()
    one.preempt()
    assert (context.done(), one.counts[Count.ROUSED]) == (["roused", "preempted"], 1)
    one.set_enabled(False)
    context.done()
    one.rouse()
    context.fails = RunlistError("no")
    one.preempt()
    assert (context.done(), one.counts[Count.ROUSED]) == ([], 1)


# -- a process -------------------------------------------------------------------------------------


class File:
    def __init__(self) -> None:
        self.fd = os.memfd_create("file")

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        os.close(self.fd)


def test_what_a_process_has_on_files_that_it_closed_is_lost() -> None:
    pidfd = os.pidfd_open(os.getpid())
    root: Any = SimpleNamespace()
    process = ManagedProcess(os.getpid(), pidfd, root)
    files = [File(), File(), File()]
    contexts = [Context(client=client) for client in (70, 71, 72)]
    for file, context in zip(files, contexts, strict=True):
        context.handle = file
    process.tasks = {"GPU-0": managed(*contexts)}
    open_, lent, closed = files
    process.files = {open_.fd: open_, -3: lent, 1 << 19: closed}  # type: ignore[dict-item]
    asked: list[tuple[int, int]] = []

    def has(pid: int, fd: int) -> bool:
        asked.append((pid, fd))
        return True

    lending: Any = SimpleNamespace(has=has)
    assert process.on_lost_files(lending) == [12]
    assert asked == [(os.getpid(), -3)]
    assert process.keys() == [10, 11, 12]
    assert process.keys(lambda context: context.client == 71) == [11]
    assert process.groups() == {(70, 5), (71, 5), (72, 5)}
    assert process.put_back() == ["trouble of 2048"] * 3
    del process.tasks["GPU-0"].contexts[12]
    process.close_unused()
    assert process.files == {open_.fd: open_, -3: lent}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed.fd)
    process.close()
    process.close()
    for fd in (open_.fd, lent.fd, pidfd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_somebody_else_set_meanwhile_is_no_more_its_own_but_memory() -> None:
    own = Own(Program.of(os.getpid()), {"weight": "7", "memory": "3G", "class": "batch"}, alone=False)
    own.let_go({"weight", "memory", "cap"})
    assert own.settings == {"memory": "3G", "class": "batch"}
