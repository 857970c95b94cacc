"""Watching one process while somebody asks why it is late: the programs of native/kernel/why.cpp are loaded, attached,
and told of in their own order. Nothing of them is left when it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.planes.kernel import bpf, functions, program, rights
from runlist.planes.kernel.bpf import MapType
from runlist.planes.kernel.ring import Ring
from runlist.planes.process.library import program as built
from runlist.proc.process import capable, has_the_kernels_pids
from runlist.protocol import why_autogen as protocol
from runlist.structure import Structure

OBJECT = "why.bpf.o"
MOST_AT_ONCE = 1 << 16
_MANY_SINCE = (6, 10)  # of that Linux on, many functions are watched by one link, in all threads of a process
_NUMBER = struct.Struct("<I")
_THREAD = Structure(protocol.STRUCTS["THREAD"])
_MAPS = {
    "settings": (MapType.ARRAY, 4, Structure(protocol.STRUCTS["SETTINGS"]).size, 1),
    "threads": (MapType.HASH, 4, _THREAD.size, protocol.MAX_THREADS),
    "cores": (MapType.ARRAY, 4, Structure(protocol.STRUCTS["CORE"]).size, protocol.MAX_CORES),
    "interrupts": (MapType.PER_CPU_ARRAY, 4, 8, len(protocol.Source)),
    "stacks": (MapType.STACK_TRACES, 4, 8 * protocol.STACK_DEPTH, protocol.STACKS),
    "counters": (MapType.PER_CPU_ARRAY, 4, 8, len(protocol.Counter)),
    "events": (MapType.RING, 0, 0, protocol.RING_BYTES),
}
_SWITCH = {"prev_comm": 8, "prev_pid": 24, "prev_state": 32, "next_comm": 40, "next_pid": 56}
_WAKEUP = {"comm": 8, "pid": 24, "target_cpu": 32}
_FIELDS: Mapping[str, Mapping[str, int | tuple[int, ...]]] = {
    "sched/sched_switch": _SWITCH,
    "sched/sched_wakeup": _WAKEUP,
    "sched/sched_wakeup_new": _WAKEUP,
    "sched/sched_process_fork": {"child_pid": (20, 44)},
    "exceptions/page_fault_user": {"address": 8},
    "irq/irq_handler_exit": {"irq": 8},
    "irq/softirq_exit": {"vec": 8},
    "irq_vectors/local_timer_exit": {"vector": 8},
}
"""What why.cpp reads at tracepoints, and where it expects that; of several places the kernel's own is put in."""
_NOTHING: Mapping[str, int] = {}
_OPTIONAL = ("exceptions/", "irq_vectors/")  # which not every processor has


class Function(msgspec.Struct, frozen=True):
    """A function of a library that is watched: its exported name, its number in what is told, where the argument of
    interest is (protocol/why.toml), whether calls may be folded, and whether its end is told.
    """

    symbol: str
    number: int
    argument: int = 0
    folds: bool = False
    returns: bool = True

    @property
    def cookie(self) -> int:
        """What the programs see of it."""
        return self.number | self.argument << protocol.PLACE_SHIFT | (protocol.FOLDS if self.folds else 0)


class Counts(msgspec.Struct, frozen=True):
    """What the programs counted."""

    events: int
    dropped: int
    calls: int
    switches: int
    threads_missed: int


