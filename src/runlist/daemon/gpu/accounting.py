"""Who used one GPU, and how much: the readings of a usage source, added up and kept for a minute."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice

import msgspec
import structlog

from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.gpu.choice import Choice
from runlist.errors import RunlistError
from runlist.model import NO_USAGE, Usage
from runlist.planes.usage import Reading, UsageSource

_log = structlog.get_logger()

HISTORY_S = 60
_READ_AGAIN_S = 0.001
"""Readings closer together than this tell nothing new."""
REOPEN_S, LONGEST_REOPEN_S = 10.0, 600.0
"""A source that failed is opened again after so long, and after twice as long each time, up to the second."""
IN_USE_S = 0.01
"""Of a second: idle time that becomes known late takes less."""
NEW_S = 3
"""A process that was first seen so many seconds ago was found as soon as it could be."""


class Account(msgspec.Struct):
    """The usage of one process, or of all together: totals, the present second, and the busy shares of the seconds
    before, newest last. `worked_s` is the busy time, which never shrinks although idle time becomes known late.
    `turns_per_s` is of the last full second.
    """

    usage: Usage = NO_USAGE
    worked_s: float = 0.0
    turns_per_s: float = 0.0
    shares: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=HISTORY_S))
    second: Usage = NO_USAGE

    def add(self, usage: Usage) -> None:
        """Add a reading."""
        self.usage += usage
        self.second += usage
        self.worked_s = max(self.worked_s, self.usage.busy_s)

    def turn_over(self, length_s: float) -> None:
        """A second is full, or more of them, as nobody looked."""
        busy_s = self.second.busy_s
        if busy_s < 0:  # idle time of earlier seconds became known now
            self._take_back(-busy_s)
        self.shares.extend([min(1.0, max(0.0, busy_s) / length_s)] * min(HISTORY_S, int(length_s)))
        self.turns_per_s = self.second.turns / length_s
        self.second = NO_USAGE

    @property
    def history(self) -> list[float]:
        """Busy shares of the last full seconds, up to a minute of them, newest last."""
        return [round(share, 4) for share in self.shares]

    def _take_back(self, seconds: float) -> None:
        for index in range(len(self.shares) - 1, -1, -1):
            part = min(seconds, self.shares[index])
            self.shares[index] -= part
            seconds -= part


_EMPTY = Account()


class Accounting:
    """The accounts of all processes on one GPU, managed or not, and of all together, which keeps what ended processes
    used. `refusals` says why no better source works; `dropped` counts lost records. `reopen` opens the best source once
    more, elsewhere: that may take long. `on_renewed` is called when one is in use again after one had failed.
    """

    def __init__(
        self,
        gpu: str,
        source: UsageSource,
        refusals: Sequence[str] = (),
        reopen: Callable[[], Future[Choice]] | None = None,
    ) -> None:
        self.gpu = gpu
        self.source_name = source.name
        self.dropped = 0
        self.all = Account()
        self.on_renewed: Callable[[], None] = lambda: None
        self._source = source
        self._reopen = reopen
        self._opening: Future[Choice] | None = None
        self._reopen_at, self._reopen_s = math.inf, REOPEN_S
        self._accounts: dict[int, Account] = {}
        self._managed: dict[int, bool] = {}  # whether each is enabled
        self.read_at = self._second_began = time.monotonic()
        for reason in refusals:
            _log.warning("usage comes from a lesser source", gpu=gpu, source=source.name, reason=reason)

    def read(self, now: float) -> Reading | None:
        """Bring the accounts up to now; returns the reading, or None where there is none."""
        if now - self.read_at < _READ_AGAIN_S:
            return None
        self.read_at = now
        self._open_again(now)
        try:
            reading = self._source.read()
        except (RunlistError, OSError) as error:
            _log.warning("usage cannot be read any more; going by the daemon's book", gpu=self.gpu, reason=str(error))
            self._source.close()
            self._source = book = BookUsage()
            self.source_name = book.name
            for pid, enabled in self._managed.items():
                book.set_enabled(pid, enabled)
            self._reopen_at = now + self._reopen_s
            return None
        self.dropped += reading.dropped
        for pid, usage in reading.usage.items():
            self.all.add(usage)
            self._accounts.setdefault(pid, Account()).add(usage)
        if now - self._second_began >= 1.0:
            length = now - self._second_began
            self._second_began = now
            self.all.turn_over(length)
            for pid, account in list(self._accounts.items()):
                account.turn_over(length)
                if len(account.shares) == HISTORY_S and not any(account.shares) and pid not in self._managed:
                    del self._accounts[pid]  # it was not seen for a minute
        return reading

    @property
    def in_use(self) -> bool:
        """Whether anybody worked in the last full second or since."""
        return self.all.second.busy_s > IN_USE_S or (bool(self.all.shares) and self.all.shares[-1] > IN_USE_S)

    def of(self, pid: int) -> Account:
        """A process' account since it was first seen, or managed; an empty one for an unknown process."""
        return self._accounts.get(pid, _EMPTY)

    def just_before(self, pid: int) -> Usage:
        """What a process used before it is managed, if it is new; of an older one nobody knows it all."""
        account = self.of(pid)
        return account.usage if len(account.shares) <= NEW_S else NO_USAGE

    def begin(self, pid: int) -> None:
        """Count a process' totals anew: it is managed from now on. The minute before stays known."""
        if pid in self._accounts:
            self._accounts[pid].usage, self._accounts[pid].worked_s = NO_USAGE, 0.0

    def set_enabled(self, pid: int, enabled: bool) -> None:
        """The daemon let a managed process run, or not. Only the book needs to be told."""
        self._managed[pid] = enabled
        if isinstance(self._source, BookUsage):
            self._source.set_enabled(pid, enabled)

    def forget(self, pid: int) -> None:
        """The process is gone."""
        self.set_enabled(pid, False)
        del self._managed[pid]
        self._accounts.pop(pid, None)

    def close(self) -> None:
        """Let go of the source."""
        self._source.close()
        if self._opening is not None:
            self._opening.add_done_callback(_close)

    def _open_again(self, now: float) -> None:
        """Go by the best source once more, where one failed."""
        if self._opening is None and self._reopen is not None and now >= self._reopen_at:
            self._opening = self._reopen()
            self._reopen_s = min(2 * self._reopen_s, LONGEST_REOPEN_S)
            self._reopen_at = now + self._reopen_s
        if self._opening is None or not self._opening.done():
            return
        source, self._opening = self._opening.result().source, None
        if not isinstance(source, BookUsage):
            self._source.close()
            self._source, self.source_name, self._reopen_at = source, source.name, math.inf
            _log.info("usage can be read again", gpu=self.gpu, source=source.name)
            self.on_renewed()


def _close(opened: Future[Choice]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().source.close()


def mean_of_last(shares: list[float], seconds: int) -> float:
    """Mean of the newest shares; 0 without any."""
    newest = list(islice(reversed(shares), seconds))
    return sum(newest) / len(newest) if newest else 0.0
