"""The schedulers of all GPUs, and what happens to tasks whose controls fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from runlist.daemon.apply import Failures
from runlist.daemon.managed import ManagedTask
from runlist.daemon.scheduler import Scheduler
from runlist.errors import RunlistError
from runlist.model import TaskKey
from runlist.policies import PolicySpec, load_policy

_log = structlog.get_logger()


class Gpus:
    """One scheduler per GPU that has tasks, all with the same policy.

    `release` is called with the process id of a task that can no longer be controlled.
    """

    def __init__(self, spec: PolicySpec, release: Callable[[int], None]) -> None:
        load_policy(spec)  # a bad policy is refused at start
        self.spec = spec
        self._release = release
        self._schedulers: dict[str, Scheduler] = {}

    def scheduler(self, gpu: str) -> Scheduler:
        """The scheduler of a GPU, by UUID."""
        if gpu not in self._schedulers:
            self._schedulers[gpu] = Scheduler(gpu, self.spec, self._drop)
        return self._schedulers[gpu]

    def policy_of(self, gpu: str) -> str:
        """Name of the policy in force on a GPU."""
        return self._schedulers[gpu].policy_name if gpu in self._schedulers else self.spec.name

    def use(self, spec: PolicySpec) -> None:
        """Switch every GPU to a policy. When it refuses a task that is there: RunlistError, and nothing changed."""
        load_policy(spec)
        fresh = {gpu: load_policy(spec) for gpu in self._schedulers}
        for gpu, scheduler in self._schedulers.items():
            for managed in scheduler.tasks.values():
                if reason := scheduler.refusal(managed.task, fresh[gpu]):
                    raise RunlistError(f"{reason} (nothing changed)")
        self.spec = spec
        for gpu, scheduler in self._schedulers.items():
            scheduler.use(spec, fresh[gpu])
        self.run_all()

    def remove(self, task: ManagedTask) -> None:
        """Forget a task; the others get its share at the next run."""
        scheduler = self._schedulers.get(task.task.key.gpu)
        if scheduler is not None:
            scheduler.tasks.pop(task.task.key, None)

    def run(self, gpus: Iterable[str], asked_for: set[TaskKey]) -> None:
        """Reschedule GPUs. A failure of a task that the request is about is raised; others that failed are released."""
        failures: Failures = {}
        for gpu in gpus:
            failures.update(self.scheduler(gpu).run())
        self._drop({key: error for key, error in failures.items() if key not in asked_for})
        for key, error in failures.items():
            if key in asked_for:
                raise error

    def run_all(self) -> None:
        """Reschedule every GPU."""
        for scheduler in self._schedulers.values():
            self._drop(scheduler.run())

    def close(self) -> None:
        """Stop the timers."""
        for scheduler in self._schedulers.values():
            scheduler.close()

    def _drop(self, failures: Failures) -> None:
        for key, error in failures.items():
            _log.warning("a task cannot be controlled any more; released", pid=key.pid, gpu=key.gpu, reason=str(error))
            self._release(key.pid)
            self.scheduler(key.gpu).tasks.pop(key, None)
        if failures:
            self.run_all()  # without them, the others may get what was not safe beside them
