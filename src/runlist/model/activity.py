"""What a task says of its own work, through the preloaded library."""

from __future__ import annotations

import msgspec


class Activity(msgspec.Struct, frozen=True):
    """Sums since the task began: `work` counts what it submitted to the GPU, `before` what it had when it last
    announced some. `waited_s` is how long its threads waited for the GPU, `launching_s` how long they were at work from
    the first submission until they waited, and `waits` how often they waited for what was submitted. A program that
    mostly waits is bound by the GPU; one that mostly launches, by its host. All three are 0 where it never waits in a
    call.
    """

    work: int = 0
    waited_s: float = 0.0
    launching_s: float = 0.0
    before: int = 0
    waits: int = 0
