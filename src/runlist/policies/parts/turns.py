"""Turns: background tasks, one of which may run at a time, by weight, as a rule at slices of 1 µs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.policies.parts.pace import NEVER, reached
from runlist.policies.parts.rations import rations
from runlist.policies.parts.remembered import remembered
from runlist.policies.parts.together import as_one

TURN_US = 1
"""The foreground takes the GPU from a task with this slice within one context switch. Two such tasks must never be
enabled together: their slices are shorter than a switch, and they stop each other for good (livelock).
"""
PARKED_US = 1_000
"""Longer than a switch, so that several tasks may have it at once without a livelock."""

CLASS_WEIGHTS = {TaskClass.NORMAL: 4, TaskClass.BATCH: 1}

LOOK_S, BUSY_LOOK_S = 0.010, 0.050
"""How often the task that has the turn is looked at: one that may have no work, and one that surely had some."""
IDLE_BELOW, BUSY_ABOVE = 0.05, 0.5
"""Below the first part of the time that the others leave, a task has no work; above the second it surely has."""
ENOUGH = 0.1
"""Nothing is concluded from a time of which the others left less than this part."""

PARKED_LOOK_S, PARKED_LONGEST_LOOK_S = 0.020, 0.080
AWAKE_S, AWAKE_ABOVE, AWAKE_EACH = 0.004, 0.25, 0.1
"""Parked tasks have work again when together they hold the GPU for more than the first, and for more than the second
part of the time that the foreground leaves; those with less than the third part of that stay parked.
"""

WORKLOAD_S = 1.0
"""Over how long the foreground's load is measured: its idle time becomes known up to 1.3 s late."""
REMEMBERED_S = 30.0

HAS_THE_TURN = "has the turn"


class _Account(msgspec.Struct):
    """A task's or a group's record: `virtual` is time held by weight, `last` when it last had the turn. A group's
    `clock` is the least that one of its tasks in the rotation has had.
    """

    virtual: float = 0.0
    clock: float = 0.0
    last: float = float("-inf")
    seen: float = 0.0


class _Member(msgspec.Struct):
    """A task of the rotation, or a parked one: its `held` seconds count from the last look at the parked ones, and
    `group` is the one that it was last in.
    """

    account: _Account
    group: str = ""
    parked: bool = False
    busy: bool = False  # it surely had work at the last look
    held: float = 0.0


class _Turn(msgspec.Struct):
    """Whose turn it is, and when it is next looked at. `own` and `others` are seconds held since `since`."""

    key: TaskKey
    since: float
    ends: float
    look_at: float = NEVER
    own: float = 0.0
    others: float = 0.0
    switched_in: int = 0


