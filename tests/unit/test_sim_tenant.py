"""Simulated programs: when their hosts launch, what waits for what, and what they tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlist.arrivals import Listed, Periodic
from runlist.model import Activity, Event, Task, TaskKey
from runlist.policies import Decision, Policy, PolicySpec
from runlist.sim import Trace, load_trace, simulate, tenant
from runlist.sim.engine import Engine
from runlist.sim.gpu import Context, Gpu, time_for
from runlist.sim.machine import Machine
from runlist.sim.tenant import Tenant
from runlist.sim.timing import GAP_SPREAD, LAUNCH_FLOOR, MICROSECOND, MILLISECOND, SECOND, SWITCH_GAP
from runlist.sim.workload import TenantSpec

KEY = TaskKey(1, "GPU-0")


class Noting(Gpu):
    """Notes when it was given work."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.launches: list[tuple[int, int]] = []

    def submit(self, context: Context, work: int) -> None:
        self.launches.append((self._engine.now, work))
        super().submit(context, work)

    @property
    def times(self) -> list[int]:
        return [time for time, _ in self.launches]


class Bench:
    """One tenant alone on a GPU."""

    def __init__(self, seed: str = "seed", **settings: object) -> None:
        self.engine = Engine()
        self.gpu = Noting(self.engine)
        self.said: list[Event] = []
        spec = TenantSpec("program", **settings)  # type: ignore[arg-type]
        self.tenant = Tenant(spec, KEY, self.gpu, self.engine, lambda _, event: self.said.append(event), seed)
        self.tenant.start()

    def run(self, until_us: float) -> None:
        self.engine.run(round(until_us * MICROSECOND))

    @property
    def activity(self) -> tuple[int, int, int]:
        """Work, and ns waited and launching."""
        assert self.tenant.telling is not None
        told = self.tenant.telling.activity
        return told.work, round(told.waited_s * SECOND), round(told.launching_s * SECOND)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts take the same time for the same, always."""
    monkeypatch.setattr(tenant, "LAUNCH_JITTER", 0)
    monkeypatch.setattr(tenant, "GAP_SPREAD", 0.0)


LOADED = SWITCH_GAP + time_for(100 * MICROSECOND)
"""The first 100 µs of work, for which the context comes to the GPU."""
# Then it stays there, and runs on in what is left of the time in which its caches are cold: ten parts in nine.
COLD_200 = time_for(300 * MICROSECOND) - time_for(100 * MICROSECOND)


@pytest.mark.usefixtures("exact")
def test_a_kernel_is_launched_so_long_after_the_end_of_the_one_before() -> None:
    bench = Bench(kernel_us=(100, 200), step_gap_us=50, gap_us=1_000, tells=True)
    bench.run(3_500)
    first = 1_000 * MICROSECOND + LAUNCH_FLOOR
    second = first + LOADED + 50 * MICROSECOND + LAUNCH_FLOOR
    ends = second + COLD_200
    again = ends + 1_000 * MICROSECOND + LAUNCH_FLOOR
    work = [100 * MICROSECOND, 200 * MICROSECOND]
    assert bench.gpu.launches[:3] == [(first, work[0]), (second, work[1]), (again, work[0])]
    assert bench.tenant.latencies[0] == ends - 1_000 * MICROSECOND
    assert bench.tenant.length == 300 * MICROSECOND
    third = again + time_for(400 * MICROSECOND) - time_for(300 * MICROSECOND) + 50 * MICROSECOND + LAUNCH_FLOOR
    fourth_ends = third + time_for(600 * MICROSECOND) - time_for(400 * MICROSECOND)
    assert list(bench.tenant.latencies) == [ends - 1_000 * MICROSECOND, fourth_ends - ends - 1_000 * MICROSECOND]
    on_gpu = LOADED + COLD_200 + fourth_ends - again - 50 * MICROSECOND - LAUNCH_FLOOR
    assert bench.activity == (4, on_gpu, 0)  # it waits for each, and launches nothing ahead


@pytest.mark.usefixtures("exact")
def test_a_host_that_is_slower_than_the_gpu_has_it_wait() -> None:
    bench = Bench(kernel_us=(10,) * 4, host_us=90, gap_us=1_000, tells=True)
    bench.run(3_500)
    first = 1_000 * MICROSECOND + LAUNCH_FLOOR
    times = [first + 90 * MICROSECOND * number for number in range(4)]
    assert bench.gpu.times[:4] == times
    # The first two were there before the context was: they are done together, after which it waits for each.
    done = times[3] + time_for(40 * MICROSECOND) - time_for(30 * MICROSECOND)
    assert bench.tenant.latencies[0] == done - 1_000 * MICROSECOND
    assert bench.gpu.times[4] == done + 1_000 * MICROSECOND + LAUNCH_FLOOR
    waited = [latency - LAUNCH_FLOOR - 270 * MICROSECOND for latency in bench.tenant.latencies]
    assert len(waited) == 2
    assert bench.activity == (8, sum(waited), 2 * 270 * MICROSECOND)


@pytest.mark.usefixtures("exact")
def test_a_host_that_launches_ahead_may_wait_now_and_then() -> None:
    bench = Bench(kernel_us=(300,) * 4, host_us=90, wait_every=2, gap_us=1_000, tells=True)
    bench.run(3_000)
    first, host = 1_000 * MICROSECOND + LAUNCH_FLOOR, 90 * MICROSECOND
    second = first + SWITCH_GAP + time_for(600 * MICROSECOND) + host
    ends = second + time_for(1_200 * MICROSECOND) - time_for(600 * MICROSECOND)
    assert bench.gpu.times[:4] == [first, first + host, second, second + host]
    assert bench.tenant.latencies[0] == ends - 1_000 * MICROSECOND
    assert bench.tenant.telling is not None
    assert bench.tenant.telling.activity.waits == 2
    assert bench.tenant.alone_ns == pytest.approx(ends, rel=0.2)


@pytest.mark.usefixtures("exact")
def test_kernels_queue_where_the_host_is_faster() -> None:
    bench = Bench(kernel_us=(300,) * 4, host_us=90, load=Listed((0.001, 0.0011)), tells=True)
    first = 1_000 * MICROSECOND + LAUNCH_FLOOR
    bench.run(1_100)
    assert bench.activity == (1, 0, 0)
    assert len(bench.tenant.latencies) == 0
    bench.run(2_000)
    assert bench.activity == (4, 0, 270 * MICROSECOND)  # what it waits counts when it has waited
    done = first + SWITCH_GAP + time_for(1_200 * MICROSECOND)
    bench.run(4_000)
    again = done + LAUNCH_FLOOR  # the second one has come meanwhile
    assert bench.gpu.times == [start + 90 * MICROSECOND * number for start in (first, again) for number in range(4)]
    done_again = again + 1_200 * MICROSECOND
    assert list(bench.tenant.latencies) == [done - 1_000 * MICROSECOND, done_again - 1_100 * MICROSECOND]
    waited = done - first + done_again - again - 2 * 270 * MICROSECOND
    assert bench.activity == (8, waited, 2 * 270 * MICROSECOND)


@pytest.mark.usefixtures("exact")
def test_a_host_launches_on_while_its_context_is_off() -> None:
    bench = Bench(kernel_us=(10,) * 4, host_us=90, load=Listed((0.0,)), tells=True)
    bench.gpu.set_enabled(bench.tenant.context, False)
    bench.run(5_000)
    assert bench.gpu.times == [LAUNCH_FLOOR + 90 * MICROSECOND * number for number in range(4)]
    assert bench.tenant.overdue() == 5 * MILLISECOND
    bench.gpu.set_enabled(bench.tenant.context, True)
    bench.run(6_000)
    assert list(bench.tenant.latencies) == [5 * MILLISECOND + SWITCH_GAP + time_for(40 * MICROSECOND)]
    assert bench.activity[1] == bench.tenant.latencies[0] - LAUNCH_FLOOR - 270 * MICROSECOND


@pytest.mark.usefixtures("exact")
def test_kernels_back_to_back_are_launched_at_once_and_waited_for() -> None:
    bench = Bench(kernel_us=(100, 200), gap_us=1_000, tells=True)
    bench.run(2_000)
    first = 1_000 * MICROSECOND + LAUNCH_FLOOR
    assert bench.gpu.launches == [(first, 300 * MICROSECOND)]
    assert bench.activity == (2, LOADED + COLD_200, 0)


@pytest.mark.parametrize("settings", [{"step_gap_us": 50.0}, {"host_us": 50.0}])
def test_a_request_of_one_kernel_has_neither_steps_nor_launches_ahead(settings: dict[str, float]) -> None:
    plain, other = Bench(kernel_us=(100,), gap_us=1_000), Bench(kernel_us=(100,), gap_us=1_000, **settings)
    for bench in (plain, other):
        bench.run(50_000)
    assert plain.gpu.launches == other.gpu.launches
    assert plain.tenant.latencies == other.tenant.latencies
    assert plain.tenant.alone_ns == other.tenant.alone_ns


@pytest.mark.parametrize("settings", [{"step_gap_us": 200.0}, {"host_us": 200.0}])
def test_a_program_that_ends_launches_no_more(settings: dict[str, float]) -> None:
    bench = Bench(kernel_us=(10,) * 100, load=Listed((0.0,)), tells=True, **settings)
    bench.run(5_000)
    bench.tenant.end()
    launches = len(bench.gpu.launches)
    assert 10 < launches < 100
    bench.run(100_000)
    assert len(bench.gpu.launches) == launches
    assert bench.activity[0] == launches
    assert len(bench.tenant.latencies) == 0


@pytest.mark.parametrize("name", ["token-loop", "eager-llm", "resnet"])
@pytest.mark.parametrize("loads", ["closed", "open"])
def test_a_program_alone_goes_as_fast_as_it_can(name: str, loads: str) -> None:
    program, _ = load_trace(name).tenants
    if loads == "open":
        program = TenantSpec(**{**program.__dict__, "load": Periodic(5.0)})
    (one,) = simulate(Trace("alone", 5.0, [program]), PolicySpec("none")).result.tenants
    assert one.relative == pytest.approx(1, rel=0.02)
    assert one.kernels_per_s == pytest.approx(one.requests_per_s * len(program.kernel_us), rel=0.05)


@given(
    kernels=st.lists(st.integers(1, 2_000), min_size=1, max_size=12),
    pause=st.integers(1, 500),
    ahead=st.booleans(),
    seed=st.text(max_size=5),
    off_us=st.lists(st.integers(1, 3_000), max_size=6),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_a_program_does_nothing_is_lost_and_its_sums_are_right(
    kernels: list[int], pause: int, ahead: bool, seed: str, off_us: Sequence[int]
) -> None:
    """Also where its context is off for a while now and then."""
    wait = {"host_us" if ahead else "step_gap_us": pause}
    bench = Bench(seed, kernel_us=tuple(map(float, kernels)), gap_us=300, tells=True, **wait)
    context = bench.tenant.context
    on = True
    for length in off_us:
        bench.run(bench.engine.now / MICROSECOND + length)
        on = not on
        bench.gpu.set_enabled(context, on)
    bench.gpu.set_enabled(context, True)
    bench.run(bench.engine.now / MICROSECOND + 100_000)
    bench.gpu.settle()
    launched = len(bench.gpu.launches)
    done = len(bench.tenant.latencies)
    assert done > 0
    assert done * len(kernels) <= launched <= (done + 1) * len(kernels)
    assert [work for _, work in bench.gpu.launches] == [
        kernels[number % len(kernels)] * MICROSECOND for number in range(launched)
    ]
    assert context.worked + context.work == sum(work for _, work in bench.gpu.launches)
    assert context.pending + (bench.engine.now - context.submitted if context.work else 0) <= bench.engine.now
    work, waited, launching = bench.activity
    assert work == launched
    least, most = (pause * MICROSECOND * (1 + side * GAP_SPREAD) for side in (-1, 1))
    times = bench.gpu.times
    if ahead and len(kernels) > 1:
        for number in range(done):
            mine = times[number * len(kernels) : (number + 1) * len(kernels)]
            assert all(least - 1 <= after - before <= most for before, after in pairwise(mine))
        whole = [
            times[number * len(kernels) + len(kernels) - 1] - times[number * len(kernels)] for number in range(done)
        ]
        assert sum(whole) <= launching <= sum(whole) + (times[-1] - times[done * len(kernels) - 1])
        assert waited <= sum(bench.tenant.latencies) - sum(whole)
    else:
        assert launching == 0
        assert waited >= sum(work for _, work in bench.gpu.launches[: done * len(kernels)])
        assert all(after - before > least for (before, _), (after, _) in pairwise(bench.gpu.launches[: len(kernels)]))


class Asking(Policy):
    """Notes what it sees each time that it is asked, every 7 ms."""

    summary = "of a test"

    def __init__(self, machine: Machine) -> None:
        super().__init__({})
        self.machine = machine
        self.seen: list[dict[str, Activity | None]] = []
        self.right = True

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        told = {one.key: None if one.telling is None else one.telling.activity for one in self.machine.tenants}
        self.right &= all(task.activity == told[task.key] for task in tasks)
        self.seen.append({task.command: task.activity for task in tasks})
        return Decision({}, 0.007)


def test_a_policy_sees_the_activity_of_who_tells() -> None:
    program, batch = load_trace("token-loop").tenants
    machine = Machine(Trace("told", 1.0, [program, batch]), PolicySpec("none"), 1, 1.0, 1)
    policy = Asking(machine)
    machine.gpus[0].scheduler.loop.use(PolicySpec("own"), policy)
    machine.run()
    assert policy.right
    assert len(policy.seen) > 100
    assert all(seen.get("batch") is None for seen in policy.seen)
    tokens = [seen["tokens"] for seen in policy.seen if "tokens" in seen]
    assert all(isinstance(one, Activity) for one in tokens)
    assert len({one.work for one in tokens if one is not None}) > 50
    last = tokens[-1]
    assert last is not None
    assert last.launching_s == 0
    assert last.waited_s == pytest.approx(machine.tenants[0].context.pending / SECOND, rel=0.05)
