"""A simulated machine: GPUs, the tenants of a trace on them, and the daemon that schedules them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from runlist.arrivals import After
from runlist.errors import UsageError
from runlist.model import Activity, Task, TaskKey
from runlist.policies import PolicySpec
from runlist.sim.controller import Controller, Scheduler
from runlist.sim.engine import Engine
from runlist.sim.gpu import Gpu
from runlist.sim.recorder import Recorder
from runlist.sim.tenant import Tenant
from runlist.sim.timing import ATTACH, IDLE_SAMPLE, SECOND
from runlist.sim.workload import TenantSpec, Trace

USAGE_EVERY = SECOND
"""The daemon reads usage that often, whatever else happens."""

_FIRST_PID = 1000


@dataclass
class ScheduledGpu:
    """A GPU with its scheduler, its tenants, and the part of it for which they asked."""

    name: str
    gpu: Gpu
    scheduler: Scheduler
    tenants: list[Tenant] = field(default_factory=list)
    demand: float = 0.0


class Machine:
    """Runs a trace. Afterwards `tenants` has all that ran, `refused` those that the policy refused and why, `waiting`
    those that found no room until the end.
    """

    def __init__(
        self,
        trace: Trace,
        policy: PolicySpec,
        gpus: int,
        seconds: float,
        seed: int,
        make_gpu: Callable[[Engine], Gpu] = Gpu,
    ) -> None:
        """Raises UsageError for a policy that cannot be loaded."""
        self.engine = Engine()
        self.end = round(seconds * SECOND)
        self.controller = Controller(self.engine, seed)
        self.recorder = Recorder(self.engine, seconds)
        self._make_gpu = make_gpu
        self.gpus = [self._place(index, policy) for index in range(gpus)]
        self.tenants: list[Tenant] = []
        self.refused: list[tuple[TenantSpec, str]] = []
        self.waiting: deque[TenantSpec] = deque()
        self._alive: dict[Tenant, ScheduledGpu] = {}
        self._by_name: dict[str, Tenant] = {}
        self._dependents: list[tuple[Tenant, tuple[str, ...]]] = []
        self._seed = seed
        self._room = trace.tenants_per_gpu
        self._coming: Iterator[TenantSpec] = iter(trace.tenants)

    def run(self) -> None:
        """Run the whole trace. Raises UsageError for a bad tenant, as far as the trace is read."""
        engine = self.engine
        self._take_next_spec()
        engine.at(self.recorder.length, self._close_window)
        engine.at(IDLE_SAMPLE, self._sample_idle)
        engine.at(USAGE_EVERY, self._read_usage)
        engine.run(self.end)
        for place in self.gpus:
            place.gpu.settle()

    # -- tenants come and go -----------------------------------------------------------------------

    def _place(self, index: int, policy: PolicySpec) -> ScheduledGpu:
        gpu = self._make_gpu(self.engine)
        return ScheduledGpu(f"GPU-{index}", gpu, Scheduler(gpu, policy, self.controller))

    def _take_next_spec(self) -> None:
        """The trace may be a long stream: only the next tenant of it is read ahead."""
        spec = next(self._coming, None)
        if spec is not None:
            if spec.gpu is not None and spec.gpu >= len(self.gpus):
                raise UsageError(f"tenant {spec.name} runs on GPU {spec.gpu}, and there are {len(self.gpus)}: --gpus")
            self.engine.at(max(self.engine.now, round(spec.start_s * SECOND)), self._comes, spec)

    def _comes(self, spec: TenantSpec) -> None:
        if not self._begin(spec):
            self.waiting.append(spec)
        self._take_next_spec()

    def _begin(self, spec: TenantSpec) -> bool:
        """Start a tenant, or refuse it; False when there is no room for it."""
        eligible = self.gpus if spec.gpu is None else [self.gpus[spec.gpu]]
        place = min(eligible, key=lambda place: (len(place.tenants) >= self._room, place.demand))
        if len(place.tenants) >= self._room:
            return False
        key = TaskKey(_FIRST_PID + len(self.tenants) + len(self.refused), place.name)
        task = _task(spec, key, self.engine.now / SECOND)
        others = [other.task for other in place.tenants if other.task is not None]
        refusal = place.scheduler.loop.refusal(task, others)
        if refusal is not None:
            self.refused.append((spec, refusal))
            return True
        tenant = Tenant(spec, key, place.gpu, self.engine, place.scheduler.hear, f"{self._seed}/{spec.name}")
        tenant.task = task
        place.tenants.append(tenant)
        place.demand += spec.demand
        self.tenants.append(tenant)
        self._alive[tenant] = place
        self._follow(tenant)
        tenant.start()
        self.engine.at(self.engine.now + ATTACH, self._is_managed, tenant)
        if spec.end_s is not None:
            lasts = round((spec.end_s - spec.start_s) * SECOND)
            self.engine.at(self.engine.now + lasts, self._goes, tenant)
        return True

    def _follow(self, tenant: Tenant) -> None:
        """Tie dependent tenants to those that they follow, in either order of coming."""
        name, load = tenant.spec.name, tenant.spec.load
        self._by_name[name] = tenant
        tenant.followers += [other for other, names in self._dependents if name in names]
        if isinstance(load, After):
            self._dependents.append((tenant, load.names))
            for followed in {self._by_name[one] for one in load.names if one in self._by_name}:
                followed.followers.append(tenant)

    def _is_managed(self, tenant: Tenant) -> None:
        if tenant.ended is None:
            self._alive[tenant].scheduler.appear(tenant)

    def _goes(self, tenant: Tenant) -> None:
        tenant.end()
        self.recorder.leave(tenant)
        place = self._alive.pop(tenant)
        place.scheduler.vanish(tenant)
        tenant.task = None
        place.tenants.remove(tenant)
        place.demand -= tenant.spec.demand
        while self.waiting and self._begin(self.waiting[0]):
            self.waiting.popleft()

    # -- what happens every so often ---------------------------------------------------------------

    def _close_window(self, _: None) -> None:
        self.recorder.close_window(self._alive)
        self.engine.at(self.engine.now + self.recorder.length, self._close_window)

    def _sample_idle(self, _: None) -> None:
        for place in self.gpus:
            place.gpu.sample_idle()
        self.engine.at(self.engine.now + IDLE_SAMPLE, self._sample_idle)

    def _read_usage(self, _: None) -> None:
        for place in self.gpus:
            place.scheduler.loop.read_usage()
        self.engine.at(self.engine.now + USAGE_EVERY, self._read_usage)


def _task(spec: TenantSpec, key: TaskKey, now: float) -> Task:
    return Task(
        key,
        spec.task_class,
        spec.name,
        uid=1000,
        since=now,
        timeslice_us=spec.timeslice_us,
        weight=spec.weight,
        cap=spec.cap,
        deadline=spec.deadline,
        target_p99_us=spec.target_p99_us,
        group=spec.group,
        activity=Activity() if spec.tells else None,
    )
