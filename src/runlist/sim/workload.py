"""The parts of a simulation: tenants and the load that each puts on a GPU, as a trace describes them.

Everything here is checked when it is made; ValueError says in one line what is wrong with which field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runlist.arrivals import MAX_SECONDS, After, AnyLoad, Closed, check
from runlist.errors import UsageError
from runlist.model import DEFAULT_WEIGHT, MAX_TIMESLICE_US, Cap, Deadline, TaskClass, check_weight

MAX_KERNEL_US = 60e6
MAX_KERNELS = 100_000


@dataclass(frozen=True)
class TenantSpec:
    """One process. A request is `kernel_us` long, one number per kernel, one kernel right after the other; a closed
    loop pauses `gap_us` on the host between requests.

    With `step_gap_us` the host waits for each kernel, works for so long, and launches the next. With `host_us` it waits
    only at the end, and takes so long from one launch to the next: the GPU takes the kernels in order, and waits for
    the host where that is slower. With `wait_every` it waits after each so many kernels, too. A request of one kernel
    has none of these, whatever is given. `tells`: its activity is told, as a program under librunlist.so does.

    With `prepare_us` the host works for so long between the arrival of a request and its first launch, and where it
    tells of its activity it announces the launch at the arrival. With the probability `false_alarms` something comes in
    after a request that is taken for one, and is none.

    `gpu` fixes where it runs (None: where there is most room, each tenant taking `demand` of a GPU). `end_s` is when
    it goes away (None: never). `hint_us` before each request of an open loop it says that it will come. `segment` is
    the priority of the segment around each request. `timeslice_us` is a slice fixed by the user.
    """

    name: str
    task_class: TaskClass = TaskClass.NORMAL
    weight: int = DEFAULT_WEIGHT
    cap: Cap | None = None
    deadline: Deadline | None = None
    target_p99_us: float | None = None
    group: str = ""
    gpu: int | None = None
    load: AnyLoad = field(default_factory=Closed)
    kernel_us: tuple[float, ...] = (1_000.0,)
    gap_us: float = 0.0
    start_s: float = 0.0
    end_s: float | None = None
    hint_us: float | None = None
    segment: int | None = None
    timeslice_us: int | None = None
    demand: float = 1.0
    step_gap_us: float = 0.0
    host_us: float = 0.0
    wait_every: int | None = None
    tells: bool = False
    prepare_us: float = 0.0
    false_alarms: float = 0.0

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ValueError("name: give 1 to 200 printable characters")
        check_weight(self.weight)
        if not 1 <= len(self.kernel_us) <= MAX_KERNELS:
            raise ValueError(f"kernels: a request has 1 to {MAX_KERNELS}, not {len(self.kernel_us)}")
        for length in self.kernel_us:
            check("kernel_us", length, 0.001, MAX_KERNEL_US)
        check("gap_us", self.gap_us, 0, MAX_KERNEL_US)
        check("step_gap_us", self.step_gap_us, 0, MAX_KERNEL_US)
        check("host_us", self.host_us, 0, MAX_KERNEL_US)
        check("prepare_us", self.prepare_us, 0, MAX_KERNEL_US)
        check("false_alarms", self.false_alarms, 0, 1)
        if self.step_gap_us and self.host_us:
            raise ValueError("step_gap_us, host_us: a host waits for each kernel or launches ahead: give one of them")
        if self.wait_every is not None:
            check("wait_every", self.wait_every, 1, MAX_KERNELS)
            if not self.host_us:
                raise ValueError("wait_every: only a host that launches ahead waits now and then: give host_us")
        check("start", self.start_s, 0, MAX_SECONDS)
        if self.end_s is not None and not self.start_s < self.end_s <= MAX_SECONDS:
            raise ValueError(f"end: give a time after the start ({self.start_s:g} s), not {self.end_s:g}")
        if self.gpu is not None and self.gpu < 0:
            raise ValueError(f"gpu: GPUs are counted from 0, not {self.gpu}")
        if self.target_p99_us is not None:
            check("p99_us", self.target_p99_us, 1, MAX_KERNEL_US)
        if self.hint_us is not None:
            check("hint_us", self.hint_us, 1, MAX_KERNEL_US)
            if isinstance(self.load, Closed | After):
                raise ValueError("hint_us: only an open loop knows when its next request comes")
        if self.timeslice_us is not None and not 1 <= self.timeslice_us <= MAX_TIMESLICE_US:
            raise ValueError(f"timeslice_us: take 1 to {MAX_TIMESLICE_US}, not {self.timeslice_us}")
        if (self.task_class is TaskClass.DEADLINE) != (self.deadline is not None):
            raise ValueError("deadline: give budget and period with class deadline, and only with it")


def check_seconds(seconds: float) -> None:
    """Raise UsageError for what is no length of a simulation: it would not end."""
    if not 0.001 <= seconds <= MAX_SECONDS:
        raise UsageError(f"seconds: take 0.001 to {MAX_SECONDS:.0f}, not {seconds:g}")


def waits_for_itself(tenants: Sequence[TenantSpec]) -> str:
    """The name of a tenant whose requests come after its own, by whatever others: none ever comes. Empty where there
    is none.
    """
    left = {tenant.name: set(tenant.load.names) for tenant in tenants if isinstance(tenant.load, After)}
    while ends := [name for name, before in left.items() if not before & left.keys()]:
        for name in ends:
            del left[name]
    return next(iter(left), "")


@dataclass(frozen=True)
class Trace:
    """Tenants, how long to simulate them, and on how many GPUs unless the user says otherwise.

    `tenants` may be a stream: it is read in order of `start_s` as simulated time passes, and `names` that `After`
    loads refer to must be in it. A GPU takes `tenants_per_gpu`; who finds no room waits.
    """

    name: str
    seconds: float
    tenants: Iterable[TenantSpec]
    gpus: int = 1
    tenants_per_gpu: int = 64
    notes: tuple[str, ...] = ()
