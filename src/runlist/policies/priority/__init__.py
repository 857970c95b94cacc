"""The default policy: classes latency, normal and batch, weights within each, and no livelock.

The foreground of a GPU is its latency and deadline tasks; when there are none, its normal tasks; else its batch tasks.
All other tasks are its background.

- A foreground task that is alone gets a long slice. A lone batch task gets 1 µs, so that processes that Runlist does
not manage get by. Several share by weight, at long slices among batch jobs and at short ones among latency tasks.
Beside a deadline task, which runs as long as its budget lasts, latency tasks have short slices.
- Of the background, one task at a time is enabled, at a slice of 1 µs: the foreground takes the GPU from it within one
context switch, and it gets whatever the foreground leaves. Turns go by weight; tasks without work are passed over.
- Where the foreground pauses so often that switches cost more than a part of the GPU (`switch_budget`), the background
gives way in another way: it is off for each request, or has longer slices (`parts/give_way.py`).
- A latency task that says when it will want the GPU (a hint) finds the background off, and so does one for which data
came in that led to work before (an announcement). Wrong announcements may take a part of the time (`announce_budget`).

Good for: protecting latency-critical services from any number of batch jobs.
Fails: when the foreground never pauses, the background starves; a cap on the foreground helps. Background tasks that
wait for their processor leave the GPU idle in their turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlist.model import (
    LATENCY_CRITICAL,
    Announce,
    Appear,
    Busy,
    Event,
    GivingWay,
    Hint,
    Share,
    Task,
    TaskClass,
    TaskKey,
    Vanish,
)
from runlist.policies.interface import Decision, Policy
from runlist.policies.parts.announcements import Announcements
from runlist.policies.parts.give_way import AUTO, WAYS, GiveWay, Way
from runlist.policies.parts.hints import Hints
from runlist.policies.parts.lengths import RequestLengths
from runlist.policies.parts.options import no_more, number, word
from runlist.policies.parts.slices import WeightedSlices
from runlist.policies.parts.turns import HAS_THE_TURN, WeightedTurns
from runlist.policies.parts.waiting import earliest

FOREGROUNDS = (LATENCY_CRITICAL, frozenset({TaskClass.NORMAL}), frozenset(TaskClass))
ALONE_US = {
    TaskClass.DEADLINE: 1_000_000,
    TaskClass.LATENCY: 1_000_000,
    TaskClass.NORMAL: 20_000,
    TaskClass.BATCH: 1,
}


class Priority(Policy):
    """Classes by slices, the background by turns. Options: `quantum_ms`, how long a turn is (default 100); `give_way`,
    how the background gives way to programs that pause (default auto); `switch_budget`, the part of the GPU that
    switches may cost (default 0.1); `announce_budget`, the part of the time for which the background may be off for
    announcements that were wrong (default 0.02; 0: nobody is asked to announce anything).
    """

    summary = (
        "classes latency / normal / batch; background tasks take turns "
        "(options quantum_ms, give_way switch|request|slice|auto, switch_budget, announce_budget)"
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        values = dict(options)
        # At 50 ms a request in fifty met a change of turns (1.2 ms): beside eight tasks the p99 ratio was 1.38.
        quantum_ms = number(values, "quantum_ms", 100.0, 5.0, 10_000.0, ms=True)
        way = word(values, "give_way", AUTO, WAYS)
        budget = number(values, "switch_budget", 0.1, 0.005, 0.5)
        announce_budget = number(values, "announce_budget", 0.02, 0.0, 0.5)
        no_more(values, "quantum_ms", "give_way", "switch_budget", "announce_budget")
        self._slices = WeightedSlices()
        self._turns = WeightedTurns(quantum_ms / 1e3)
        self._hints = Hints()
        self._announcements = Announcements(announce_budget)
        self._give_way = GiveWay(way, budget)
        self._lengths = RequestLengths()
        self._watched: Mapping[TaskKey, float] = {}
        self._off_for = ""

    def on_event(self, event: Event, now: float) -> bool:
        if isinstance(event, Hint):
            if not self._announcements.expects(event.key):  # its library announced it, too
                self._hints.note(event, now)
        elif isinstance(event, Announce):
            self._announcements.note(event, now)
        elif isinstance(event, Busy) and self._give_way.way is Way.REQUEST:
            self._announcements.worked(event.key)
        elif isinstance(event, Appear):
            self._announcements.appears(event.task)
        elif isinstance(event, Vanish):
            self._hints.drop(event.key)
            self._announcements.drop(event.key, now)
            self._turns.gone(event.key, event.usage)
        self._lengths.on_event(event, now, self._watched)
        return self._give_way.on_event(event, now)

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        foreground, background = _divide(tasks)
        shares, again = self._foreground(foreground, tasks, now)
        may_ask = {task.key: task for task in foreground if _may_hint(task)}
        hinted, look = self._hints.off_until(may_ask if background else {}, now)  # else it costs nobody anything
        announced, look_again = self._announced(may_ask, foreground, background, now)
        asked = dict(announced)
        if hinted is not None:
            asked |= {key: max(hinted, asked.get(key, hinted)) for key in self._hints.wanting()}
        manner = self._give_way.manner(foreground, background, now, asked)
        self._turns.turn_us, self._watched = manner.turn_us, manner.watch
        if manner.off_until is not None:
            behind, turn_ends = self._turns.off(background, tasks, now, manner.off_until), None
        else:
            behind, turn_ends = self._turns.shares(background, tasks, now)
        self._off_for = ""
        if manner.off_until is not None:
            self._off_for = "a hint" if hinted is not None else "an announcement" if announced else "a request"
        times = [again, turn_ends, look if background else None, look_again]
        again = min((each for each in times if each is not None), default=None)
        heard = self._announcements.heard(may_ask, now) if self._makes_room(foreground, background) else frozenset()
        at_once = manner.at_once and (heard or manner.watch.keys() - manner.unhurried)
        shares |= behind
        urgent = any(task.task_class in FOREGROUNDS[0] for task in foreground)
        decision = Decision(
            shares, again, watch=manner.watch, unhurried=manner.unhurried, announcing=heard,
            off_on_work=_enabled(behind if at_once else {}), off_on_arrival=_enabled({} if urgent else shares),
        )  # fmt: skip
        return earliest(now, decision, manner.look)

    def why(self, key: TaskKey) -> str:
        turn = self._turns.why(key)
        if turn and self._off_for:
            return f"kept off by {self._off_for}"
        if turn == HAS_THE_TURN and (way := self._give_way.why()):
            return f"{turn}; {way}"
        return turn or "; ".join(filter(None, (self._announcements.why(key), self._give_way.why_of(key))))

    def _makes_room(self, foreground: Sequence[Task], background: Sequence[Task]) -> bool:
        """Whether the background goes off for announcements. Whoever has slices of it notices nothing."""
        deadlines = any(task.task_class == TaskClass.DEADLINE for task in foreground)
        return bool(background) and not deadlines and self._give_way.way is not Way.SLICE

    def _announced(
        self, entitled: Mapping[TaskKey, Task], foreground: Sequence[Task], background: Sequence[Task], now: float
    ) -> tuple[dict[TaskKey, float], float | None]:
        if not self._makes_room(foreground, background):
            self._announcements.clear()
            return {}, None
        return self._announcements.off_until(entitled, now)

    def giving_way(self) -> GivingWay | None:
        told = self._give_way.told()
        return None if told is None else replace(told, requests_s=self._lengths.seconds)

    def _foreground(
        self, foreground: Sequence[Task], tasks: Sequence[Task], now: float
    ) -> tuple[dict[TaskKey, Share], float | None]:
        urgent = [task for task in foreground if task.task_class == TaskClass.DEADLINE or _alone(task, tasks)]
        shares = {task.key: Share(ALONE_US[task.task_class]) for task in urgent}
        if len(urgent) == len(foreground):
            self._slices.pause()
            return shares, None
        rest = [task for task in foreground if task.key not in shares]
        slices, again = self._slices.slices(rest, tasks, now)
        return shares | {key: Share(us) for key, us in slices.items()}, again


def _divide(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """The foreground and the background of the tasks that can run."""
    runnable = [task for task in tasks if not task.suspended]
    for classes in FOREGROUNDS:
        foreground = [task for task in runnable if task.task_class in classes]
        if foreground:
            return foreground, [task for task in runnable if task.task_class not in classes]
    return [], []


def _alone(task: Task, tasks: Sequence[Task]) -> bool:
    """Whether a task has the foreground for itself. Only latency tasks mind a short slice for a while: for all others,
    tasks that cannot run now count, too. Capped ones are back soon, and each change of a slice costs a control.
    """
    lasting = task.task_class != TaskClass.LATENCY
    classes = next(classes for classes in FOREGROUNDS if task.task_class in classes)
    return not any(
        other.task_class in classes and not task.is_one_with(other) and (lasting or not other.suspended)
        for other in tasks
    )


def _enabled(shares: Mapping[TaskKey, Share]) -> frozenset[TaskKey]:
    return frozenset(key for key, share in shares.items() if share.enabled)


def _may_hint(task: Task) -> bool:
    return task.task_class == TaskClass.LATENCY


POLICY = Priority
