"""The interface of a plane to the rest of Runlist: a way to reach GPUs and the work of processes on them.

A plane is a module with a function `make_plane()`; in its vendor's folder the module `controls` lists what users may
set in the driver. Handles, classes, limits and protocols of a vendor stay inside. Only data travels outside: GPUs by
UUID, slices in µs, controls by name, and undo as bytes that only the plane itself can read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from runlist.errors import NotSupportedError

if TYPE_CHECKING:  # the loader of the kernel plane stays small
    from runlist.model import SliceLimits
    from runlist.planes.usage import TurnLog, UsageSource

Undo = list[bytes]
"""Steps that put a context back, in the order in which to replay them. Of several contexts, all first steps go before
all second ones: slices come first, so that no two tasks run at tiny slices on the way.
"""


class Prepared(msgspec.Struct, frozen=True):
    """Steps, as protocol/actuator.toml has them, that suspend a context and that resume it, for who knows nothing of it
    but its file.
    """

    off: Sequence[bytes]
    on: Sequence[bytes]


Group = tuple[int, int]
"""A channel group: the client of the process that has it, and its handle there."""


class CensusError(NotSupportedError):
    """There is no census, or it failed; the message says what to do."""


class Limited(Exception):
    """A check of `runlist doctor` found that something works, with a limit; the message says which."""


class GpuInfo(msgspec.Struct, frozen=True):
    """A GPU: UUID, product name, memory in bytes, and the driver's index."""

    uuid: str
    name: str
    memory: int
    index: int


class NodeGpu(msgspec.Struct, frozen=True):
    """A GPU as its machine has it: its UUID, the driver's index, bytes of memory, the number of its device node and its
    NUMA node where it has one, and why it is not fit for work, or nothing.
    """

    uuid: str
    index: int
    memory: int
    minor: int | None = None
    numa: int | None = None
    sick: str = ""


class GpuWatch(Protocol):
    """Looks at the GPUs of this machine in rounds. A GPU that was seen once stays in the list. Use it from one thread
    at a time.
    """

    def look(self, seconds: float) -> list[NodeGpu]:
        """Wait for news for so long at most; then all GPUs, in the driver's order. A driver that does not answer has
        none.
        """

    def close(self) -> None:
        """Let go of the driver. The next look opens it again."""


class Handle(Protocol):
    """An open file by which a plane reaches a client of a process: a copy of the process' own. The client's memory
    lives as long as the copy is open.
    """

    def fileno(self) -> int:
        """The descriptor, for passing on."""

    def close(self) -> None:
        """Let go of it. Nothing changes in the process."""