class WeightedTurns:
    """One task at a time may run; the others of the rotation are suspended.

    The turn goes to the group, and in it to the task, that has held the GPU least by its weight (a normal task's weight
    counts four times). A heavier one gets several turns in a row: passing the turn on takes two controls of 0.5 to
    0.75 ms, keeping it takes none. Newcomers start level with the one that has had the least, and so does whoever has
    work again: nobody saves up by being away, and what one had while nobody else wanted it is not held against it.

    A task that leaves its turn unused has no work and is parked: it stays enabled, at a slice that is safe beside
    others. So it starts by itself when it gets work, and it comes back to the rotation when it is seen at work.
    Nobody is parked where the source of usage cannot tell turns. `turn_us` is the slice of the task that has the turn.
    Tasks that run together have their turns as one.
    """

    def __init__(self, quantum_s: float) -> None:
        self.turn_us = TURN_US
        self._quantum_s = quantum_s
        self._groups: dict[str, _Account] = {}
        self._clock = 0.0  # the least that a group in the rotation has had; it never goes back
        self._members: dict[TaskKey, _Member] = {}
        self._turn: _Turn | None = None
        self._usage: dict[TaskKey, Usage] = {}  # of all tasks, at the last call
        self._in: dict[TaskKey, str] = {}  # the background, at the last call: what each task shares as
        self._weights: dict[TaskKey, int] = {}  # of these, then
        self._group_weights: dict[str, float] = {}
        self._rations: Mapping[str, float] = {}  # what their owners leave groups of their weights
        self._found: Mapping[TaskKey, TaskKey] = {}  # as which of these a task of the background is found
        self._workload = _Workload()
        self._parked_look = _ParkedLook()
        self._exact = False  # the source of usage tells turns
        self._off_since: float | None = None

    def off(self, background: Sequence[Task], tasks: Iterable[Task], now: float, until: float) -> dict[TaskKey, Share]:
        """Shares while all are kept off, at the latest until `until`. That time counts for nobody's turn."""
        if self._off_since is None:
            self._account(tasks)
            self._off_since = now
        self._usage = {task.key: task.usage for task in tasks}
        _, found = as_one(background)
        return {key: Share(self._slice(one), enabled=False, until=until) for key, one in found.items()}

    def gone(self, key: TaskKey, usage: Usage) -> None:
        """A task is no longer there: what it used counts for its group."""
        if self._off_since is None:
            self._charge(key, usage)
        self._usage.pop(key, None)

    def shares(
        self, background: Sequence[Task], tasks: Sequence[Task], now: float
    ) -> tuple[dict[TaskKey, Share], float | None]:
        """Shares of the `background`, and in how many seconds to ask again (None: on change).

        `tasks` are all tasks of the GPU; those outside the background are the foreground.
        """
        if self._off_since is None:
            self._account(tasks)
        self._usage = {task.key: task.usage for task in tasks}
        self._return_from_off(now)
        background, self._found = as_one(background)
        self._enter(background, now)
        self._advance()
        if not background:
            self._turn = None
            return {}, None
        if len(background) == 1:
            (only,) = background
            self._members[only.key].parked = False
            self._turn = None
            return dict.fromkeys(self._found, Share(self.turn_us)), None
        self._workload.measure([task for task in tasks if task.key not in self._found], now)
        self._exact = self._exact or any(task.usage.turns for task in tasks)
        if self._exact:
            self._park_idle(now)
            self._unpark_awake(background, now)
        self._pass_on(background, now)
        turn = self._turn.key if self._turn else None
        shares = {
            task.key: Share(self._slice(task.key), enabled=task.key == turn or self._members[task.key].parked)
            for task in background
        }
        return {key: shares[one] for key, one in self._found.items()}, self._again(now)

    def why(self, key: TaskKey) -> str:
        """What a task is doing here, or nothing when it is not."""
        one = self._found.get(key)
        if one is None:
            return ""
        if self._members[one].parked:
            return "idle, starts by itself"
        return HAS_THE_TURN if self._turn is None or self._turn.key == one else "waits for its turn"

    def _slice(self, key: TaskKey) -> int:
        member = self._members.get(key)
        return PARKED_US if member and member.parked else self.turn_us

    def _return_from_off(self, now: float) -> None:
        if self._off_since is None:
            return
        if self._turn:  # it starts afresh, for its rest
            left = max(0.0, self._turn.ends - self._off_since)
            self._turn = _Turn(self._turn.key, now, now + left)
        self._off_since = None

    def _enter(self, background: Sequence[Task], now: float) -> None:
        """Newcomers, and tasks that were away, start level with the others."""
        present = {task.key: task for task in background}
        names = {task.key: task.shares_as for task in background}
        self._weigh(present, names)
        entering = {key for key, name in names.items() if self._in.get(key) != name}
        for key in present.keys() - entering:
            self._groups[self._in[key]].seen = self._members[key].account.seen = now
        if entering:
            self._forget(now)
            rest = [task for key, task in present.items() if key not in entering]
            for key in entering:
                group, member = self._level(present[key], rest)
                group.seen = member.account.seen = now
        self._in = names

    def _weigh(self, present: Mapping[TaskKey, Task], names: Mapping[TaskKey, str]) -> None:
        self._weights = {key: _weight(task) for key, task in present.items()}
        self._group_weights = {}
        for key, name in names.items():
            self._group_weights[name] = max(self._group_weights.get(name, 0), self._weights[key])
        if all(task.most_weight is None for task in present.values()):
            self._rations = {}
            return
        groups: dict[str, list[Task]] = {}
        for key, name in names.items():
            groups.setdefault(name, []).append(present[key])
        parked = {key for key, member in self._members.items() if member.parked}
        self._rations = rations(groups, {name for key, name in names.items() if key not in parked})
        for name, left in self._rations.items():
            self._group_weights[name] *= left

    def _level(self, task: Task, rest: Sequence[Task]) -> tuple[_Account, _Member]:
        """A task, and its group where it has no other of the `rest` in the rotation, begin where the clocks are. Of
        what they had beyond that they keep a turn: else those that rest after each turn, or go to another group, would
        have more than others.
        """
        group = self._groups.setdefault(task.shares_as, _Account())
        member = self._members.setdefault(task.key, _Member(_Account()))
        ahead = self._quantum_s / _weight(task)
        if not any(
            other.shares_as == task.shares_as and other.key != task.key and not self._members[other.key].parked
            for other in rest
        ):
            left = self._groups.get(member.group, group)
            most = self._clock + ahead / self._rations.get(task.shares_as, 1.0)
            group.virtual = min(max(group.virtual, left.virtual, self._clock), most)
            group.last = max(group.last, left.last)
        member.group = task.shares_as
        member.account.virtual = min(max(member.account.virtual, group.clock), group.clock + ahead)
        return group, member

    def _account(self, tasks: Iterable[Task]) -> None:
        """Charge the time held since the last call to those of then: who is not among them any more had it, too."""
        for task in tasks:
            self._charge(task.key, task.usage)

    def _charge(self, key: TaskKey, usage: Usage) -> None:
        before = self._usage.get(key, usage)
        held, one, turn = max(0.0, usage.held_s - before.held_s), self._found.get(key), self._turn
        if not held:
            return
        if turn and one == turn.key:
            turn.own += held
            turn.switched_in += usage.turns - before.turns
        elif turn:
            turn.others += held
        if one is not None:
            member, name = self._members[one], self._in[one]
            if member.parked:
                member.held += held
            member.account.virtual += held / self._weights[one]
            self._groups[name].virtual += held / self._group_weights[name]
        else:
            self._parked_look.foreground += held

    def _advance(self) -> None:
        """Move the clocks on to who has had the least in the rotation."""
        least: dict[str, float] = {}
        for key, name in self._in.items():
            member = self._members[key]
            if not member.parked:
                least[name] = min(least.get(name, member.account.virtual), member.account.virtual)
        for name, virtual in least.items():
            self._groups[name].clock = max(self._groups[name].clock, virtual)
        self._clock = max(self._clock, min((self._groups[name].virtual for name in least), default=0.0))

    def _park_idle(self, now: float) -> None:
        """Park the task whose turn it is when it has no work."""
        turn = self._turn
        if turn is None or turn.key not in self._in or self._members[turn.key].parked:
            return
        at_end = reached(turn.ends, now)
        if not at_end and not reached(turn.look_at, now):
            return
        member, elapsed = self._members[turn.key], now - turn.since
        long = at_end or reached(turn.since + BUSY_LOOK_S, now)
        left = time_left(turn.others, elapsed, self._workload.share if long else 1.0)
        turn.look_at = NEVER if long else turn.since + BUSY_LOOK_S
        if left <= 0:
            return
        member.busy = turn.own > BUSY_ABOVE * left
        # A task that is switched in again and again has work: at 1 µs it gives way within a switch, and holds little.
        if turn.own < IDLE_BELOW * left and turn.switched_in * LOOK_S <= elapsed:
            member.parked, member.held = True, 0.0
            self._parked_look.restart(now)
        else:
            turn.look_at = now + _look_s(member)
        turn.since, turn.own, turn.others, turn.switched_in = now, 0.0, 0.0, 0

    def _unpark_awake(self, background: Sequence[Task], now: float) -> None:
        """Take parked tasks that have work again back into the rotation."""
        parked = [task for task in background if self._members[task.key].parked]
        look = self._parked_look
        elapsed = now - look.last
        held = sum(self._members[task.key].held for task in parked)
        left = time_left(look.foreground, elapsed, self._workload.share)
        if held > (max(AWAKE_S, AWAKE_ABOVE * left) if left > 0 or elapsed < PARKED_LOOK_S else 0.0):
            for task in parked:
                member = self._members[task.key]
                if member.held > AWAKE_EACH * held:
                    member.parked = member.busy = False
                    self._level(task, background)
            look.restart(now)
        elif reached(look.at, now):
            look.again(now, busy=held > 0)
        else:
            return
        for task in parked:
            self._members[task.key].held = 0.0

    def _pass_on(self, background: Sequence[Task], now: float) -> None:
        """Give the turn to the next task when the present turn is over."""
        turn = self._turn
        if turn and turn.key in self._in and not self._members[turn.key].parked and not reached(turn.ends, now):
            return
        waiting = [task for task in background if not self._members[task.key].parked]
        if not waiting:
            self._turn = None
            return
        # Among equals the one whose last turn is longest ago comes first.
        group = min((self._groups[task.shares_as] for task in waiting), key=lambda each: (each.virtual, each.last))
        following = min(
            (task for task in waiting if self._groups[task.shares_as] is group),
            key=lambda task: (self._members[task.key].account.virtual, self._members[task.key].account.last),
        )
        member = self._members[following.key]
        look_at = now + _look_s(member) if self._exact else NEVER
        self._turn = _Turn(following.key, now, now + self._quantum_s, look_at)
        group.last = member.account.last = now

    def _again(self, now: float) -> float:
        times = []
        if self._turn:
            times.append(self._turn.ends)
            times.append(self._turn.look_at)
        if any(self._members[key].parked for key in self._in):
            times.append(self._parked_look.at)
        return min(times) - now

    def _forget(self, now: float) -> None:
        """Drop the records of tasks that are long gone."""
        self._members = remembered(self._members, lambda member: member.account.seen, now, REMEMBERED_S)
        self._groups = remembered(self._groups, lambda group: group.seen, now, REMEMBERED_S)


