"""How the background of a GPU gives way to programs that pause: by switch, by request, or by slices.

A real latency program launches, waits, launches again. Beside a background at tiny slices each of its pauses is a
switch out and a switch in, and each turn of the background does nothing but that.

- *switch*: the background has tiny slices, and gives way within one context switch. Best for rare launches.
- *request*: the background is off from the first launch of a request until the program has been idle for a while that
is learnt. Best where the GPU is what a request waits for. It takes a program that tells of its activity.
- *slice*: the background has slices so long that switches cost no more than a part of the GPU. Best for programs that
wait for their own host: they keep the GPU busy for a small part of their time, and notice nothing. Each wait for the
GPU takes a switch beside slices as well, and is longer by one. So slices are for programs that launch for longer
between two waits, and pause meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from runlist.model import Appear, Busy, Event, GivingWay, Idle, Task, TaskClass, TaskKey, Used, Vanish
from runlist.policies.parts.pace import NEVER, reached
from runlist.policies.parts.requests import Requests
from runlist.policies.parts.rest import LONGEST_S, Rest
from runlist.policies.parts.turns import TURN_US
from runlist.policies.parts.window import NOTHING, SWITCH_S, WAITS_BELOW, WINDOW_S, Window, can_be_watched, window_of

CONTROLS_S = 1.2e-3
"""What suspending the background and resuming it costs."""

TRIAL_S = 0.1
"""The same of the first slices, and of newcomers: what falls behind is late by as much as that takes to see."""
EARLY_S = 0.025
"""So soon it shows that the GPU is full up. Nothing is gained then by counting for longer."""
STAYS_S = 2.0
"""For how long slices stay at least that fade, or that were given up in vain before: then twice as long each time, up
to LONGEST_S. Programs may look bound by the GPU beside slices, and only there.
"""
IN_VAIN_S = 1.0
"""What is at slices again so soon had given them up in vain."""

KEEPS_UP = 0.7
"""Who is busy for more than this part of the time beside slices falls behind by them."""
STEADY = 1 / 6
"""How much a window counts for the length of slices, beside what was before: there may be a dozen requests in it, or a
part of one. Time in which nobody works counts as well: the budget is a part of all time.
"""

MIN_SLICE_US, FIRST_SLICE_US, MAX_SLICE_US = 100.0, 700.0, 2_000.0
WORTH_BEGINNING = 2.0
"""Slices begin where they may be so many times the shortest: what may just have these now will not have them soon."""
MOST_DOUBTS = 2
"""So many windows in a row in which requests, or slices, do not fit are no chance."""
NOTICEABLE = 0.15
"""A slice that differs by less is not set: that takes a control."""
WORTH_SAYING = 0.01
NEEDS_A_CAP = " and so nearly always (a cap on the foreground leaves it some)"
NEARLY_ALWAYS = 0.95
"""Who is off for more than this part of the time is told what helps: the user knows which of both is worth more."""
WORTH_ASKING = 0.02
"""From this cost on it is worth while to hear of requests: they take less time if the background is off meanwhile."""
FULL, STILL_FULL = 0.5, 0.4
"""Requests are worth the whole GPU if the program waits for it for more than the first part of their time, and as long
as for more than the second, or as they cost about what switches would.
"""
AS_MUCH, MOST_LOST = 1.5, 2.5
"""Requests may cost the GPU this many times what switches would: about as much; and the most, since they spare the
program the time of these switches, too. Beyond, what is taken for a request is many, with the GPU idle between them.
"""
AIMED_AT = 0.75
"""Slices are tuned to this part of the budget, above which they are chosen (eager ResNet-50 beside matrix products,
H200: the batch job has 0.855 of its rate by all of the budget, and 0.89 by 0.6 of it, but the p99 is 1.17 of that alone
then, not 1.04).
"""
FADES = 0.3
"""Below this part of the budget, slices are not worth what they make a launch wait."""

LOOK_S = 10.0
"""How long slices last before the GPU is looked at anew at tiny slices, and how long requests are not tried again once
they were given up: twice as long each time.
"""
LISTEN_S, LONGEST_LISTEN_S = 0.5, 4.0
"""How long nobody listens to requests that did not seem worth it, at first and at the longest. A program's start looks
like that (after 10 s, a token loop had the GPU for its requests 1.6 s late, H200), and to listen costs little.
"""


class Way(StrEnum):
    """How the background gives way."""

    SWITCH = "switch"
    REQUEST = "request"
    SLICE = "slice"


AUTO = "auto"
WAYS = (*Way, AUTO)


class Manner(msgspec.Struct, frozen=True):
    """What is asked of the background now: slices of `turn_us`, or to be off `off_until`. `look` is when to ask again;
    `watch` whom to watch, and `unhurried` who of them, as in a Decision; `at_once` whether it is to be off as soon as
    another of those begins to work, or one of all announces that it will.
    """

    turn_us: int = TURN_US
    off_until: float | None = None
    look: float = NEVER
    watch: Mapping[TaskKey, float] = {}
    unhurried: frozenset[TaskKey] = frozenset()
    at_once: bool = False


class GiveWay:
    """The way in force on one GPU, chosen by what it costs, or `asked` for by name. `budget` is the part of the GPU
    that switches may cost.
    """

    def __init__(self, asked: str, budget: float) -> None:
        self._asked = asked
        self._budget = budget
        self._seen = NOTHING  # the last window
        self._slice_us = FIRST_SLICE_US
        self._given_us = round(FIRST_SLICE_US)
        self._since = -NEVER  # when the way was chosen
        self._opened, self._ends, self._is_open, self._worth_a_look = -NEVER, -NEVER, False, False  # the window
        self._early = False  # whether it ends early if the GPU is full up
        self._before: dict[TaskKey, Task] = {}  # all tasks, as they were then
        self._foreground: frozenset[TaskKey] = frozenset()
        self._known: set[TaskKey] = set()  # of the foreground at any time
        self._requests = Requests()
        self._start_afresh()

    def _start_afresh(self) -> None:
        """What is known of other programs says nothing of a new one."""
        self.way = Way.SWITCH if self._asked == AUTO else Way(self._asked)
        self._look = Rest(LOOK_S)  # at tiny slices, from longer ones
        self._no_requests = Rest(LOOK_S)
        self._deaf = Rest(LISTEN_S, LONGEST_LISTEN_S)
        self._no_slices = Rest(IN_VAIN_S)  # for who came to wait too often for them
        self._no_slices_untold = Rest(LOOK_S)  # for who was found to wait for each piece beside them, and does not tell
        self._stays_s, self._gave_up = 0.0, False  # slices, because of who is bound by the GPU
        self._fast = NOTHING  # the last window at tiny slices
        self._counted = 0.0  # how much of what is to be known by now is: the next two are to be divided by it
        self._demand = 0.0  # what switches cost beside slices, times how long these and a switch are
        self._waits_cost = 0.0  # what switches for waits cost
        self._off = 0.0  # for which part of the time the background was off for requests
        self._doubts = 0  # windows in a row in which the way did not fit
        self._listens = False  # to requests, before the background gives way to them

    def on_event(self, event: Event, now: float) -> bool:
        """Returns whether to ask for the manner now."""
        if isinstance(event, Busy):
            self._requests.begins(event.key, now)
        elif isinstance(event, Idle):
            self._requests.ends(event.key, now)
        elif isinstance(event, Vanish):
            self._requests.drop(event.key, now)
            self._known.discard(event.key)
            self._foreground -= {event.key}
            if not self._known:  # the background may have gone with the last one: then nobody asks
                self._requests.clear()
        elif isinstance(event, Appear):
            self._requests.appears(event.task, now)
            self._worth_a_look = True
        elif isinstance(event, Used) and not self._is_open:
            works = not self._foreground.isdisjoint(event.held_s)
            self._worth_a_look |= works
            return works
        return False

    def manner(
        self,
        foreground: Sequence[Task],
        background: Sequence[Task],
        now: float,
        asked: Mapping[TaskKey, float] | None = None,
    ) -> Manner:
        """What the background is to do now. Tasks `asked` for it to be off before they begin, each until a time."""
        asked = {} if asked is None else asked
        if not background or any(task.task_class == TaskClass.DEADLINE for task in foreground):
            self._is_open = self._worth_a_look = self._listens = False
            self._foreground, self._seen, self._before = frozenset(), NOTHING, {}
            self._requests.clear()
            return Manner(off_until=max(asked.values(), default=None))
        self._meet([task for task in foreground if task.key not in self._known], foreground, now)
        self._measure(foreground, background, now)
        look = self._ends if self._is_open else NEVER
        telling: list[Task] = []
        if self.way is Way.REQUEST or (self.way is Way.SWITCH and self._listens):
            telling = self._requests.believed([task for task in foreground if can_be_watched(task)], now)
        watch = {task.key: self._requests.idle_s(task.key) for task in telling}
        self._requests.keep(watch)
        wants = telling if self.way is Way.REQUEST else []
        off_until, again = self._requests.off_until(wants, foreground, asked, now)
        # Nobody goes off for requests that are only listened to; for announcements of them, yes.
        unhurried = frozenset(watch if self.way is Way.SWITCH else ())
        at_once = self.way is not Way.SLICE and off_until is None and not self._requests.in_break(now)
        turn_us = self._given_us if self.way is Way.SLICE else TURN_US
        return Manner(turn_us, off_until, min(look, again), watch, unhurried, at_once)

    def told(self) -> GivingWay | None:
        """The way in force, as data; None where nobody gives way."""
        slice_us = self._given_us if self.way is Way.SLICE else None
        told = GivingWay(str(self.way), slice_us, self._seen.cost, self._budget, self._seen.gaps)
        return told if self._foreground else None

    def why(self) -> str:
        """The way in force, and what it costs, in a few words; empty where there is nothing to say."""
        ways = {
            Way.SWITCH: "gives way at each launch",
            Way.REQUEST: "is off for each request" + NEEDS_A_CAP * (self._off >= NEARLY_ALWAYS),
            Way.SLICE: f"has slices of {self._given_us / 1e3:.2g} ms",
        }
        says = self._foreground and (self.way is not Way.SWITCH or self._seen.cost >= WORTH_SAYING)
        return f"{ways[self.way]}, switches cost {100 * self._seen.cost:.0f} %" if says else ""

    def why_of(self, key: TaskKey) -> str:
        """The same for a foreground task, with what it waits for; empty for others."""
        if self._requests.is_liar(key):
            return "said that it was busy, and did not want the GPU: its requests do not count for a minute"
        if key not in self._foreground or not (why := self.why()):
            return ""
        if self._seen.waits is None:
            return f"the background {why}"
        return f"waits for the GPU in {100 * self._seen.waits:.0f} % of its work: the background {why}"

    # -- choosing ----------------------------------------------------------------------------------

    def _meet(self, newcomers: Sequence[Task], foreground: Sequence[Task], now: float) -> None:
        """What is known of others says nothing of new ones. Beside others the way stays until it is seen what they do:
        else who starts one program after the other would keep it from fitting anybody.
        """
        if not newcomers:
            return
        self._known.update(task.key for task in newcomers)
        if self._foreground.isdisjoint(task.key for task in foreground):
            self._is_open, self._before = False, {}
            self._start_afresh()
        elif self._is_open:
            self._before |= {task.key: task for task in newcomers}
            self._ends = min(self._ends, now + TRIAL_S)

    def _measure(self, foreground: Sequence[Task], background: Sequence[Task], now: float) -> None:
        """Choose by a window that is full, and open the next while there is something to see."""
        if self._is_open and not reached(self._ends, now):
            return
        works, begins = self._worth_a_look, not self._is_open
        if self._is_open:
            window = window_of(foreground, background, self._before, now - self._opened)
            if self._early and not window.full_up:
                self._ends, self._early = self._opened + WINDOW_S, False
                return
            self._conclude(window, now)
            works = window.gaps > 0 or self._requests.any_busy
        elif self._before and now > self._opened:
            self._count(window_of(foreground, background, self._before, now - self._opened))
        self._foreground = frozenset(task.key for task in foreground)
        self._before = {task.key: task for task in (*foreground, *background)}
        self._opened, self._is_open, self._worth_a_look = now, works, False
        self._early = self.way is Way.SWITCH and (begins or self._listens)
        first_slices = self.way is Way.SLICE and now == self._since
        self._ends = now + (EARLY_S if self._early else TRIAL_S if first_slices else WINDOW_S)

    def _conclude(self, window: Window, now: float) -> None:
        self._seen = window
        self._count(window)
        if self._asked == Way.SLICE:
            self._tune(window)
        if self._asked != AUTO:
            return
        choose: dict[Way, Callable[[Window, float], Way]] = {
            Way.SWITCH: self._from_switch,
            Way.REQUEST: self._from_request,
            Way.SLICE: self._from_slice,
        }
        chosen = choose[self.way](window, now)
        if chosen is not self.way:
            if chosen is Way.SLICE:
                self._look.begin(now)
                if now - self._since >= IN_VAIN_S:
                    self._stays_s = 0.0
                elif self._gave_up:
                    self._stays_s = min(max(STAYS_S, 2 * self._stays_s), LONGEST_S)
            if chosen is not Way.REQUEST:
                self._requests.clear()
            self.way, self._since, self._doubts = chosen, now, 0

    def _from_switch(self, window: Window, now: float) -> Way:
        """By request, where that costs less in controls than the switches do; it shows when one listens for a while."""
        self._fast = window
        begun, busy_s = self._requests.take(now)
        listened, self._listens = self._listens, False
        if not window.is_gpu_bound(0.0):
            # A target is not risked by a guess: short work may be what a program waits for, again and again.
            surely = window.waits is not None or not window.pressed
            may_try = self._no_slices.over(now) and self._no_slices_untold.over(now)
            may_have = surely and may_try and _has_slices(window, WORTH_BEGINNING)
            return Way.SLICE if may_have and window.spared > self._budget else Way.SWITCH
        self._look.forget()
        rose_again = window.falls_behind and now - self._since >= IN_VAIN_S
        may_ask = (self._no_requests.over(now) or rose_again) and self._deaf.over(now)
        if window.cost < WORTH_ASKING or not window.told or not may_ask:
            return Way.SWITCH
        if not listened:
            self._listens = True
            return Way.SWITCH
        pays = 0 < begun * CONTROLS_S <= window.cost * window.length_s
        waits = window.falls_behind or window.waited_s >= FULL * busy_s
        if pays and waits and _lost(window, begun, busy_s) <= MOST_LOST * window.cost:
            return Way.REQUEST
        self._deaf.begin(now)
        return Way.SWITCH

    def _from_request(self, window: Window, now: float) -> Way:
        """As long as the programs tell, wait for the GPU, and lose no more of it than they are worth."""
        begun, busy_s = self._requests.take(now)
        self._off = busy_s / window.length_s
        host_bound = window.waits is not None and window.waits < WAITS_BELOW
        if self._fast.full_up and not _has_slices(window):
            host_bound = False  # so it seems while the background is off: by switch it falls behind
        switches = self._fast.cost * (window.work / self._fast.work if self._fast.work > 0 else 1.0)
        most = MOST_LOST if window.waited_s >= STILL_FULL * busy_s else AS_MUCH
        # A long wait is told at its end.
        worth = window.waits is None or _lost(window, begun, busy_s) <= most * switches
        fits = window.told and not host_bound and worth and window.cost <= 2 * self._budget
        self._doubts = 0 if fits else self._doubts + 1
        if self._doubts < MOST_DOUBTS:
            return Way.REQUEST
        self._no_requests.begin(now)
        self._fast = NOTHING  # it was before the requests
        return Way.SLICE if host_bound and _has_slices(window) else Way.SWITCH

    def _from_slice(self, window: Window, now: float) -> Way:
        if now - self._since < WINDOW_S and window.is_piecewise(self._fast):
            self._no_slices_untold.begin(now)
            return Way.SWITCH
        slice_s = self._given_us / 1e6
        bound = window.gaps > 0 and window.is_gpu_bound(slice_s) and window.is_held_up(slice_s)
        waits_often = not _has_slices(window)
        # Who has slices may be idle in one window, and others not: they are no reason, unless they fall behind.
        self._doubts = self._doubts + 1 if bound or waits_often else 0
        surely = window.busy > KEEPS_UP or self._doubts >= MOST_DOUBTS
        self._gave_up = bound and surely and now - self._since >= self._stays_s
        if waits_often and surely:
            self._no_slices.begin(now)
            return Way.SWITCH
        if self._gave_up:
            return Way.SWITCH
        if self._look.over(now):
            self._no_slices.forget()
            return Way.SWITCH
        if self._doubts:
            return Way.SLICE
        self._tune(window)
        fades = window.cost < FADES * self._budget and self._given_us <= MIN_SLICE_US
        return Way.SWITCH if fades and now - self._since >= STAYS_S else Way.SLICE

    def _tune(self, window: Window) -> None:
        """Slices so long that switches cost what is aimed at; waits take some of that, and leave some. Who works for
        half of the time may have them cost twice as much meanwhile.
        """
        if self._counted:
            aim = max(FADES * self._budget, AIMED_AT * self._budget - self._waits_cost / self._counted)
            wanted_s = min(self._demand / self._counted / aim - SWITCH_S, window.longest_s, self._fast.longest_s)
            self._slice_us = min(MAX_SLICE_US, max(MIN_SLICE_US, 1e6 * wanted_s))
        if abs(self._slice_us - self._given_us) > NOTICEABLE * self._given_us:
            self._given_us = round(self._slice_us)

    def _count(self, window: Window) -> None:
        """Keep what switches cost, as a mean over time in which what is old counts less and less.

        A pause makes what was before it older, and counts as one window at most: else who has work again, after some
        seconds without, begins with slices as short as can be, and takes seconds to find those that fit.
        """
        if self.way is Way.REQUEST:
            return
        slice_s = self._given_us / 1e6 if self.way is Way.SLICE else 0.0
        before = (1 - STEADY) ** (window.length_s / WINDOW_S)
        now = min(STEADY, 1 - before)
        self._counted = before * self._counted + now
        self._demand = before * self._demand + now * window.by_slices(slice_s) * (slice_s + SWITCH_S)
        self._waits_cost = before * self._waits_cost + now * window.waiting * SWITCH_S


def _has_slices(window: Window, margin: float = 1.0) -> bool:
    """Whether the foreground keeps up beside some slices, so many times the shortest ones."""
    return window.longest_s >= margin * MIN_SLICE_US / 1e6


def _lost(window: Window, begun: int, busy_s: float) -> float:
    """The part of the GPU that it costs to serve requests: so many controls, and the time in which the program is busy
    and does not wait for the GPU.
    """
    return (begun * CONTROLS_S + max(0.0, busy_s - window.waited_s)) / window.length_s
