"""One GPU: which tenant's context is on it, and how far its work has come.

The contexts of a GPU take turns as its hardware scheduler has it: round robin among those that are enabled and have
work, each for its slice. A slice shorter than what a switch takes means giving way at once when another waits; a
context that is alone stays, also when it has no work. A switch is a gap in which nobody is resident, then a restore
without progress, then cold caches.
"""

from __future__ import annotations

from collections.abc import Callable

from runlist.sim.engine import Engine
from runlist.sim.timing import COLD, COLD_PACE, COMPUTE_SLICE, NOTICE, RESTORE, SWITCH_GAP

_UP, _DOWN = COLD_PACE
_COLD_WORK = COLD * _UP // _DOWN
_COLD_ENDS = RESTORE + COLD
_COLD_LOST = _COLD_ENDS - _COLD_WORK
_NEVER = 1 << 62


def time_for(work: int) -> int:
    """Nanoseconds from the start of a residency until so much work is done in it."""
    return RESTORE + work * _DOWN // _UP if work <= _COLD_WORK else work + _COLD_LOST


def work_in(time: int) -> int:
    """Nanoseconds of work done so long after the start of a residency."""
    if time <= RESTORE:
        return 0
    return (time - RESTORE) * _UP // _DOWN if time <= _COLD_ENDS else time - _COLD_LOST


class Context:
    """A tenant's place on a GPU. `on_done` is called when all its work is finished.

    All times are nanoseconds: `work` is what is left to do, `worked` what was done, `held` time on the GPU, `idle` the
    part of it in which there was nothing to do, `known_idle` the part of that which the usage log has told, and
    `pending` time in which there was work, done or not. `turns` counts how often it was switched in.
    """

    __slots__ = (
        "enabled", "gone", "held", "idle", "known_idle", "on_done", "pending", "ready", "slice", "submitted", "turns",
        "work", "worked",
    )  # fmt: skip

    def __init__(self, on_done: Callable[[], None]) -> None:
        self.on_done = on_done
        self.slice = COMPUTE_SLICE
        self.enabled = True
        self.ready = False  # enabled, and has work
        self.gone = False
        self.work = self.worked = 0
        self.held = self.idle = self.known_idle = self.pending = 0
        self.submitted = 0  # since when it has work, or up to when `pending` counts it
        self.turns = 0


