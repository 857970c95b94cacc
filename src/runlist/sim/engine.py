"""The clock of a simulation: events in order of time, and of their making among equals."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Handler = Callable[[Any], None]


class Engine:
    """A discrete-event loop. Times are whole nanoseconds since the start, so that nothing is lost by rounding.

    An event is a handler and its one argument. It cannot be taken back: a handler whose event no longer counts adds
    one to `stale` and returns. `events` counts those that did count.
    """

    __slots__ = ("_fired", "_heap", "_order", "now", "stale")

    def __init__(self) -> None:
        self.now = 0
        self.stale = 0
        self._fired = 0
        self._heap: list[tuple[int, int, Handler, Any]] = []
        self._order = count()

    @property
    def events(self) -> int:
        """How many events happened."""
        return self._fired - self.stale

    def at(self, time: int, handler: Handler, argument: Any = None) -> None:
        """Call `handler(argument)` at `time`, which must not be past."""
        heappush(self._heap, (time, next(self._order), handler, argument))

    def run(self, until: int) -> None:
        """Let everything happen up to and including `until`."""
        heap, fired = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, handler, argument = heappop(heap)
            fired += 1
            handler(argument)
        self._fired += fired
        self.now = until
