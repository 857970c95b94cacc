"""A process at run time: its host, which launches one request after the other, and how long each takes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from math import log
from random import Random

from runlist.arrivals import After, Closed
from runlist.model import Event, Hint, Report, Segment, Task, TaskKey
from runlist.sim.engine import Engine, Handler
from runlist.sim.gpu import Context, Gpu
from runlist.sim.telling import Telling
from runlist.sim.timing import GAP_SPREAD, LAUNCH_FLOOR, LAUNCH_JITTER, MICROSECOND, MILLISECOND, SECOND
from runlist.sim.workload import TenantSpec

Say = Callable[["Tenant", Event], None]

FALSE_ALARM = 2 * MILLISECOND
"""After a request, before something comes in that is none."""


class Tenant:
    """One process on one GPU.

    Its host does one request at a time, as a program that synchronises does: it launches, waits, and takes up the next
    one, which may have arrived long before. Within a request it waits as its `TenantSpec` says. `latencies`, in
    nanoseconds, count from when a request was to be launched: its intended arrival in an open loop, the end of the
    pause in a closed one. `arrived` is that instant for the request that is next to finish; it may lie ahead.
    `length` is how long the kernels of one request take alone on the GPU.
    `say` is called with its messages: hints, reports, segments.
    `task` is what the policy sees of the tenant while it is managed, None before and after; `followers` are tenants
    that take up a request whenever this one has finished one. `telling` is what it tells of its activity, None where
    it tells nothing.
    """

    __slots__ = (
        "_arrivals", "_counts", "_engine", "_gap", "_hint", "_host", "_kernels", "_launched", "_prepare", "_random",
        "_reports", "_say", "_step", "_step_gap", "_tokens", "_wait_every", "arrived", "began", "context", "ended",
        "followers", "gpu", "key", "latencies", "length", "spec", "task", "telling",
    )  # fmt: skip

    def __init__(self, spec: TenantSpec, key: TaskKey, gpu: Gpu, engine: Engine, say: Say, seed: str) -> None:
        self.spec = spec
        self.key = key
        self.gpu = gpu
        self._engine = engine
        self._say = say
        self._random = Random(seed)  # noqa: S311 (a simulation must repeat itself)
        self._step_gap = round(spec.step_gap_us * MICROSECOND)
        self._host = round(spec.host_us * MICROSECOND)
        self._prepare = round(spec.prepare_us * MICROSECOND)
        self._step = 0  # the kernel of the request that is launched next; with a wait after each, the one under way
        on_done: Callable[[], None] = self._done
        self._launched: Handler = self._launches_all
        if len(spec.kernel_us) > 1 and (spec.step_gap_us or spec.host_us):
            self._kernels = [max(1, round(length * MICROSECOND)) for length in spec.kernel_us]
            self.length = sum(self._kernels)
            if spec.step_gap_us:
                self._launched, on_done = self._launches_step, self._step_done
            else:
                self._launched, on_done = self._launches_ahead, self._caught_up
        else:
            self.length = max(1, round(sum(spec.kernel_us) * MICROSECOND))
            self._kernels = [self.length]
        self._wait_every = spec.wait_every or len(self._kernels)
        self._counts = Telling()
        self.telling = self._counts if spec.tells else None
        self._gap = round(spec.gap_us * MICROSECOND) if isinstance(spec.load, Closed) else None
        self._hint = None if spec.hint_us is None else round(spec.hint_us * MICROSECOND)
        self._reports = spec.target_p99_us is not None
        self._arrivals: Iterator[float] = iter(())
        self._tokens: dict[str, deque[int]] = {}  # when each forerunner finished what was not followed yet
        self.context = Context(on_done)
        self.task: Task | None = None
        self.followers: list[Tenant] = []
        self.arrived: int | None = None
        self.began = engine.now
        self.ended: int | None = None
        self.latencies = array("q")

    def start(self) -> None:
        """Begin to work."""
        self.gpu.add(self.context)
        load = self.spec.load
        if isinstance(load, After):
            self._tokens = {name: deque() for name in load.names}
        elif not isinstance(load, Closed):
            self._arrivals = load.arrivals(self._engine.now / SECOND, self._random)
        self._next_request()

    def end(self) -> None:
        """The process is gone, with the work under way."""
        self.gpu.remove(self.context)
        self.ended = self._engine.now

    def forerunner_done(self, name: str) -> None:
        """A tenant that this one follows has finished a request."""
        self._tokens[name].append(self._engine.now)
        if self.arrived is None and self.ended is None:
            self._next_request()

    @property
    def alone_ns(self) -> int:
        """How long a round of a closed loop takes alone on the GPU."""
        launch, more = LAUNCH_FLOOR + LAUNCH_JITTER, len(self._kernels) - 1
        if self._launched == self._launches_step:
            takes = self.length + more * (self._step_gap + launch)
        else:
            takes = launched = 0
            for index, length in enumerate(self._kernels):  # each when it is launched, and the one before has ended
                if index and index % self._wait_every == 0:
                    launched = takes
                launched += self._host if index else 0
                takes = max(takes, launched) + length
        return (self._gap or 0) + launch + takes

    def overdue(self) -> int:
        """Nanoseconds since the oldest request arrived that is not finished, 0 when there is none."""
        return 0 if self.arrived is None else max(0, self._engine.now - self.arrived)

    def unfinished(self) -> int:
        """How many requests have arrived and are not finished. Uses up the arrivals: ask when all is over."""
        if not self.overdue():
            return 0
        if self._tokens:
            return 1 + min(len(times) for times in self._tokens.values())
        count = 1
        while (arrival := next(self._arrivals, None)) is not None and arrival * SECOND <= self._engine.now:
            count += 1
        return count

    def _next_request(self) -> None:
        arrival = self._next_arrival()
        self.arrived = arrival
        if arrival is None:
            return
        engine = self._engine
        begins = max(arrival, engine.now)
        if self._hint is not None:
            engine.at(max(engine.now, arrival - self._hint), self._hints, arrival)
        if self.spec.segment is not None:
            engine.at(begins, self._begins_segment)
        if self._prepare and self.telling is not None:
            engine.at(begins, self._announces)
        engine.at(begins + self._prepare + self._launch_time(), self._launched)

    def _next_arrival(self) -> int | None:
        if self._gap is not None:
            return self._engine.now + self._varied(self._gap)
        if self._tokens:
            if not all(self._tokens.values()):
                return None
            return max(times.popleft() for times in self._tokens.values())
        second = next(self._arrivals, None)
        return None if second is None else round(second * SECOND)

    def _launch_time(self) -> int:
        return LAUNCH_FLOOR + int(-LAUNCH_JITTER * log(1.0 - self._random.random()))

    def _varied(self, pause: int) -> int:
        return int(pause * (1 + GAP_SPREAD * (2 * self._random.random() - 1)))

    # -- within a request --------------------------------------------------------------------------

    def _launches_all(self, _: None) -> None:
        if self.ended is not None:
            return
        self.gpu.submit(self.context, self.length)
        self._counts.submits(len(self.spec.kernel_us), self._engine.now)
        self._counts.waits(self._engine.now)

    def _launches_step(self, _: None) -> None:
        if self.ended is not None:
            return
        self.gpu.submit(self.context, self._kernels[self._step])
        self._counts.submits(1, self._engine.now)
        self._counts.waits(self._engine.now)

    def _step_done(self) -> None:
        self._step += 1
        if self._step == len(self._kernels):
            self._step = 0
            self._done()
            return
        now = self._engine.now
        self._counts.goes_on(now)
        self._engine.at(now + self._varied(self._step_gap) + self._launch_time(), self._launched)

    def _launches_ahead(self, _: None) -> None:
        if self.ended is not None:
            return
        now = self._engine.now
        self.gpu.submit(self.context, self._kernels[self._step])
        self._step += 1
        waits = self._waits()
        self._counts.submits(1, now)
        if waits:
            self._counts.waits(now)
        if not waits:
            self._engine.at(now + self._varied(self._host), self._launched)

    def _waits(self) -> bool:
        """Whether the host that launches ahead waits now for what it has launched."""
        return self._step == len(self._kernels) or self._step % self._wait_every == 0

    def _caught_up(self) -> None:
        """The GPU has done what was launched."""
        if not self._waits():
            return
        if self._step == len(self._kernels):
            self._step = 0
            self._done()
            return
        now = self._engine.now
        self._counts.goes_on(now)
        self._engine.at(now + self._varied(self._host), self._launched)

    def _done(self) -> None:
        now, arrived = self._engine.now, self.arrived
        assert arrived is not None
        self._counts.goes_on(now)
        latency = now - arrived
        self.latencies.append(latency)
        if self._reports:
            self._say(self, Report(self.key, latency / SECOND))
        if self.spec.segment is not None:
            self._say(self, Segment(self.key, None))
        for follower in self.followers:
            follower.forerunner_done(self.spec.name)
        if self.telling is not None and self.spec.false_alarms and self._random.random() < self.spec.false_alarms:
            self._engine.at(now + FALSE_ALARM, self._announces)
        self._next_request()

    # -- what it says ------------------------------------------------------------------------------

    def _hints(self, arrival: int) -> None:
        if self.ended is None:
            self._say(self, Hint(self.key, (arrival - self._engine.now) / SECOND))

    def _announces(self, _: None) -> None:
        if self.ended is None and self.telling is not None:
            self.telling.announces(self._prepare)

    def _begins_segment(self, _: None) -> None:
        if self.ended is None:
            self._say(self, Segment(self.key, self.spec.segment))
