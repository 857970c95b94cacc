"""The schedulers of all GPUs, and the release of tasks whose controls fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial

import structlog

from runlist.daemon.actuator.link import ActuatorLink
from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.gpu.choice import Choice, open_source
from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.gpu.watchdog import Stalled, Watchdog
from runlist.daemon.tasks.managed import Count, ManagedTask, Root
from runlist.errors import RunlistError, UsageError
from runlist.model import TaskKey
from runlist.planes.interface import Plane
from runlist.policies import STALL_S, Policy, PolicySpec, load_policy
from runlist.scheduling.apply import Failures

_log = structlog.get_logger()

USAGE_KEPT_S = 0.02
"""How old usage may be in a run that a request asked for: reading takes 0.1 ms."""

LOAD_S = 5.0
"""How long loading a policy may take: a user's file may import much."""


class Gpus:
    """One scheduler per GPU that has tasks, all with the same policy.

    `release` is called with the process id of a task of which a control failed, and with why.
    """

    def __init__(
        self,
        plane: Plane,
        spec: PolicySpec,
        release: Callable[[int, RunlistError | OSError], None],
        actuator: ActuatorLink | None = None,
    ) -> None:
        self._watchdog = Watchdog(STALL_S)
        self._load(spec)  # a bad policy is refused at start
        self.spec = spec
        self._plane = plane
        self._release = release
        self._actuator = actuator
        self._schedulers: dict[str, Scheduler] = {}
        self._numbers: Mapping[int, str] | None = None  # of GPUs; None: nobody asked yet

    def scheduler(self, gpu: str) -> Scheduler:
        """The scheduler of a GPU, by UUID."""
        if gpu not in self._schedulers:
            choice = open_source(self._plane, gpu)
            accounting = Accounting(gpu, choice.source, choice.refusals, partial(self._open_again, gpu))
            policy = self._load(self.spec)
            self._schedulers[gpu] = Scheduler(
                accounting, self.spec, policy, self._watchdog, self._drop, self._plane.slices, self._actuator,
                self._plane.watch_paths(),
            )  # fmt: skip
        return self._schedulers[gpu]

    def _open_again(self, gpu: str) -> Future[Choice]:
        """In a thread: of a GPU that is lost the driver may take its time."""
        answer: Future[Choice] = Future()

        def work() -> None:
            choice = Choice(BookUsage(), ())
            try:
                choice = open_source(self._plane, gpu)
            finally:
                answer.set_result(choice)

        try:
            threading.Thread(target=work, daemon=True, name="usage").start()
        except RuntimeError:  # there is no room for a thread
            answer.set_result(Choice(BookUsage(), ()))
        return answer

    def numbered(self, number: int) -> str | None:
        """The UUID of the GPU that has this number for the driver, once it has said so. It is asked at the first call,
        in a thread: to open a GPU that nobody uses may take seconds.
        """
        if self._numbers is None:
            self._numbers = {}
            asked = asyncio.get_running_loop().run_in_executor(None, self._plane.gpu_numbers)
            asked.add_done_callback(self._take_numbers)
        return self._numbers.get(number)

    def _take_numbers(self, asked: asyncio.Future[Mapping[int, str]]) -> None:
        try:
            self._numbers = asked.result()
        except (RunlistError, OSError) as error:
            _log.warning("the driver does not tell its numbers of GPUs", reason=str(error))
        except asyncio.CancelledError:
            pass

    @property
    def actuator_pid(self) -> int:
        """Process id of what suspends tasks at once; 0 where there is none."""
        return 0 if self._actuator is None else self._actuator.pid

    def all(self) -> list[Scheduler]:
        """The schedulers of all GPUs that have or had tasks."""
        return list(self._schedulers.values())

    def with_listed(self, listed: Iterable[str]) -> list[str]:
        """GPUs that are listed, as by a census, and those that have or had tasks all the same."""
        return list(dict.fromkeys([*listed, *self._schedulers]))

    def use(self, spec: PolicySpec) -> None:
        """Switch every GPU to a policy. Raises RunlistError, and changes nothing, when it refuses a present task."""
        self._load(spec)
        fresh = {gpu: self._load(spec) for gpu in self._schedulers}
        for gpu, scheduler in self._schedulers.items():
            for managed in scheduler.tasks.values():
                if reason := scheduler.refusal(managed.task, fresh[gpu]):
                    raise RunlistError(f"{reason} (nothing changed)")
        self.spec = spec
        for gpu, scheduler in self._schedulers.items():
            scheduler.loop.use(spec, fresh[gpu])
        self.run_all()

    def remove(self, task: ManagedTask) -> None:
        """Forget a task; the others get its share at the next run."""
        scheduler = self._schedulers.get(task.task.key.gpu)
        if scheduler is not None:
            scheduler.remove(task.task.key)

    def tree_ended(self, root: Root) -> None:
        """Keep the counts of a tree."""
        for gpu, scheduler in self._schedulers.items():
            scheduler.ended[Count.MEMORY_REFUSALS] += root.quota.refused(gpu)
            scheduler.ledger.tree_ended(root.quota)

    def run(self, gpus: Iterable[str], asked_for: set[TaskKey]) -> None:
        """Reschedule GPUs. Raises the failure of a task in `asked_for`; other tasks that failed are released."""
        failures: Failures = {}
        for gpu in gpus:
            failures.update(self.scheduler(gpu).run(USAGE_KEPT_S))
        self._drop({key: error for key, error in failures.items() if key not in asked_for})
        for key, error in failures.items():
            if key in asked_for:
                raise error

    def run_all(self) -> None:
        """Reschedule every GPU."""
        for scheduler in self._schedulers.values():
            self._drop(scheduler.run())

    def read_usage(self, kept_s: float) -> bool:
        """Bring accounts that are older than `kept_s` up to now. Returns whether any GPU is in use."""
        for scheduler in self._schedulers.values():
            scheduler.loop.read_usage(kept_s)
        return any(scheduler.accounting.in_use for scheduler in self._schedulers.values())

    def look_beside(self) -> None:
        """See which other daemons have tasks on the same GPUs."""
        for scheduler in self._schedulers.values():
            scheduler.look_beside()

    def close(self) -> None:
        """Stop the timers."""
        for scheduler in self._schedulers.values():
            scheduler.close()

    def _load(self, spec: PolicySpec) -> Policy:
        """A policy for one GPU. Raises UsageError for one that cannot be loaded, or not in time."""
        try:
            return self._watchdog.call(lambda: load_policy(spec), LOAD_S)
        except Stalled as error:
            raise UsageError(f"policy {spec.name}: loading it {error}") from None

    def _drop(self, failures: Failures) -> None:
        for key, error in failures.items():
            self._release(key.pid, error)
            self.scheduler(key.gpu).remove(key)
        if failures:
            self.run_all()  # shares that were unsafe beside them may be safe now
