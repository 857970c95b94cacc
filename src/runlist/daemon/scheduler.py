"""One GPU's scheduler: asks the policy when something changed or its timer ran out, and applies the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from runlist.daemon.apply import Failures, apply_shares
from runlist.daemon.guard import safe_shares
from runlist.daemon.managed import ManagedTask
from runlist.model import Share, Task, TaskKey
from runlist.policies import Policy, PolicySpec, load_policy

_log = structlog.get_logger()
_MIN_TIMER_S = 0.001


class Scheduler:
    """The tasks of one GPU and the policy that decides their shares.

    `on_failure` is told of tasks whose controls failed when the timer, not a request, asked; requests get failures
    returned.
    """

    def __init__(self, gpu: str, spec: PolicySpec, on_failure: Callable[[Failures], None]) -> None:
        self.gpu = gpu
        self.tasks: dict[TaskKey, ManagedTask] = {}
        self.policy_name = spec.name
        self._policy = load_policy(spec)
        self._on_failure = on_failure
        self._timer: asyncio.TimerHandle | None = None
        self._said: set[str] = set()

    def refusal(self, task: Task, policy: Policy | None = None) -> str | None:
        """Why the policy (or another one) does not take a task beside those that are there, or None."""
        others = [managed.task for managed in self.tasks.values()]
        try:
            return (policy or self._policy).admit(task, others)
        except Exception as error:  # a user's policy may raise anything
            return f"the policy failed at admitting process {task.key.pid}: {error!r}"

    def use(self, spec: PolicySpec, policy: Policy) -> None:
        """Switch to another policy; shares change at the next `run`."""
        self.policy_name = spec.name
        self._policy = policy
        self._said.clear()

    def run(self) -> Failures:
        """Ask the policy now, and apply what it says."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.tasks:
            return {}
        shares, notes, again_after_s = self._decide()
        for note in notes:
            self._say_once(note)
        failures = apply_shares(self.tasks, shares)
        if again_after_s is not None:
            delay = max(_MIN_TIMER_S, again_after_s)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        return failures

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _decide(self) -> tuple[dict[TaskKey, Share], list[str], float | None]:
        """Safe shares, what was wrong with the policy's, and in how many seconds to ask again."""
        try:
            return self._ask()
        except Exception as error:  # a user's policy may raise or return anything
            _log.error("policy dropped for the default one", policy=self.policy_name, gpu=self.gpu, error=repr(error))
            spec = PolicySpec()
            self.use(spec, load_policy(spec))
            return self._ask()

    def _ask(self) -> tuple[dict[TaskKey, Share], list[str], float | None]:
        tasks = [managed.task for managed in self.tasks.values()]
        decision = self._policy.decide(tasks, time.monotonic())
        in_force = {key: managed.share for key, managed in self.tasks.items()}
        shares, notes = safe_shares(tasks, decision.shares, in_force)
        return shares, notes, None if decision.again_after_s is None else float(decision.again_after_s)

    def _on_timer(self) -> None:
        self._timer = None
        failures = self.run()
        if failures:
            self._on_failure(failures)

    def _say_once(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            _log.warning(note, gpu=self.gpu, policy=self.policy_name)
