"""Every second: changes that managed processes made themselves, and queued tasks for which there is room."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterable, Iterator
from functools import partial

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rules import Over
from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tasks.managed import Count, ManagedProcess, ManagedTask, SuspendedBy
from runlist.daemon.tree.changed_users import ChangedUsers
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.sleepers import Sleepers
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import RunlistError
from runlist.model import Appear
from runlist.planes.interface import Context
from runlist.proc.aside import ask_all

_log = structlog.get_logger()

PIECE_S = 0.004
"""So long tasks are set right in a row: each takes the driver 0.3 to 1 ms."""


class Checks:
    """Checks managed processes."""

    def __init__(
        self, processes: Processes, gpus: Gpus, keeper: KeeperLink, placement: Placement, lending: Lending
    ) -> None:
        self._processes = processes
        self._gpus = gpus
        self._keeper = keeper
        self._placement = placement
        self._lending = lending
        self.changed_users = ChangedUsers(processes, gpus)
        self._without_files, self._without_slices = Sleepers(), Sleepers()

    def check(self, files: bool, slices: bool, of: Container[int] = ()) -> None:
        """With `files`, forget contexts whose processes closed their files or ran exec; with `slices`, put slices back
        that they changed, or else those of some processes.
        """
        self._admit_queued()
        self._lending.check()
        self._processes.forget_away()
        self.changed_users.check()
        processes = [process for pid in list(self._processes.managed) if (process := self._processes.of(pid))]
        if files:
            self._check_files(self._without_files.left_out(processes))
        awake = {process.pid for process in self._without_slices.left_out(processes)} if slices else set()
        for process in processes:
            if process.pid in awake or process.pid in of:
                self.correct(process.pid)
        self._assert_unsure()

    def _assert_unsure(self) -> None:
        """A client of MPS ends when the last of those who have its file closes that, the keeper maybe; and only then is
        what was disabled by it no more.
        """
        now = time.monotonic()
        for task in self._processes.tasks():
            if now < task.unsure_until and not task.share.enabled:
                try:
                    task.assert_enabled()
                except (RunlistError, OSError) as error:
                    _log.warning("a task could not be suspended once more", pid=task.task.key.pid, reason=str(error))

    def assert_all(self, but: int | None = None) -> Iterator[None]:
        """Have all tasks run, or not, as their shares say, but those of one process: a stranger may have changed it.
        Others may be served where it yields.
        """
        armed, began = set(), time.monotonic()
        for task in list(self._processes.tasks()):
            if task.task.key.pid == but or task.carrier is not None or task.outside:
                continue
            armed |= set() if task.on_settle is None else {task.task.key.gpu}
            with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
                task.set_right()
            if time.monotonic() - began >= PIECE_S:
                yield
                began = time.monotonic()
        self._gpus.run(armed, set())

    def check_files(self, pid: int) -> None:
        """Forget the contexts of a process on files that it has closed."""
        process = self._processes.managed.get(pid)
        if process is not None:
            self._check_files([process])

    def _check_files(self, processes: Iterable[ManagedProcess]) -> None:
        answers = ask_all((process.pid, partial(process.on_lost_files, self._lending)) for process in processes)
        for pid, lost in answers.items():
            process = self._processes.managed.get(pid)
            if process is not None and lost:
                self._processes.drop(process, lost, by_itself=True)
                self._gpus.run_all()

    def correct(self, pid: int, *, off: bool = False) -> None:
        """Put the slices that a process changed itself back, and forget the contexts that it closed. With `off` it may
        also have enabled itself: what is suspended is suspended again.
        """
        process = self._processes.managed.get(pid)
        if process is None:
            return
        for task in list(process.tasks.values()):
            try:
                self._correct(process, task)
                if off and not task.share.enabled and not task.is_shared:
                    task.suspend_again()
            except (RunlistError, OSError) as error:
                self._processes.lose(pid, error)
                self._gpus.run_all()
                return

    def _correct(self, process: ManagedProcess, task: ManagedTask) -> None:
        if wrong := _with_wrong_slices(task):
            by_itself = time.monotonic() > task.settles_at
            if not by_itself:  # CUDA itself sets slices while it makes a context: those are the original ones
                for key in wrong:  # an older context has ours, which is nobody's original
                    task.contexts[key].take_as_original()
                    self._keeper.renew(key)
            task.set_timeslice(task.share.timeslice_us)
            if by_itself:
                task.counts[Count.SLICES_PUT_BACK] += 1
                _log.info("a task had changed its own slice; put back", pid=process.pid, gpu=task.task.key.gpu)
        task.recount()
        if closed := process.keys(lambda context: not context.groups):
            self._processes.drop(process, closed, by_itself=True)
            self._gpus.run_all()

    def _admit_queued(self) -> None:
        """Let queued tasks run as far as there is room, or as batch once the limits say so."""
        admitted = set()
        for scheduler in self._gpus.all():
            if not any(task.queued for task in scheduler.tasks.values()):
                continue
            while task := self._placement.queue.next_task(scheduler.gpu, self._processes.starting):
                task.let_go(SuspendedBy.ROOM)
                admitted.add(scheduler.gpu)
            if self._placement.rules.limits.over is Over.BATCH:
                for task in [task for task in scheduler.tasks.values() if task.queued]:
                    if not scheduler.refusal(task.as_batch):
                        task.take_as_batch()
                        task.let_go(SuspendedBy.ROOM)
                        scheduler.tell(Appear(task.task))
                        admitted.add(scheduler.gpu)
        self._gpus.run(admitted, set())


def _with_wrong_slices(task: ManagedTask) -> list[int]:
    """The keeper's keys of a task's contexts whose slice is not that of its share. One whose client was freed, although
    its file is still open, is left without groups.
    """
    wrong: list[Context] = []

    def ask(context: Context) -> None:
        if context.wrong_timeslices(task.share.timeslice_us):
            wrong.append(context)

    task.each(ask)
    return [key for key, context in task.contexts.items() if context in wrong]