class Context(Protocol):
    """The channel groups of one client on one GPU, under control. Every method raises RunlistError or OSError, and
    ContextGone when the client was freed. A group that its process freed is dropped without an error.
    """

    @property
    def gpu(self) -> str:
        """UUID of the GPU."""

    @property
    def client(self) -> int:
        """Its client. A client is on one open file, of which its process may have several descriptors."""

    @property
    def handle(self) -> Handle:
        """The file on which it is controlled."""

    @property
    def groups(self) -> Collection[int]:
        """Handles of its channel groups; none when nothing is left of it."""

    @property
    def channels(self) -> int:
        """How many channels they have together."""

    @property
    def competing(self) -> int:
        """How many of the groups compete for the GPU's compute engine."""

    @property
    def group_ids(self) -> Collection[int]:
        """Ids of those groups on the GPU; empty where the driver does not tell. Contexts of several processes that have
        one in common run and stop together, as the clients of one MPS server do: to suspend one is to suspend all.
        """

    @property
    def found_us(self) -> int:
        """The longest slice that it was found with, in µs: the one in force while we set none."""

    def forget_groups(self) -> None:
        """Drop its groups: the client is gone."""

    def set_timeslice(self, microseconds: int | None) -> None:
        """Set every group's slice; None sets each back to the slice that it was found with."""

    def wrong_timeslices(self, microseconds: int | None) -> bool:
        """Whether a slice differs from that of `set_timeslice(microseconds)`: its process has set it itself."""

    def take_as_original(self) -> None:
        """Remember the present slices as those that it was found with."""

    def suspend(self) -> None:
        """Take it off the GPU; after `resume` its work goes on where it was."""

    def resume(self) -> None:
        """Let it run."""

    def rouse(self) -> None:
        """Let it run, by everything that might help one that should run already, and does not."""

    def prepared_suspend(self) -> Prepared | None:
        """What has it compute no more, for the daemon's actuator to send on its file: the same object until something
        changed. What it copies may go on until `suspend`. None where only that has it stop.
        """

    def suspend_at_once(self, others: Sequence[Self]) -> None:
        """Have it and others on its GPU compute no more, by as few requests as the driver takes. What they copy may go
        on until `suspend`. Where it raises, some may be off.
        """

    def resume_at_once(self) -> None:
        """Have it compute again, which went off by `suspend_at_once` or `prepared_suspend` and not by `suspend`."""

    def preempt(self) -> None:
        """Take it off the GPU once; it competes again at once."""

    def set_control(self, name: str, word: str | None) -> None:
        """Set one of the plane's controls to one of its words; None for the driver's default."""

    def will_touch(self, name: str) -> bool:
        """Make `undo` cover a control. True when it did not before, so that the keeper has to be told."""

    def undo(self) -> Undo:
        """The steps that put everything back, safe to replay at any moment on the file."""

    def put_back(self) -> list[str]:
        """Put everything back, whatever fails; returns the failures. Objects that are gone count as put back, and so do
        controls that we have no right to.
        """


class Found(Protocol):
    """A client of a process with work on GPUs."""

    @property
    def fd(self) -> int:
        """The number of its descriptor in the process; negative for a lent one."""

    @property
    def handle(self) -> Handle:
        """Our copy of the file; clients on one file share it."""

    @property
    def client(self) -> int:
        """Which client."""

    def contexts(self, handle: Handle, known: Collection[Group]) -> Sequence[Context]:
        """A context for each GPU where it has groups that are not `known`, controlled on `handle`."""

    def extend(self, context: Context) -> bool:
        """Add channels to a context of this client that its groups have got since; whether there are any."""


class Lent(msgspec.Struct, frozen=True):
    """A file that a process lent, and the client on it. The negative `key` stands for its unknown descriptor number."""

    key: int
    handle: Handle
    client: int


class Borrower(Protocol):
    """Somebody with the right to copy a descriptor out of a process; `way` is its name for people."""

    way: str

    def borrow(self, pid: int, pidfd: int, fd: int) -> int:
        """A copy, owned by the caller. Raises OSError as pidfd_getfd does."""


class Finder(Protocol):
    """Finds what processes have on GPUs, from outside. `find` and `examine` may take long: call them in a thread."""

    def may_have_work(self, pid: int) -> bool:
        """Whether a process has a file open by which it could have work. Cheap."""

    def find(self, pid: int, pidfd: int, borrower: Borrower, *, new: bool) -> Sequence[Found]:
        """The GPU work of a process; `new` says that it has just begun. The caller closes each distinct handle. Raises
        NoPermissionError without the right to the process.
        """

    def is_file(self, pid: int, fd: int) -> bool:
        """Whether a descriptor of a process is of this driver. Cheap."""

    def find_seen(self, pid: int, pidfd: int, borrower: Borrower, seen: Sequence[Seen]) -> Sequence[Found]:
        """As `find`, without a search: the driver is asked about these objects alone. What it does not know is none."""

    def is_unfinished(self, pid: int) -> bool:
        """Whether the last `find` left something for the next, because the process has so much."""

    def examine(self, lent: Sequence[Lent]) -> Sequence[Found]:
        """The same for files that a process lent; takes them over."""

    def close(self) -> None:
        """Let go of the driver."""


class DriverFiles(msgspec.Struct, frozen=True):
    """The files by which a driver is reached: devices of this major number, or one file, by its device and inode as
    `os.stat` has them. All 0: any file may be one.
    """

    major: int = 0
    device: int = 0
    inode: int = 0


