"""The records of a running simulation: for each window of time and each tenant, how it went."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

from runlist.sim.engine import Engine
from runlist.sim.tenant import Tenant
from runlist.sim.timing import MICROSECOND, SECOND
from runlist.statistics import percentile

MAX_WINDOWS = 600
BACKLOGGED = 0.8
"""A tenant competes for a share in a window in which it had work for this part of the time."""


class Book:
    """One tenant's windows: share of the GPU (0 to 1) from window `first` on, and how its service target was kept."""

    __slots__ = ("_held", "_idle", "_latencies", "_pending", "first", "missed", "shares", "targeted")

    def __init__(self, first: int) -> None:
        self.first = first
        self.shares = array("d")
        self.targeted = self.missed = 0
        self._held = self._idle = self._pending = self._latencies = 0

    def turn(self, tenant: Tenant, now: int, length: int) -> float:
        """Close a window; returns the part of it in which the tenant had work."""
        context = tenant.context
        self.shares.append((context.held - context.idle - self._held + self._idle) / length)
        self._held, self._idle = context.held, context.idle
        pending = context.pending + (now - context.submitted if context.work else 0)
        backlog, self._pending = (pending - self._pending) / length, pending
        if tenant.spec.target_p99_us is not None:
            self._judge(tenant, tenant.spec.target_p99_us * MICROSECOND)
        return backlog

    def _judge(self, tenant: Tenant, target: float) -> None:
        """The target is missed by the window's requests, or by one that waits for longer than it."""
        latencies = sorted(tenant.latencies[self._latencies :])
        self._latencies = len(tenant.latencies)
        if latencies:
            late = percentile(latencies, 99) > target
        elif tenant.overdue() > target:
            late = True
        else:
            return
        self.targeted += 1
        self.missed += late


class Recorder:
    """Closes a window every `length` ns. `fairness` is Jain's index of each window and GPU with somebody to compare."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self.length = round(min(seconds, max(1.0, seconds / MAX_WINDOWS)) * SECOND)
        self.books: dict[Tenant, Book] = {}
        self.fairness: list[float] = []
        self._index = 0

    def close_window(self, alive: Iterable[Tenant]) -> None:
        """A window is over; tells of those tenants that are there."""
        now = self._engine.now
        competing: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
        for tenant in alive:
            tenant.gpu.settle()
            book = self._book(tenant)
            backlog = book.turn(tenant, now, self.length)
            if backlog >= BACKLOGGED and tenant.began <= now - self.length:
                group = tenant.spec.group or f"pid {tenant.key.pid}"
                competing[tenant.key.gpu][group].append((tenant.spec.weight, book.shares[-1]))
        for groups in competing.values():
            if len(groups) > 1:
                self.fairness.append(jain([_normalised(members) for members in groups.values()]))
        self._index += 1

    def leave(self, tenant: Tenant) -> None:
        """A tenant goes, within a window."""
        if self._engine.now > self._index * self.length:
            self._book(tenant).turn(tenant, self._engine.now, self.length)

    def _book(self, tenant: Tenant) -> Book:
        book = self.books.get(tenant)
        if book is None:
            book = self.books[tenant] = Book(self._index)
        return book


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _normalised(members: list[tuple[int, float]]) -> float:
    """A group's share for its weight, which is the largest of its members'."""
    return sum(share for _, share in members) / max(weight for weight, _ in members)
