"""Time that a task held its GPU."""

from __future__ import annotations

from operator import add, attrgetter

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """A task's GPU time since it is managed, or in some stretch of time: these add up, and never shrink.

    `held_s` is the time on the GPU in seconds, `turns` how often the task was switched in (0 where the source cannot
    tell). A task that nobody competes with stays on the GPU while it is idle: `idle_s` is the part of `held_s` that is
    known to have been idle, up to 1.3 s late.
    """

    held_s: float = 0.0
    turns: int = 0
    idle_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Both together, field by field."""
        return Usage(*map(add, _values(self), _values(other)))

    @property
    def busy_s(self) -> float:
        """Seconds of real work."""
        return self.held_s - self.idle_s


_values = attrgetter(*Usage.__struct_fields__)
NO_USAGE = Usage()