class Capture(msgspec.Struct, frozen=True):
    """What of the requests to a driver the kernel plane is to capture, in the structures of protocol/kernel.toml:
    shapes by the requests' numbers, rules for classes, and controls that are counted, with WATCH_… of each.
    """

    shapes: Mapping[int, bytes]
    rules: tuple[bytes, ...]
    watched: Mapping[int, int]
    files: DriverFiles = DriverFiles()


class Seen(msgspec.Struct, frozen=True):
    """What was seen of a client of a process: the descriptor on which, and the handles of its objects."""

    fd: int
    client: int
    objects: tuple[int, ...]


class Census(Protocol):
    """Who is on which GPU, and with how much memory. Methods raise CensusError, and may be called from threads."""

    def gpus(self) -> list[GpuInfo]:
        """All GPUs that answer, in the driver's order. Raises CensusError where there are some, and none does."""

    def memory(self, gpu: str) -> dict[int, int]:
        """Bytes that each process holds on a GPU, by process id; processes that are hidden from us are missing."""

    def used(self, gpu: str) -> int:
        """Bytes in use on a GPU, whoever holds them; what the driver keeps for itself is left out where it tells."""

    def pids(self) -> set[int]:
        """Processes with work on any GPU."""

    def mps_clients(self, gpu: str) -> set[int]:
        """Processes whose work reaches a GPU through an MPS server."""

    def limits_memory(self, cgroup: Path) -> bool:
        """Whether the driver itself limits memory by cgroup."""

    def limit_memory(self, gpu: str, cgroup: Path, limit: int | None) -> None:
        """Limit what the processes of a cgroup hold on a GPU together, in bytes; None for no limit."""

    def close(self) -> None:
        """Free its session."""


class Replayer(Protocol):
    """Replays undo on one open file, in the keeper, which knows nothing else of it."""

    def replay(self, step: bytes) -> None:
        """Take one step. Raises OSError when the file is of no more use."""

    def close(self) -> None:
        """Close the file."""


class Plane(Protocol):
    """One way to GPUs. Making it opens nothing; a method imports what it needs."""

    @property
    def name(self) -> str:
        """Its name for `--device`."""

    @property
    def slices(self) -> SliceLimits:
        """The slices that are safe on its GPUs."""

    def check(self) -> None:
        """Raises NotSupportedError, which says what to do, when there is no such driver here."""

    def finder(self) -> Finder:
        """A finder. Raises NotSupportedError when there is no driver."""

    def adopt(self, fd: int) -> Handle | None:
        """Take over a sent descriptor, if it is of this plane's driver; else close it and return None."""

    def replayer(self, fd: int) -> Replayer | None:
        """Take over a descriptor to replay undo on; close it and return None where it is none of this plane."""

    def usage_sources(self, gpu: str) -> Sequence[tuple[str, Callable[[], UsageSource]]]:
        """Sources of usage by name, the best first; each raises RunlistError or OSError where it does not work."""

    def turn_log(self, gpu: str) -> TurnLog:
        """Every turn on a GPU from now on. Raises RunlistError where the driver keeps no log, or refuses it to us."""

    def census(self) -> Census:
        """A census. Raises CensusError where there is none."""

    def gpu_numbers(self) -> Mapping[int, str]:
        """GPUs by the numbers by which programs name them to the driver, as the kernel plane tells them. Raises
        RunlistError or OSError.
        """

    def watch_gpus(self) -> GpuWatch:
        """Which GPUs are there and fit for work, from now on."""

    def rescue(self, pid: int) -> list[str]:
        """Put a process back that no daemon or keeper knows; returns the changes that were found."""

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Checks for `runlist doctor`: names and functions. They return a finding, or raise Limited or RunlistError."""

    def environment(self) -> Mapping[str, str]:
        """Variables that a program needs to reach its GPUs."""

    def watch_paths(self) -> list[Path]:
        """Files whose opening means that some process may be making a context."""

    def capture(self) -> Capture | None:
        """What the kernel plane can see of its driver; None where that sees nothing."""

    def state_dir(self) -> Path | None:
        """Where this plane's daemon keeps its socket, when not in the usual place."""
