"""What a program tells of its activity: the counts that librunlist.so keeps for it."""

from __future__ import annotations

from collections.abc import Callable

from runlist.model import Activity
from runlist.sim.timing import SECOND


class Telling:
    """The counts of one tenant; its host says what it does. As in the library, a time is added up when it is over.

    `quiet_since` is when it last submitted work or ended a wait, `waits_since` when it began the present wait.
    `on_work` is called at the next submission, once, and `on_announcement` with the nanoseconds until the first one of
    a request.
    """

    __slots__ = (
        "_launches_since", "_launching", "_waited", "_waits", "_work", "before", "on_announcement", "on_work",
        "quiet_since", "waits_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self._work = self._waited = self._launching = self._waits = 0
        self._launches_since: int | None = None  # the first submission since the last wait
        self.waits_since: int | None = None
        self.quiet_since = 0
        self.before = 0
        self.on_work: Callable[[], None] | None = None
        self.on_announcement: Callable[[int], None] | None = None

    @property
    def activity(self) -> Activity:
        """As a policy sees it."""
        return Activity(self._work, self._waited / SECOND, self._launching / SECOND, self.before, self._waits)

    def announces(self, lead: int) -> None:
        """Something comes in: the host will launch so much later."""
        self.before = self._work
        if self.on_announcement is not None:
            self.on_announcement(lead)

    def submits(self, kernels: int, now: int) -> None:
        """The host launches so many kernels."""
        self._work += kernels
        self.quiet_since = now
        if self._launches_since is None:
            self._launches_since = now
        if self.on_work is not None:
            on_work, self.on_work = self.on_work, None
            on_work()

    def waits(self, now: int) -> None:
        """The host begins to wait for the GPU."""
        if self._launches_since is not None:
            self._launching += now - self._launches_since
            self._launches_since = None
            self._waits += 1
        self.waits_since = now

    def goes_on(self, now: int) -> None:
        """The host has waited."""
        if self.waits_since is not None:
            self._waited += now - self.waits_since
            self.waits_since = None
            self.quiet_since = now
