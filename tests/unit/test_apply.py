"""Getting from one set of shares to another: every step on the way is safe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Share, Task, TaskClass, TaskKey
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.rm.status import InvalidClient, RmError, error_class
from runlist.planes.nvidia.slices import SLICES
from runlist.scheduling.apply import apply_shares


class Gpu:
    """Records the state of all contexts after every control, as other processes on the GPU would see it."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.log: list[tuple[str, int]] = []

    def record(self, what: str, context: Context) -> None:
        self.log.append((what, context.pid))
        tiny = {one.pid for one in self.contexts if one.enabled and SLICES.is_tiny(one.slice_us)}
        assert len(tiny) <= 1, f"after {self.log}: {sorted(tiny)} stop each other"


class Context(GpuContext):
    """A GpuContext with one compute group and no driver behind it."""

    def __init__(self, gpu: Gpu, pid: int, share: Share) -> None:
        self.gpu, self.pid = gpu, pid
        self.original_us = {1: 2048, 2: 1024}
        self.groups = {1: None, 2: None}
        self.slice_us = share.timeslice_us or 2048
        self.enabled = share.enabled
        self.error: Exception | None = None
        self._prepared = {}
        gpu.contexts.append(self)

    def _do(self, what: str) -> None:
        if self.error is not None:
            raise self.error
        self.gpu.record(what, self)

    def set_timeslice(self, microseconds: int | None) -> None:
        if self.error is None:
            self.slice_us = microseconds or 2048
        self._do("slice")

    def _disable(self, disable: bool) -> None:
        if self.error is None:
            self.enabled = not disable
        self._do("suspend" if disable else "resume")


def managed(gpu: Gpu, pid: int, share: Share, contexts: int = 1) -> ManagedTask:
    task = ManagedTask(Task(TaskKey(pid, "GPU-0"), TaskClass.BATCH, "x", 0, 0.0), share=share)
    task.contexts = {key: Context(gpu, pid, share) for key in range(contexts)}  # type: ignore[misc]
    return task


def everything(gpu: Gpu, *shares: Share) -> dict[TaskKey, ManagedTask]:
    return {TaskKey(pid, "GPU-0"): managed(gpu, pid, share) for pid, share in enumerate(shares)}


def wanted(*shares: Share) -> dict[TaskKey, Share]:
    return {TaskKey(pid, "GPU-0"): share for pid, share in enumerate(shares)}


def test_only_what_differs_is_sent() -> None:
    gpu = Gpu()
    tasks = everything(gpu, Share(), Share(1, False), Share(20_000))
    apply_shares(tasks, wanted(Share(), Share(1, True), Share(20_000)), SLICES)
    assert gpu.log == [("resume", 1)]
    assert tasks[TaskKey(1, "GPU-0")].share == Share(1)


def test_a_turn_is_handed_over_by_two_controls() -> None:
    gpu = Gpu()
    apply_shares(everything(gpu, Share(1), Share(1, False)), wanted(Share(1, False), Share(1)), SLICES)
    assert gpu.log == [("suspend", 0), ("resume", 1)]


@pytest.mark.parametrize("slice_us", [1, 7_000])
def test_a_task_that_is_off_keeps_its_slice_until_it_comes_on(slice_us: int) -> None:
    """Setting one takes a control, and means nothing before."""
    gpu = Gpu()
    tasks = everything(gpu, Share(5_000))
    apply_shares(tasks, wanted(Share(slice_us, False)), SLICES)
    assert tasks[TaskKey(0, "GPU-0")].share == Share(5_000, False)
    apply_shares(tasks, wanted(Share(slice_us)), SLICES)
    assert tasks[TaskKey(0, "GPU-0")].share == Share(slice_us)
    assert gpu.log == [("suspend", 0), ("slice", 0), ("resume", 0)]


def test_slices_grow_before_others_shrink() -> None:
    gpu = Gpu()
    apply_shares(everything(gpu, Share(5000), Share(1)), wanted(Share(1), Share(5000)), SLICES)
    assert gpu.log == [("slice", 1), ("slice", 0)]


def test_the_default_counts_as_the_slice_it_stands_for() -> None:
    gpu = Gpu()
    apply_shares(everything(gpu, Share(), Share(1)), wanted(Share(1), Share()), SLICES)
    assert gpu.log == [("slice", 1), ("slice", 0)]


def test_a_task_that_fails_keeps_what_it_has_and_the_others_go_on() -> None:
    gpu = Gpu()
    tasks = everything(gpu, Share(), Share(), Share())
    error = error_class(0x65)(0x65, "SET_TIMESLICE")
    tasks[TaskKey(1, "GPU-0")].contexts[0].error = error  # type: ignore[attr-defined]
    failures = apply_shares(tasks, wanted(Share(7000), Share(7000, False), Share(7000)), SLICES)
    assert failures == {TaskKey(1, "GPU-0"): error}
    assert [task.share for task in tasks.values()] == [Share(7000), Share(), Share(7000)]


def test_a_context_whose_client_was_freed_is_dropped_without_a_failure() -> None:
    gpu = Gpu()
    tasks = {TaskKey(0, "GPU-0"): managed(gpu, 0, Share(), contexts=2)}
    task = tasks[TaskKey(0, "GPU-0")]
    task.contexts[0].error = InvalidClient(0x23, "x")  # type: ignore[attr-defined]
    assert apply_shares(tasks, wanted(Share(7000)), SLICES) == {}
    assert [key for key, context in task.contexts.items() if not context.groups] == [0]  # the next check drops it
    assert task.share == Share(7000)


_share = st.builds(Share, st.none() | st.sampled_from([1, 2, 499, 500, 2048, 20_000, 1_000_000]), st.booleans())


def _safe(shares: list[Share]) -> list[Share]:
    """At most one enabled task is tiny: the second gets a slice that is not."""
    seen, result = False, []
    for share in shares:
        tiny = share.enabled and SLICES.is_tiny(share.timeslice_us)
        result.append(Share(2048) if tiny and seen else share)
        seen |= tiny
    return result


@st.composite
def _transitions(draw: st.DrawFn) -> tuple[list[Share], list[Share]]:
    count = draw(st.integers(1, 6))
    pick = st.lists(_share, min_size=count, max_size=count).map(_safe)
    return draw(pick), draw(pick)


@given(_transitions())
def test_no_step_between_two_safe_states_is_unsafe(transition: tuple[list[Share], list[Share]]) -> None:
    before, after = transition
    gpu = Gpu()
    tasks = everything(gpu, *before)
    assert apply_shares(tasks, wanted(*after), SLICES) == {}
    ends = [share if share.enabled else replace(had, enabled=False) for had, share in zip(before, after, strict=True)]
    assert [task.share for task in tasks.values()] == ends
    assert [(context.slice_us, context.enabled) for context in gpu.contexts] == [
        (share.timeslice_us or 2048, share.enabled) for share in ends
    ]
    assert len(gpu.log) == len(set(gpu.log))  # nothing is sent twice


@given(_transitions(), st.data())
def test_nor_when_some_tasks_refuse(transition: tuple[list[Share], list[Share]], data: st.DataObject) -> None:
    before, after = transition
    gpu = Gpu()
    tasks = everything(gpu, *before)
    refusing = data.draw(st.sets(st.sampled_from(sorted(tasks))))
    for key in refusing:
        tasks[key].contexts[0].error = error_class(0x65)(0x65, "x")  # type: ignore[attr-defined]
    failures = apply_shares(tasks, wanted(*after), SLICES)
    assert set(failures) <= refusing
    assert all(isinstance(error, RmError) for error in failures.values())
