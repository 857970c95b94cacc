"""A window: requests are sent to programs as their loads have it, and what came back is kept.

Each timed request is told a moment before it is due, so that neither this process nor a pipe is in what is measured.
There are two ways to deal with a program that is not done when the next request comes. `newest`, as DISB does it: one
request at a time, and of those that came meanwhile only the newest is served; its latency counts from when it was taken
up, so that no queue is seen. `open`: all are served in order, and each latency counts from the intended arrival.
"""

from __future__ import annotations

import heapq
import random
import selectors
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.papers.common.server import Server, ServerError
from bench.papers.common.task import Task
from runlist.arrivals import After, Closed, Listed

NEWEST, OPEN = "newest", "open"
MODES = (NEWEST, OPEN)

AHEAD_NS = 1_000_000
"""How long before it is due a request is told."""

Selector = selectors.SelectSelector
"""Those of poll and epoll wait for whole milliseconds, rounded up: a request was told when it was due, or later."""

DRAIN_S = 5.0
_DEPTH = 2
"""Requests that a program has at most in an open queue or a closed loop, so that it never waits for the next."""


@dataclass
class Served:
    """What the window gave of one task; times in ns. `due` is when it was intended, or where nothing says that, when it
    was taken up. Of the requests of an open queue that nobody took up, `late` has how long they had waited at the end.
    `finished` counts those that ended in the window, whenever they came.
    """

    due: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    checks: dict[int, str] = field(default_factory=dict)
    dropped: int = 0
    late: list[int] = field(default_factory=list)
    finished: int = 0
    seconds: float = 0.0
    died: str = ""

    def add(self, answer: Mapping[str, Any], due: int | None) -> None:
        """One that was answered."""
        begun = int(answer["begun"])
        self.due.append(begun if due is None else due)
        self.begun.append(begun)
        self.done.append(answer["done"])
        self.numbers.append(answer["id"])
        self.phases.update({name: int(length) for name, length in answer["phases"].items()})
        if answer.get("check") is not None:
            self.checks[answer["id"]] = str(answer["check"])


@dataclass(frozen=True)
class Plan:
    """How long, how, and by which seed; `skip_s` is where in listed arrivals it begins."""

    seconds: float
    mode: str = OPEN
    settle_s: float = 0.5
    seed: int = 1
    skip_s: float = 0.0
    ways: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """With which of its own ways each task is asked to serve."""


class _Lane:
    """One task in a window."""

    def __init__(self, task: Task, server: Server, plan: Plan, began_ns: int) -> None:
        self.task = task
        self.server = server
        self.served = Served()
        self._plan = plan
        self._measured_ns = began_ns + round(plan.settle_s * 1e9)
        self._ends_ns = self._measured_ns + round(plan.seconds * 1e9)
        self._waiting: deque[tuple[int, int | None]] = deque()
        self.asked: dict[int, int | None] = {}
        self._number = 0
        self.tokens: Counter[str] = Counter()
        self.arrivals = self._arrivals(began_ns)

    def _arrivals(self, began_ns: int) -> Iterator[int]:
        load = self.task.load
        if isinstance(load, Closed | After):
            return
        skip = self._plan.skip_s if isinstance(load, Listed) else 0.0
        rng = random.Random(f"{self._plan.seed} {self.task.name}")  # noqa: S311 (no secret)
        for at in load.arrivals(0.0, rng):
            due = began_ns + round((at - skip) * 1e9)
            if at >= skip and due < self._ends_ns:
                yield due
            elif due >= self._ends_ns:
                return

    @property
    def _depth(self) -> int:
        timed_newest = self._plan.mode == NEWEST and not isinstance(self.task.load, Closed | After)
        return 1 if timed_newest else _DEPTH

    def begin(self) -> None:
        """What does not wait for a time."""
        if isinstance(self.task.load, Closed):
            for _ in range(_DEPTH):
                self.arrive(None)

    def arrive(self, due: int | None) -> None:
        """A request comes."""
        number, self._number = self._number, self._number + 1
        if self._depth == 1 and self._waiting:
            self._drop()
        self._waiting.append((number, due))
        self._send()

    def _drop(self) -> None:
        self.served.dropped += sum(due is not None and due >= self._measured_ns for _, due in self._waiting)
        self._waiting.clear()

    def _send(self) -> None:
        while self._waiting and len(self.asked) < self._depth and not self.served.died:
            number, due = self._waiting.popleft()
            try:
                self.server.ask(self.task.name, number, due, self._plan.ways.get(self.task.name, ()))
            except ServerError as error:
                self.served.died = str(error)
                return
            self.asked[number] = due

    def answered(self, answer: Mapping[str, Any]) -> None:
        """A request is done."""
        due = self.asked.pop(answer["id"], None)
        self.served.finished += self._measured_ns <= answer["done"] <= self._ends_ns
        taken = answer["begun"] if due is None else due
        if taken >= self._measured_ns and answer["done"] <= self._ends_ns + round(DRAIN_S * 1e9):
            if due is None and answer["done"] > self._ends_ns:
                return
            self.served.add(answer, due)
        if isinstance(self.task.load, Closed) and time.monotonic_ns() < self._ends_ns:
            self.arrive(None)
        else:
            self._send()

    def follow(self, name: str) -> None:
        """A task that this one waits for has finished a request."""
        load = self.task.load
        if isinstance(load, After) and name in load.names and time.monotonic_ns() < self._ends_ns:
            self.tokens[name] += 1
            if all(self.tokens[one] for one in load.names):
                self.tokens.subtract(load.names)
                self.arrive(None)

    def end(self, now_ns: int) -> None:
        """Nothing is sent any more: who waits in an open queue has waited in vain."""
        if self._plan.mode == OPEN:
            waited = [now_ns - due for _, due in self._waiting if due is not None and due >= self._measured_ns]
            self.served.late += waited
            self._waiting.clear()
        self._drop()
        self.served.seconds = self._plan.seconds