class Gpu:
    """The contexts of one GPU. `gaps` and `empty` are nanoseconds in which nobody was resident, because of a switch
    and because nobody wanted to be; with the contexts' `held` they add up to all time once `settle` was called.
    """

    __slots__ = (
        "_base", "_contended", "_contexts", "_cursor", "_engine", "_fire", "_incoming", "_leave_at", "_progress",
        "_ready", "_sampled_idle", "_sampled_switches", "_settled", "_slice_start", "_switching", "_version",
        "_waits_since", "empty", "gaps", "resident", "switches",
    )  # fmt: skip

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._contexts: list[Context] = []
        self._cursor = -1  # index of who was resident last
        self._ready = 0
        self._version = 0  # of the one timer: a timer of an older version does not count
        self._fire = self._on_timer
        self.resident: Context | None = None
        self._incoming: Context | None = None
        self._switching = False
        self._settled = 0  # up to here time was given to somebody
        self._base = 0  # when the residency would have begun without its idle times
        self._progress = 0  # work done in the residency when the present work began, or when it was settled
        self._slice_start = 0
        self._contended = False
        self._waits_since = 0
        self._leave_at = _NEVER
        self._sampled_idle: dict[Context, int] = {}
        self._sampled_switches = -1
        self.gaps = self.empty = self.switches = 0

    # -- for tenants -------------------------------------------------------------------------------

    def add(self, context: Context) -> None:
        """A new context, last in the round."""
        context.submitted = self._engine.now
        self._contexts.append(context)

    def remove(self, context: Context) -> None:
        """The context is freed, with the work that it has."""
        self.set_enabled(context, False)
        if context.work:
            context.pending += self._engine.now - context.submitted
            context.work = 0
        context.gone = True
        index = self._contexts.index(context)
        del self._contexts[index]
        self._cursor -= index <= self._cursor
        self._sampled_idle.pop(context, None)

    def submit(self, context: Context, work: int) -> None:
        """Give a context so much work, in nanoseconds alone on the GPU, behind what it has."""
        if context.work:
            if context is self.resident:
                self.settle()
                context.work += work
                self._arm()
            else:
                context.work += work
            return
        context.work = work
        context.submitted = self._engine.now
        if context.enabled:
            self._becomes_ready(context)

    # -- for the driver's controls -----------------------------------------------------------------

    def set_slice(self, context: Context, nanoseconds: int) -> None:
        """Set a slice. It takes effect at once, also for a running slice."""
        context.slice = nanoseconds
        if context is self.resident and self._contended:
            self._plan_leaving()
            self._arm()

    def set_enabled(self, context: Context, enabled: bool) -> None:
        """Enable or disable the context's channels. What a disabled one was doing goes on later where it was."""
        if context.gone or context.enabled == enabled:
            return
        context.enabled = enabled
        if enabled:
            if context.work:
                self._becomes_ready(context)
            return
        if context is self.resident:
            self._leave()
        if context.ready:
            context.ready = False
            self._ready -= 1
        if self._switching:
            return
        if self.resident is None:
            if self._ready:
                self._switch()
        elif self._contended and self._ready == 1:  # whoever is there has nobody to give way to any more
            self._contended, self._leave_at = False, _NEVER
            self._arm()

    def preempt(self, context: Context) -> None:
        """Take the context off the GPU if it is there; it competes again."""
        if context is self.resident:
            self._leave()
            if self._ready:
                self._switch()

    # -- accounts ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring every context's account up to now."""
        now = self._engine.now
        span, self._settled = now - self._settled, now
        resident = self.resident
        if resident is None:
            if self._switching:
                self.gaps += span
            else:
                self.empty += span
            return
        resident.held += span
        if resident.ready:
            done = work_in(now - self._base) - self._progress
            if done >= resident.work:  # its timer rings in this very moment, and ends it
                done = resident.work - 1
            self._progress += done
            resident.work -= done
            resident.worked += done
        else:
            resident.idle += span

    def sample_idle(self) -> None:
        """Tell of the idle time up to the sample before, if one context had the GPU for itself ever since."""
        self.settle()
        resident = self.resident
        if resident is not None and self._sampled_switches == self.switches:
            resident.known_idle = max(resident.known_idle, self._sampled_idle.get(resident, 0))
        self._sampled_switches = self.switches
        self._sampled_idle = {} if resident is None else {resident: resident.idle}

    # -- the hardware scheduler --------------------------------------------------------------------

    def _becomes_ready(self, context: Context) -> None:
        self._ready += 1
        resident, now = self.resident, self._engine.now
        if resident is context:  # it was idle, and goes on where it was, with a new slice
            self.settle()
            context.ready = True
            self._base = now - time_for(self._progress)
            self._slice_start = now
            self._arm()
            return
        context.ready = True
        if self._switching:
            return
        if resident is None or not resident.ready:
            self._switch()
        elif not self._contended:
            self._contended = True
            self._waits_since = now
            self._plan_leaving()
            self._arm()

    def _plan_leaving(self) -> None:
        """At the end of the slice that was running when others began to wait: one that is alone gets one slice after
        the other. Who came in beside others has been noticed before.
        """
        assert self.resident is not None
        slice_ns, waited = self.resident.slice, self._waits_since - self._slice_start
        ends = self._slice_start + (-(-waited // slice_ns) or 1) * slice_ns
        self._leave_at = max(self._engine.now, ends + NOTICE if waited else ends)

    def _arm(self) -> None:
        """Set the timer to the end of the resident's work, or of its slice."""
        resident = self.resident
        self._version += 1
        if resident is None or not resident.ready:
            return
        finish = self._base + time_for(self._progress + resident.work)
        self._engine.at(min(finish, self._leave_at), self._fire, self._version)

    def _on_timer(self, version: int) -> None:
        if version != self._version:
            self._engine.stale += 1
        elif self._switching:
            self._arrive()
        elif self._engine.now >= self._leave_at:
            self._switch()
        else:
            self._finish()

    def _finish(self) -> None:
        context = self.resident
        assert context is not None
        self.settle()
        context.worked += context.work  # what rounding left
        self._progress += context.work
        context.work = 0
        context.ready = False
        self._ready -= 1
        context.pending += self._engine.now - context.submitted
        self._contended, self._leave_at = False, _NEVER
        if self._ready:
            self._switch()
        context.on_done()

    def _leave(self) -> None:
        self.settle()
        self.resident = None
        self._contended, self._leave_at = False, _NEVER
        self._version += 1

    def _switch(self) -> None:
        """The resident, if there is one, gives way to the next in the round."""
        if self.resident is not None:
            self._leave()
        else:
            self.settle()
        self._switching = True
        self._incoming = self._next()
        self.switches += 1
        self._version += 1
        self._engine.at(self._engine.now + SWITCH_GAP, self._fire, self._version)

    def _arrive(self) -> None:
        self.settle()
        self._switching = False
        context = self._incoming
        if context is None or not context.ready:  # suspended or gone meanwhile
            context = self._next()
        self._incoming = None
        if context is None:
            return
        now = self._engine.now
        self.resident = context
        self._cursor = self._contexts.index(context)
        context.turns += 1
        self._base = self._slice_start = now
        self._progress = 0
        self._contended = self._ready > 1
        if self._contended:
            self._waits_since = now
            self._plan_leaving()
        self._arm()

    def _next(self) -> Context | None:
        """The first context with work behind the last resident, which comes last itself."""
        if not self._ready:
            return None
        contexts, cursor = self._contexts, self._cursor
        for index in range(cursor + 1, len(contexts)):
            if contexts[index].ready:
                return contexts[index]
        for index in range(min(cursor + 1, len(contexts))):
            if contexts[index].ready:
                return contexts[index]
        return None