class Watch:
    """The programs at work on one process. Raises NotSupportedError or NoPermissionError where they cannot be."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._held: list[int] = []
        self._maps: dict[str, int] = {}
        self._programs: dict[str, int] = {}
        self._ring: Ring | None = None
        self._many = _release() >= _MANY_SINCE
        self.missing: list[str] = []
        """Tracepoints that this kernel has not."""
        self._launches: list[int] = []
        self.stepped: set[int] = set()
        """Numbers of functions whose calls cost more (`functions.is_stepped_over`)."""
        self.functions = 0
        """How many are watched."""
        _may_watch()
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch_functions(self, path: Path, wanted: Sequence[Function]) -> None:
        """Watch functions of a library that the process has, by a path that leads to that very file. Names of one
        place count as the first. Raises NotSupportedError.
        """
        try:
            found = functions.places(path, [each.symbol for each in wanted])
        except (ValueError, OSError) as error:
            raise NotSupportedError(f"{path} cannot be watched: {error}") from None
        launches: dict[int, int] = {}
        others: dict[int, int] = {}
        for each in wanted:
            place = found.get(each.symbol)
            if place is None or place in launches or place in others:
                continue
            (launches if each.folds else others)[place] = each.cookie
            self.functions += 1
            if functions.is_stepped_over(path, place):
                self.stepped.add(each.number)
        self._launches += self._attached(path, launches, at_return=False)
        self._held += self._attached(path, others, at_return=False)
        self._held += self._attached(path, others, at_return=True)

    def let_go_of_launches(self) -> None:
        """Watch no launches any more: there are too many."""
        for fd in self._launches:
            os.close(fd)
        self._launches = []

    def watch_own(self, path: Path, place: int, at_return: bool) -> Callable[[], None]:
        """Watch a function of this very process, of which nothing is told; gives what ends that. Raises OSError."""
        held = self._attach_to(path, {place: 0}, os.getpid(), at_return=at_return)

        def end() -> None:
            for fd in held:
                os.close(fd)

        return end

    def take(self) -> Iterator[bytes]:
        """What was told since the last call: each an EVENT of protocol/why.toml."""
        assert self._ring is not None
        return self._ring.take(MOST_AT_ONCE)

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._maps["events"]

    def stack(self, number: int) -> list[int]:
        """The addresses in the kernel that a thread was at when it blocked, the innermost first."""
        found = self._map("stacks").get(_NUMBER.pack(number)) or b""
        return [address for (address,) in struct.iter_unpack("<Q", found) if address]

    def counts(self) -> Counts:
        """What was counted so far."""
        values = [
            sum(value for (value,) in struct.iter_unpack("<Q", self._map("counters").get(_NUMBER.pack(each)) or b""))
            for each in protocol.Counter
        ]
        return Counts(*values)

    def close(self) -> None:
        """Stop. The kernel lets go of all of it."""
        self._ring = None  # nobody else maps it
        self.let_go_of_launches()
        for fd in (*self._held, *self._programs.values(), *self._maps.values()):
            os.close(fd)
        self._held, self._programs, self._maps = [], {}, {}

    def _load(self) -> None:
        try:
            programs, licence = program.read(built(OBJECT).read_bytes())
        except OSError as error:
            raise NotSupportedError(f"{error.strerror or error}") from None
        except ValueError as error:
            raise NotSupportedError(f"{OBJECT} of this installation is no good ({error}): reinstall runlist") from None
        for name, (kind, key, value, entries) in _MAPS.items():
            try:
                self._maps[name] = bpf.make_map(name, kind, key, value, entries)
            except PermissionError:
                raise NoPermissionError(_NO_RIGHT) from None
            except OSError as error:
                raise NotSupportedError(f"the kernel makes no map {name}: {error.strerror}") from None
        self._ring = Ring(self._maps["events"], protocol.RING_BYTES)
        settings = Structure(protocol.STRUCTS["SETTINGS"]).pack(pid=self._pid)
        self._map("settings").put(_NUMBER.pack(0), bytes(settings))
        threads = self._map("threads")
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{self._pid}/task"):
                threads.put(_NUMBER.pack(int(task)), bytes(_THREAD.size))
        try:
            tracing = rights.open_tracing()
        except OSError as error:
            raise NotSupportedError(f"tracepoints cannot be reached ({error.strerror}): mount tracefs") from None
        try:
            for each in programs:
                self._begin(each, licence, tracing)
        finally:
            os.close(tracing)

    def _begin(self, each: program.Program, licence: str, tracing: int) -> None:
        probe = each.kind == "uprobe"
        number, have = -1, _NOTHING
        if not probe:
            try:
                number = rights.tracepoint_id(tracing, each.tracepoint)
            except OSError as error:
                if each.tracepoint.startswith(_OPTIONAL):
                    self.missing.append(each.tracepoint)
                    return
                raise NotSupportedError(rights.no_tracepoint(each.tracepoint, error)) from None
            expected = _FIELDS.get(each.tracepoint, {})
            have = rights.fields(tracing, each.tracepoint)
            if any(have.get(name) not in _several(place) for name, place in expected.items()):
                raise NotSupportedError(f"the tracepoint {each.tracepoint} of this kernel has other fields than known")
        kind = bpf.ProgramType.PROBE if probe else bpf.ProgramType.TRACEPOINT
        try:
            instructions = each.with_maps(self._maps, _places(each.tracepoint, have))
            code = bpf.load_program(each.name, instructions, licence, kind, many=probe and self._many)
        except OSError as error:
            if isinstance(error, bpf.Refused) and error.errno == 1 and not error.log:
                raise NoPermissionError(_NO_RIGHT) from None
            raise NotSupportedError(bpf.why_not(each.name, error)) from None
        self._programs[each.name] = code
        if probe:
            return
        try:
            self._held += bpf.attach(code, number)
        except OSError as error:
            raise NotSupportedError(f"the kernel does not attach {each.name}: {_why(error)}") from None

    def _attached(self, path: Path, cookies: Mapping[int, int], *, at_return: bool) -> list[int]:
        try:
            return self._attach_to(path, cookies, self._pid, at_return=at_return) if cookies else []
        except ProcessLookupError:
            raise NoTargetError(f"process {self._pid} has ended") from None
        except OSError as error:
            raise NotSupportedError(f"the kernel does not watch calls in {path}: {_why(error)}") from None

    def _attach_to(self, path: Path, cookies: Mapping[int, int], pid: int, *, at_return: bool) -> list[int]:
        code = self._programs["come_back" if at_return else "call"]
        if self._many:
            return [bpf.attach_to_functions(code, str(path), cookies, pid, at_return=at_return)]
        held: list[int] = []
        for place, cookie in cookies.items():
            held += bpf.attach_to_function(code, str(path), place, pid, cookie, at_return=at_return)
        return held

    def _map(self, name: str) -> bpf.Map:
        kind, key, value, _ = _MAPS[name]
        if kind is MapType.PER_CPU_ARRAY:
            value *= bpf.possible_cpus()
        return bpf.Map(self._maps[name], key, value)


_NO_RIGHT = "no right to load programs into the kernel: run this as root, or with CAP_BPF and CAP_PERFMON"


def _may_watch() -> None:
    if not has_the_kernels_pids():
        raise NotSupportedError("this is in a pid namespace, where the kernel's process ids are others: ask outside")
    if not (capable(rights.BPF) and capable(rights.PERFMON)):
        raise NoPermissionError(_NO_RIGHT)


def _several(place: int | tuple[int, ...]) -> tuple[int, ...]:
    return place if isinstance(place, tuple) else (place,)


def _places(tracepoint: str, have: Mapping[str, int]) -> dict[str, int]:
    """By which names a program asks where fields are that have not always been at one place."""
    name = tracepoint.rpartition("/")[2]
    several = [field for field, place in _FIELDS.get(tracepoint, {}).items() if isinstance(place, tuple)]
    return {f"{name}_{field}": have[field] for field in several}


def _why(error: OSError) -> str:
    """What to say of a kernel that refuses to attach."""
    if error.errno in (1, 13) and rights.is_locked_down():
        return rights.LOCKED_DOWN
    return f"{error.strerror}; Linux 5.15 or later is needed"


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