def drive(tasks: Sequence[Task], servers: Mapping[str, Server], plan: Plan) -> dict[str, Served]:
    """A window of these tasks, each by its server. A program that dies has that in its `died`, and the others go on.
    Raises ServerError where one does not come to an end.
    """
    began_ns = time.monotonic_ns() + 3 * AHEAD_NS
    lanes = {task.name: _Lane(task, servers[task.name], plan, began_ns) for task in tasks}
    ends_ns = began_ns + round((plan.settle_s + plan.seconds) * 1e9)
    with Selector() as selector:
        for server in {id(lane.server): lane.server for lane in lanes.values()}.values():
            selector.register(server, selectors.EVENT_READ)
        coming = [(due, name) for name, lane in lanes.items() if (due := next(lane.arrivals, None)) is not None]
        heapq.heapify(coming)
        for lane in lanes.values():
            lane.begin()
        while (now := time.monotonic_ns()) < ends_ns:
            while coming and coming[0][0] - AHEAD_NS <= now:
                due, name = heapq.heappop(coming)
                lanes[name].arrive(due)
                if (following := next(lanes[name].arrivals, None)) is not None:
                    heapq.heappush(coming, (following, name))
            until_ns = min(ends_ns, coming[0][0] - AHEAD_NS if coming else ends_ns)
            _read(selector, lanes, max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
            if all(lane.served.died for lane in lanes.values()):
                break
        for lane in lanes.values():
            lane.end(time.monotonic_ns())
        until = time.monotonic() + DRAIN_S
        while any(lane.asked and not lane.served.died for lane in lanes.values()):
            if (left := until - time.monotonic()) <= 0:
                names = [name for name, lane in lanes.items() if lane.asked and not lane.served.died]
                raise ServerError(f"{', '.join(names)} did not answer within {DRAIN_S:g} s of the window's end")
            _read(selector, lanes, left)
    return {name: lane.served for name, lane in lanes.items()}


def _read(selector: selectors.BaseSelector, lanes: Mapping[str, _Lane], patience_s: float) -> None:
    for key, _ in selector.select(patience_s):
        server = key.fileobj
        assert isinstance(server, Server)
        try:
            answers = server.read()
        except ServerError as error:
            selector.unregister(server)
            for lane in lanes.values():
                if lane.server is server:
                    lane.served.died = str(error)
            continue
        for name, answer in answers:
            if name in lanes:
                lanes[name].answered(answer)
                for other in lanes.values():
                    other.follow(name)
