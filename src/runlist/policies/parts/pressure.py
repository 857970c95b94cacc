"""Pressure: requests begin to queue, so that those behind them are in danger before one of them is late."""

from __future__ import annotations

PRESSED, PRESSED_TIGHT, PRESSED_OF_USUAL = 0.3, 0.1, 0.06
"""Pressure begins with a request that took longer than usual by this part of the room up to the target; by less of it
while it is tight. By the third part of what is usual at least, which is not known better.
"""
CALM = 0.6
"""It ends with a request that took longer by less than this part of that."""
LASTS = 4.0
"""Without another report it ends after so many times the target."""
USUAL_STEP = 1.02
"""The median is followed in such steps."""
SHORT_S = 0.01
"""Who is pressed again within this time after the end had too little rest."""
FIRST_REST_S, LONGEST_REST_S = 0.001, 0.03
RECOVERS = 0.5
"""The rest shrinks by this factor for each SHORT_S without pressure."""
STOPS_PER_S, AT_ONCE_S = 80.0, 0.25
"""So many stops a second there are in the long run, and those of this time at once: each costs two controls."""
LEAST_S = 1e-6


class Pressure:
    """Tells from the latencies of a service whether its requests queue.

    Beside others each request of a queue waits for one more switch, so that a busy service is slower just when it has
    to catch up: within milliseconds a hundredth of a second's requests is late. The first requests of a queue show it
    before any is late. A queue is over with a request that took no longer than usual.
    """

    def __init__(self) -> None:
        self.until = float("-inf")
        self._usual_s: float | None = None
        self._rest_s = 0.0
        self._queues = False
        self._paid_until = float("-inf")  # stops are paid for by time

    def add(self, latency_s: float, target_s: float, now: float, *, tight: bool) -> bool:
        """A request ended. Returns whether that begins pressure, or lets it end earlier. `tight`: there was too
        little room of late, so that others rest before they come back, for twice as long each time that this was too
        soon.
        """
        usual_s = max(LEAST_S, latency_s if self._usual_s is None else self._usual_s)
        self._usual_s = usual_s * USUAL_STEP if latency_s > usual_s else usual_s / USUAL_STEP
        excess_s, room_s = latency_s - self._usual_s, target_s - self._usual_s
        bound_s = max((PRESSED_TIGHT if tight else PRESSED) * room_s, PRESSED_OF_USUAL * self._usual_s)
        if room_s > 0 and excess_s > bound_s:
            begins = now >= self.until
            if begins:
                self._learn(now - self.until, tight)
                self._paid_until = max(self._paid_until, now) + 1 / STOPS_PER_S
            self.until, self._queues = now + LASTS * target_s, True
            return begins
        if self._queues and (room_s <= 0 or excess_s < CALM * bound_s):
            rest_s = max(self._rest_s, self._paid_until - now - AT_ONCE_S)
            self.until, self._queues = min(self.until, now + rest_s), False
            return True
        return False

    def _learn(self, calm_s: float, tight: bool) -> None:
        if not tight:
            self._rest_s = 0.0
        elif calm_s < SHORT_S:
            self._rest_s = min(LONGEST_REST_S, max(2 * self._rest_s, FIRST_REST_S))
        else:
            self._rest_s *= RECOVERS ** min(50.0, calm_s / SHORT_S - 1)
