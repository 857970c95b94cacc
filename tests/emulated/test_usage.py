"""True usage against jobs whose length is known: on the device of the session, real processes, the real log."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.gpu.choice import open_source
from runlist.emulated import EmulatedGpu
from runlist.planes.nvidia.nvml import gpus, session
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import EmulatedDriver, choose_driver
from runlist.planes.nvidia.usage.nvml import NvmlUsage
from runlist.planes.registry import choose_plane
from runlist.planes.usage import Reading, Residency, UsageSource
from tests.conftest import ON_NVIDIA
from tests.emulated.raw import Running, Target
from tests.fixtures.daemon import NOBODY, As, Slices, needs_root, wait_for

JOB = """
module = begin({gpu})
accumulate = kernel(module, b"accumulate_lcg")
state = alloc(132 * 1024)
put(state, bytes(132 * 1024))
def work(kernels):
    for _ in range(kernels):
        launch(accumulate, (132,), (256,), (U64, U64, U32), state, 33792, {rounds})
def event():
    return ok(cu.cuEventCreate(0))
def record(event):
    ok(cu.cuEventRecord(event, 0))
    return event
# The GPU's clock by the host's: an event whose time is known, as no more passed about it than `width`.
width, anchor, origin = None, None, None
for _ in range(200):
    before, looked = time.time_ns(), record(event())
    ok(cu.cuEventSynchronize(looked))
    about = time.time_ns() - before
    if width is None or about < width:
        width, anchor, origin = about, looked, before + about // 2
    if width < 200_000:
        break
def at(event):
    return origin + int(ok(cu.cuEventElapsedTime(anchor, event)) * 1e6)
begun, ended = event(), event()
def stretch(kernels):  # kernels that come to the GPU without a gap, behind others: as long as the host is not too late
    for _ in range(20):
        work(10)
        record(begun)
        work(kernels)
        record(ended)
        in_time = code(cu.cuEventQuery(begun)) == 600
        ok(cu.cuEventSynchronize(ended))
        if in_time:
            return
    raise SystemExit("the host was too late each time")
stretch(5)
one_s = ok(cu.cuEventElapsedTime(begun, ended)) / 5e3
say("ready")
for line in sys.stdin:
    command, number = line.split()
    if command == "work":  # so many kernels; answers for how many seconds they were, and when they began and ended
        stretch(int(number))
        say(ok(cu.cuEventElapsedTime(begun, ended)) / 1e3, at(begun), at(ended))
    elif command == "half":  # so often a kernel, then as long a pause; answers as "work" does
        record(begun)
        for _ in range(int(number)):
            start = time.monotonic()
            work(1)
            ok(cu.cuCtxSynchronize())
            time.sleep(time.monotonic() - start)
        ok(cu.cuEventSynchronize(record(ended)))
        say(int(number) * one_s, at(begun), at(ended))
