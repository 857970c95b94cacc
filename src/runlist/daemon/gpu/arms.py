"""What goes off at once on one GPU, when a task that is watched begins to work: the actuator armed as the policy says.

While a task is armed it may be suspended at any moment, and the books say so a moment later. So whoever changes it, or
lets go of it, settles that first (`ManagedTask.settle`): then the actuator has let go of all of this GPU.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from runlist.daemon.actuator.link import MOST_WORDS, ActuatorLink
from runlist.daemon.actuator.messages import Result
from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import RunlistError
from runlist.model import TaskKey
from runlist.planes.interface import Handle, Prepared
from runlist.scheduling.apply import Failures

SHY_S = 1.0
"""For how long a task is not armed whose word was disturbed, or could not be watched."""

_Words = tuple[tuple[TaskKey, Handle, int], ...]
_Targets = tuple[tuple[TaskKey, int, Prepared], ...]


class Fired(msgspec.Struct, frozen=True):
    """Which task began to work, since when one waited for that, who went off for it, what could not be suspended."""

    worker: TaskKey
    since: float
    off: tuple[TaskKey, ...]
    failures: Failures


class Arms:
    """The arm of one GPU. `on_fired` is called with the books put right, maybe in the middle of a change; `on_change`
    when the policy is to be asked anew.
    """

    def __init__(
        self,
        tasks: Mapping[TaskKey, ManagedTask],
        actuator: ActuatorLink | None,
        on_fired: Callable[[Fired], None],
        on_change: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._actuator = actuator
        self._on_fired = on_fired
        self._on_change = on_change
        self._number = 0  # of the arm; 0: there is none
        self._since = 0.0  # it is armed
        self._words: _Words = ()
        self._targets: _Targets = ()
        self._armed: dict[TaskKey, ManagedTask] = {}
        self._shy: dict[TaskKey, float] = {}

    def set(self, workers: Iterable[TaskKey], off: Iterable[TaskKey]) -> None:
        """Suspend the tasks `off` as soon as one of the workers begins to work. Both may be empty."""
        if self._actuator is None:
            return
        off = sorted(off, key=lambda key: key.pid)
        targets = self._find_targets(off)
        words = self._find_words(workers) if targets else ()
        if not words:
            off, targets = [], ()
        if (words, targets, off) == (self._words, self._targets, list(self._armed)):
            return
        self.disarm()
        if not words:
            return
        self._since = time.monotonic()
        files = [self._tasks[key].contexts[number].handle.fileno() for key, number, _ in targets]
        self._number = self._actuator.arm(
            [(region.fileno(), at) for _, region, at in words],
            [(fd, prepared) for fd, (_, _, prepared) in zip(files, targets, strict=True)],
            self,
        )
        if self._number:
            self._words, self._targets = words, targets
            self._armed = {key: self._tasks[key] for key in off}
            for managed in self._armed.values():
                managed.on_settle = self.disarm

    def keep(self, workers: Container[TaskKey]) -> None:
        """Disarm unless all that are armed for are among these."""
        if any(key not in workers for key, _, _ in self._words):
            self.disarm()

    def disarm(self) -> None:
        """Suspend nothing any more. What was suspended is in the books when this returns."""
        if self._number and self._actuator is not None:
            number, self._number = self._number, 0
            self._actuator.disarm(number)
        self._forget()

    # -- for the link: the owner of its arm --------------------------------------------------------

    def fired(self, word: int, results: Sequence[Result]) -> None:
        worker = self._words[word][0]
        done: dict[TaskKey, bool] = {}
        for (key, _, _), result in zip(self._targets, results, strict=True):
            done[key] = done.get(key, True) and result.done
        armed = self._forget()
        failures: Failures = {}
        for key, managed in armed.items():
            try:
                if done[key if managed.carrier is None else managed.carrier.task.key]:
                    managed.was_suspended()
                else:  # partly, or not at all
                    managed.set_enabled(False)
            except (RunlistError, OSError) as error:
                failures[key] = error
        self._on_fired(Fired(worker, self._since, tuple(armed), failures))

    def dropped(self, word: int) -> None:
        if word < len(self._words):
            self._shy[self._words[word][0]] = time.monotonic() + SHY_S

    def lost(self) -> None:
        failures: Failures = {}
        armed = self._forget()
        for key, managed in armed.items():
            try:
                managed.assert_enabled()
            except (RunlistError, OSError) as error:
                failures[key] = error
        if failures:
            self._on_fired(Fired(next(iter(failures)), self._since, (), failures))

    def may_arm(self) -> None:
        self._on_change()

    # ----------------------------------------------------------------------------------------------

    def _forget(self) -> dict[TaskKey, ManagedTask]:
        armed, self._armed = self._armed, {}
        for managed in armed.values():
            managed.on_settle = None
        self._number, self._words, self._targets = 0, (), ()
        return armed

    def _find_targets(self, off: Sequence[TaskKey]) -> _Targets:
        """All contexts of these tasks, but of those that another one carries; of none, where one cannot be suspended
        so, or the carrier stays on: the loop does it all.
        """
        found = []
        for key in off:
            if (carrier := self._tasks[key].carrier) is not None:
                if carrier.task.key not in off:
                    return ()
                continue
            for number, context in self._tasks[key].contexts.items():
                if (prepared := context.prepared_suspend()) is None:
                    return ()
                found.append((key, number, prepared))
        return tuple(found)

    def _find_words(self, workers: Iterable[TaskKey]) -> _Words:
        """Where these tasks say that they work: of the first of each user, then of the second, as many as there may
        be.
        """
        now = time.monotonic()
        self._shy = {key: until for key, until in self._shy.items() if now < until}
        ranks: Counter[int] = Counter()
        ranked = []
        for key in sorted(workers, key=lambda key: key.pid):
            managed = self._tasks.get(key)
            if managed is not None and key not in self._shy and (place := managed.watched_at()) is not None:
                ranked.append((ranks[managed.user], (key, *place)))
                ranks[managed.user] += 1
        ranked.sort(key=lambda each: each[0])
        return tuple(word for _, word in ranked[:MOST_WORDS])