def _look_s(member: _Member) -> float:
    return BUSY_LOOK_S if member.busy else LOOK_S


def time_left(others_s: float, elapsed_s: float, workload: float) -> float:
    """Seconds of `elapsed_s` that the others left, 0 when they are too few to tell anything.

    The others' time counts up to their real `workload` (0 to 1): a task that nobody disturbs keeps the GPU while it is
    idle.
    """
    left = elapsed_s - min(others_s, workload * elapsed_s)
    return left if left >= ENOUGH * elapsed_s else 0.0


class _Workload:
    """The part of the time in which the foreground really works. It is known late, as idle time is."""

    def __init__(self) -> None:
        self.share = 0.5  # until it is known
        self._at: float | None = None
        self._busy = 0.0

    def measure(self, foreground: Iterable[Task], now: float) -> None:
        if self._at is not None and now - self._at < WORKLOAD_S:
            return
        busy = sum(task.usage.busy_s for task in foreground)
        if self._at is not None:
            self.share = min(1.0, max(0.0, (busy - self._busy) / (now - self._at)))
        self._at, self._busy = now, busy


class _ParkedLook:
    """When parked tasks are looked at: often at first, more rarely while none of them works."""

    def __init__(self) -> None:
        self.last = 0.0
        self.foreground = 0.0  # seconds that the foreground held since then
        self._interval = PARKED_LOOK_S

    @property
    def at(self) -> float:
        return self.last + self._interval

    def restart(self, now: float) -> None:
        self.last, self.foreground, self._interval = now, 0.0, PARKED_LOOK_S

    def again(self, now: float, *, busy: bool) -> None:
        interval = PARKED_LOOK_S if busy else min(2 * self._interval, PARKED_LONGEST_LOOK_S)
        self.restart(now)
        self._interval = interval


def _weight(task: Task) -> int:
    return task.weight * CLASS_WEIGHTS.get(task.task_class, 1)