"""
KERNEL_ROUNDS = 700_000  # about 10 ms
KERNELS = 100

Start = Callable[..., "Job"]


class Job:
    """A process with work of a known length."""

    def __init__(self, environment: dict[str, str], gpu: int = 0) -> None:
        self._program = Running(environment, JOB.format(gpu=gpu, rounds=KERNEL_ROUNDS))
        self.pid = self._program.pid
        assert self._program.line() == "ready"

    def tell(self, command: str) -> None:
        self._program.tell(command)

    @property
    def answered(self) -> bool:
        return self._program.answered

    def finished(self) -> tuple[float, int, int]:
        """Of its work: seconds, and when it began and ended (CLOCK_REALTIME, ns), all by the GPU's clock. When the host
        gave it and heard of it is no matter.
        """
        seconds, begun, ended = self._program.line().split()
        return float(seconds), int(begun), int(ended)

    def work(self, kernels: int = KERNELS) -> float:
        """Work alone; seconds."""
        self.tell(f"work {kernels}")
        return self.finished()[0]

    def end(self) -> None:
        self._program.end()


@pytest.fixture
def job(device_env: dict[str, str]) -> Iterator[Start]:
    started: list[Job] = []

    def start(gpu: int = 0, environment: dict[str, str] | None = None) -> Job:
        started.append(Job(environment or device_env, gpu))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def source(on_device: None) -> Iterator[UsageSource]:
    """The usage of the first GPU, by its log."""
    opened, refusals = open_source(choose_plane(), _uuids()[0])
    assert (opened.name, refusals) == ("switch log", ())
    yield opened
    opened.close()


def _uuids() -> list[str]:
    with session(choose_driver()):
        return [gpu.uuid for gpu in gpus()]


class Book:
    """All that was read from a source."""

    def __init__(self, source: UsageSource) -> None:
        self._source = source
        self.residencies: list[Residency] = []
        self.seconds: dict[int, float] = {}
        self.idle_s: dict[int, float] = {}
        self.turns: dict[int, int] = {}
        self._until = source.read().until

    def read(self) -> Reading:
        reading = self._source.read()
        passed, self._until = reading.until - self._until, reading.until
        assert sum(held.held_s for held in reading.usage.values()) <= passed + 1e-6
        assert reading.dropped == 0
        self.residencies += reading.residencies
        for pid, held in reading.usage.items():
            self.seconds[pid] = self.seconds.get(pid, 0.0) + held.held_s
            self.idle_s[pid] = self.idle_s.get(pid, 0.0) + held.idle_s
            self.turns[pid] = self.turns.get(pid, 0) + held.turns
        return reading

    def read_while_busy(self, *jobs: Job) -> None:
        """Read until all have done their work, and twice more: idle time is told one reading late."""
        deadline = time.monotonic() + 60
        while not all(job.answered for job in jobs):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            self.read()
        for _ in range(2):
            time.sleep(0.05)
            self.read()

    def turns_between(self, pid: int, begun: int, ended: int) -> int:
        """How often a process came to the GPU between two times; parts of one turn are one."""
        turns = 0
        for before, one in itertools.pairwise(self.residencies):
            joins = one.pid == before.pid and one.start_ns == before.end_ns
            turns += one.pid == pid and begun < one.start_ns < ended and not joins
        return turns

    def held(self, pid: int, begun: int, ended: int) -> float:
        """Seconds that a process held the GPU between two times."""
        spans = [(max(one.start_ns, begun), min(one.end_ns, ended)) for one in self.residencies if one.pid == pid]
        return sum(end - start for start, end in spans if end > start) / 1e9


def test_a_lone_job_of_known_length(source: UsageSource, job: Start) -> None:
    tenant = job()
    book = Book(source)
    tenant.tell(f"work {KERNELS}")
    book.read_while_busy(tenant)
    seconds, begun, ended = tenant.finished()
    assert seconds > 0.5
    assert book.held(tenant.pid, begun, ended) == pytest.approx(seconds, rel=0.01)


def test_two_jobs_of_known_length_that_compete(source: UsageSource, job: Start, slices: Slices) -> None:
    tenants = [job(), job()]
    alone = [tenant.work() for tenant in tenants]
    slice_s = 0.02
    for tenant in tenants:
        for context in slices.contexts(tenant.pid):
            context.set_timeslice(int(slice_s * 1e6))
    book = Book(source)
    for tenant in tenants:
        tenant.tell(f"work {KERNELS}")
    book.read_while_busy(*tenants)
    done = [tenant.finished() for tenant in tenants]
    for tenant, seconds, (_, begun, ended) in zip(tenants, alone, done, strict=True):
        assert book.held(tenant.pid, begun, ended) == pytest.approx(seconds, rel=0.01)
    both = max(begun for _, begun, _ in done), min(ended for _, _, ended in done)
    for tenant in tenants:
        held = book.held(tenant.pid, *both)
        assert held > 0.5
        assert book.turns_between(tenant.pid, *both) == pytest.approx(held / slice_s, rel=0.15)


def test_residencies_are_in_order_and_leave_room_for_the_switch(source: UsageSource, job: Start) -> None:
    tenants = [job(), job()]
    book = Book(source)
    pairs: list[tuple[Residency, Residency]] = []
    for _ in range(5):  # on a busy machine one may be through before the other begins
        for tenant in tenants:
            tenant.tell(f"work {KERNELS // 2}")
        book.read_while_busy(*tenants)
        for tenant in tenants:
            tenant.finished()
        pairs = list(itertools.pairwise(book.residencies))
        if len(pairs) > 50:
            break
    assert len(pairs) > 50
    for one, other in pairs:
        assert one.end_ns <= other.start_ns
        if one.pid != other.pid:
            assert 50_000 < other.start_ns - one.end_ns < 10_000_000


def test_idle_time_of_a_lone_holder(source: UsageSource, job: Start) -> None:
    """It holds the GPU all the time, and idles when no kernel runs: half of it, and more where the host is slow."""
    tenant = job()
    book = Book(source)
    tenant.tell("half 300")  # of which the last second may not be known yet
    book.read_while_busy(tenant)
    busy, begun, ended = tenant.finished()
    passed = (ended - begun) / 1e9
    assert book.held(tenant.pid, begun, ended) == pytest.approx(passed, rel=0.05)
    assert book.idle_s[tenant.pid] / passed == pytest.approx(1 - busy / passed, abs=0.15)


def test_a_lone_job_at_work_is_not_idle(source: UsageSource, job: Start) -> None:
    tenant = job()
    book = Book(source)
    tenant.tell(f"work {3 * KERNELS}")
    book.read_while_busy(tenant)
    seconds, begun, ended = tenant.finished()
    assert seconds > 2.5
    assert book.held(tenant.pid, begun, ended) > 0.96 * seconds
    waited = book.seconds[tenant.pid] - seconds  # before its work and after it
    assert book.idle_s[tenant.pid] < waited + 0.05 * seconds


def test_nvml_as_the_source(on_device: None, job: Start) -> None:
    from runlist.planes.nvidia.nvml import Utilisation

    source = NvmlUsage(Utilisation(choose_driver(), _uuids()[0]))
    tenant = job()
    tenant.tell(f"work {20 * KERNELS}")
    wait_for(lambda: tenant.pid in source.read().usage, "NVML to have seen it")
    time.sleep(0.5)
    since = source.read().until
    time.sleep(1.0)
    reading = source.read()
    assert 0.7 < reading.usage[tenant.pid].held_s / (reading.until - since) <= 1.05
    assert not tenant.answered  # it was at work for all of that time
    source.close()


def test_each_gpu_has_a_log_of_its_own(
    fresh_gpu: Callable[..., EmulatedGpu], job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = fresh_gpu(gpus=3)
    for name, value in gpu.environment().items():
        monkeypatch.setenv(name, value)
    environment = {**os.environ, **gpu.environment()}
    driver = EmulatedDriver(gpu.dir)
    sources = [open_source(NvidiaPlane(driver), uuid).source for uuid in _uuids()]
    assert {source.name for source in sources} == {"switch log"}
    tenants = [job(number, environment) for number in (0, 2)]
    for tenant in tenants:
        tenant.work(20)
    seen = [set(source.read().usage) for source in sources]
    assert seen == [{tenants[0].pid}, set(), {tenants[1].pid}]
    for source in sources:
        source.close()


@needs_root
@pytest.mark.skipif(ON_NVIDIA, reason="opens up the emulated GPU's folder")
def test_processes_of_other_users_are_seen_without_their_ids(on_device: None, job: Start) -> None:
    gpu = Path(os.environ["RUNLIST_EMULATED_GPU"])
    tenants = [job(), job()]

    def seen() -> dict[int, float]:
        source = open_source(choose_plane(), uuid).source
        assert source.name == "switch log"
        for tenant in tenants:
            tenant.tell("work 50")
        book = Book(source)
        book.read_while_busy(*tenants)
        source.close()
        return book.seconds

    uuid = _uuids()[0]
    opened = [gpu.parent, gpu, gpu / "nvidiactl"]
    modes = [path.stat().st_mode for path in opened]
    try:
        for path in opened:
            path.chmod(0o777)
        seconds = As(NOBODY)(seen)
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode & 0o7777)
    assert set(seconds) == {0}
    assert seconds[0] > 0.5


@pytest.mark.skipif(ON_NVIDIA, reason="a figure of the emulated GPU would say nothing else")
def test_what_reading_costs(source: UsageSource, job: Start, record_property: Callable[[str, object], None]) -> None:
    """A figure for the report, not a limit: two cores are shared by everything that runs."""
    tenants = [job(), job()]
    for tenant in tenants:
        target = Target(tenant.pid)
        target.set_slice(1000)
        target.close()
        tenant.tell(f"work {KERNELS}")
    book = Book(source)
    spent, seconds = 0.0, 1.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        begun = time.thread_time()
        book.read()
        spent += time.thread_time() - begun
    switches = sum(book.turns.values())
    record_property("percent of a core", round(100 * spent / seconds, 3))
    record_property("switches a second", switches / seconds)
    print(f"{100 * spent / seconds:.2f} % of a core at {switches / seconds:.0f} switches a second")
    assert switches > 100
    for tenant in tenants:
        tenant.finished()
