"""The daemon's side of a machine: one thread that reads usage, asks the policies and sends controls, one at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TypeVar

from runlist.model import DEFAULT_SHARE, Appear, Event, Segment, Share, Task, TaskKey, Usage, Vanish
from runlist.policies import Decision, PolicySpec
from runlist.scheduling.loop import Loop
from runlist.sim.driver import make_policy
from runlist.sim.engine import Engine
from runlist.sim.gpu import Gpu
from runlist.sim.tenant import Tenant
from runlist.sim.timing import COMPUTE_SLICE, CONTROLS, MICROSECOND, READ_USAGE, SECOND, SLICES
from runlist.sim.watch import Watch

_Result = TypeVar("_Result")


class Controller:
    """The thread. Schedulers that want to run wait for each other; `calls` counts the controls that were sent."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.calls: Counter[str] = Counter()
        self._random = Random(f"{seed}/controls")  # noqa: S311 (a simulation must repeat itself)
        self._waiting: deque[Scheduler] = deque()
        self._busy = False
        self._clock = 0  # until when the running thread is occupied

    def wants(self, scheduler: Scheduler) -> None:
        """Let a scheduler run as soon as the thread is free."""
        if scheduler not in self._waiting:
            self._waiting.append(scheduler)
            if not self._busy:
                self._take_next(None)

    def send(self, name: str, effect: Callable[[], None]) -> None:
        """Send a control behind those that were sent."""
        takes, least, most = CONTROLS[name]
        self.calls[name] += 1
        self.engine.at(self._clock + self._random.randint(least, most), lambda _: effect())
        self._clock += takes

    @property
    def free_at(self) -> int:
        """When the controls of the running scheduler are done; now, where none runs."""
        return max(self.engine.now, self._clock)

    def _take_next(self, _: None) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self.engine.at(self.engine.now + READ_USAGE, self._run, self._waiting.popleft())

    def _run(self, scheduler: Scheduler) -> None:
        self._clock = self.engine.now
        scheduler.run()
        self.engine.at(self._clock, self._take_next)
        self._clock = 0


class Managed:
    """A tenant under control, and the share in force."""

    def __init__(self, tenant: Tenant, send: Callable[[str, Callable[[], None]], None]) -> None:
        self.tenant = tenant
        self.share = DEFAULT_SHARE
        self._send = send

    @property
    def task(self) -> Task:
        assert self.tenant.task is not None
        return self.tenant.task

    def slice_us(self, share: Share) -> int:
        return COMPUTE_SLICE // MICROSECOND if share.timeslice_us is None else share.timeslice_us

    def set_timeslice(self, microseconds: int | None) -> None:
        self.share = replace(self.share, timeslice_us=microseconds)
        length = self.slice_us(self.share) * MICROSECOND
        self._send("set_slice", lambda: self.tenant.gpu.set_slice(self.tenant.context, length))

    def set_enabled(self, enabled: bool) -> None:
        self.share = replace(self.share, enabled=enabled)
        name = "resume" if enabled else "suspend"
        self._send(name, lambda: self.tenant.gpu.set_enabled(self.tenant.context, enabled))

    def preempt(self) -> None:
        self._send("preempt", lambda: self.tenant.gpu.preempt(self.tenant.context))


class Scheduler:
    """One GPU's scheduling as in the daemon. `notes` are troubles of the policy; `decisions` counts."""

    def __init__(self, gpu: Gpu, spec: PolicySpec, controller: Controller) -> None:
        """Raises UsageError for a policy that cannot be loaded."""
        self.gpu = gpu
        self.tasks: dict[TaskKey, Managed] = {}
        self.notes: list[str] = []
        self.decisions = 0
        self.loop = Loop(self, spec, make_policy(spec), SLICES)
        self._watch = Watch(controller.engine, self.loop.tell)
        self._controller = controller
        self._engine = controller.engine
        self._timer = 0  # version: an older timer does not count
        self._due: int | None = None

    def appear(self, tenant: Tenant) -> None:
        """A tenant is managed from now on."""
        self.tasks[tenant.key] = managed = Managed(tenant, self._controller.send)
        self.loop.tell(Appear(managed.task))
        self.wake()

    def vanish(self, tenant: Tenant) -> None:
        """A tenant is gone."""
        if tenant.key in self.tasks:
            self.loop.catch_up()
            usage = self.tasks.pop(tenant.key).task.usage
            self._watch.drop(tenant.key)
            self.loop.tell(Vanish(tenant.key, usage))
            self.wake()

    def hear(self, tenant: Tenant, event: Event) -> None:
        """A tenant says something of itself."""
        if isinstance(event, Segment) and tenant.task is not None:
            tenant.task = replace(tenant.task, segment=event.priority)
        if tenant.key in self.tasks:
            self.loop.tell(event)

    def run(self) -> None:
        """Ask the policy now, and send the controls for its decision."""
        self.decisions += bool(self.tasks)
        self.loop.run()

    # -- for the loop: its host --------------------------------------------------------------------

    def now(self) -> float:
        return self._engine.now / SECOND

    def call(self, function: Callable[[], _Result]) -> _Result:
        return function()  # without a limit: by the clock, a simulation would not repeat itself

    def wake(self, usage_kept_s: float = 0.0) -> None:
        del usage_kept_s  # the model's readings all take the same time
        self._controller.wants(self)

    def ring_in(self, seconds: float) -> None:
        time = self._controller.free_at + round(seconds * SECOND)
        if self._due is None or time < self._due:
            self._due = time
            self._timer += 1
            self._engine.at(time, self._on_timer, self._timer)

    def stop_ringing(self) -> None:
        self._timer += 1
        self._due = None

    def may_have_tiny(self, wants: bool) -> bool:
        del wants
        return True  # there is no other daemon

    def read_usage(self, kept_s: float) -> Mapping[TaskKey, float]:
        """Usage as the GPU's own log tells it: exact times on the GPU and turns, and the idle time known by now. With
        it comes what tenants tell of their activity.
        """
        del kept_s
        self.gpu.settle()
        used = {}
        for key, managed in self.tasks.items():
            context, before = managed.tenant.context, managed.task.usage
            usage = Usage(context.held / SECOND, context.turns, context.known_idle / SECOND)
            if usage != before:
                managed.tenant.task = replace(managed.task, usage=usage)
                used[key] = usage.held_s - before.held_s
            if managed.tenant.telling is not None:
                managed.tenant.task = replace(managed.task, activity=managed.tenant.telling.activity)
        return used

    def watch(self, decision: Decision) -> None:
        # Nothing is done for `off_on_work`: here the policy hears of work at once.
        wanted, announcing = decision.watch, decision.announcing
        tellings = {key: telling for key in (*wanted, *announcing) if (telling := self.tasks[key].tenant.telling)}
        watch = {key: (tellings[key], idle_s) for key, idle_s in wanted.items() if key in tellings}
        self._watch.set(watch, decision.unhurried)
        self._watch.hear({key: tellings[key] for key in announcing if key in tellings})

    def note(self, text: str) -> None:
        self.notes.append(f"{text} (at {self.now():.3f} s)")

    def _on_timer(self, version: int) -> None:
        if version == self._timer:
            self.loop.ring()
        else:
            self._engine.stale += 1
