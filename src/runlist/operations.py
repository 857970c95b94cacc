"""Several clients on the SMs of one GPU at the same time, operation by operation: client 0 goes at once, and what the
others do goes when it fits beside it.

    with operations.start(clients=2, rule="orion", profiles=Path("profiles.csv")) as scheduler:
        with scheduler.client(0):               # this thread serves; before it makes streams
            ...
        with scheduler.client(1):               # in another thread, which trains
            ...

The library must be in the process, with its hooks in force: `RUNLIST_OPERATIONS=threads runlist run -- COMMAND`.
`runlist_operations.h` is the same for C.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from runlist.errors import NotSupportedError, UsageError
from runlist.protocol import environment_autogen as names

MOST_CLIENTS = 16
ANY = 0xFFFFFFFF
"""So many SMs as there are."""

_MOST_BYTES = 64 << 20
_COLUMNS = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration(ns)")
_INT64 = 1 << 63


class Bound(IntEnum):
    """What a kernel is bound by."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2


_BOUNDS = {"1": Bound.COMPUTE, "0": Bound.MEMORY, "-1": Bound.UNKNOWN} | {one.name.lower(): one for one in Bound}


@dataclass(frozen=True, slots=True)
class Admission:
    """What may run beside client 0 while it is busy: pairs of what its newest operation is bound by and what the other
    is; the most SMs of others in flight; whether their copies and fills go at once; and the most that those in flight
    may be expected to last together, in ns, None for no bound.
    """

    beside: frozenset[tuple[Bound, Bound]]
    sms: int = ANY
    copies: bool = True
    gate_ns: int | None = None

    def bits(self) -> int:
        """`beside` as the library takes it."""
        return sum(1 << (3 * first + other) for first, other in self.beside)


_ALL = frozenset((first, other) for first in Bound for other in Bound)
_COMPLEMENTS = frozenset(pair for pair in _ALL if pair[0] != pair[1] or Bound.UNKNOWN in pair)

RULES: Mapping[str, Admission] = {
    "greedy": Admission(_ALL),
    "exclusive": Admission(frozenset(), sms=0, copies=False),
    "orion": Admission(_COMPLEMENTS),
}
"""By name. Without profiles every kernel is unknown, and `orion` is `greedy`; its bounds on SMs and durations are for
`dataclasses.replace`."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one client, since the start, as `rl_operations_counters`: times in ns, `latency_ns` that of the newest
    stretch of work.
    """

    launched: int
    deferred: int
    flushed: int
    opened: int
    waited_ns: int
    requests: int
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What a kernel needs: `name` as in its module, SMs, and how long it takes."""

    name: str
    bound: Bound
    sms: int
    duration_ns: int


class Scheduler:
    """The scheduler of this process. Stopping it lets what is queued go first."""

    def __init__(self, library: ctypes.CDLL, clients: int, own: bool) -> None:
        self.clients = clients
        self._library = library
        self._own = own  # else this process is one client, with all its threads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; may be called again."""
        self._library.rl_operations_stop()

    @contextlib.contextmanager
    def client(self, index: int) -> Iterator[None]:
        """This thread is a client for so long; 0 goes first. Raises UsageError for a number that is none."""
        if not 0 <= index < self.clients:
            raise UsageError(f"no client {index}: there are 0 to {self.clients - 1}")
        if self._own:
            self._call("client", index)
        try:
            yield
        finally:
            if self._own:
                self._library.rl_operations_client(-1)

    def use(self, rule: str | Admission) -> None:
        """The rule from the next operation on. Raises UsageError for a name that is none."""
        admission = rule_of(rule)
        gate = -1 if admission.gate_ns is None else admission.gate_ns
        structure = _Admission(ctypes.sizeof(_Admission), admission.bits(), admission.sms, admission.copies, gate)
        self._call("admission", ctypes.byref(structure))

    def profile(self, *profiles: Profile) -> None:
        """What kernels need, from now on."""
        for one in profiles:
            duration = ctypes.c_int64(one.duration_ns)
            self._call("profile", one.name.encode(), ctypes.c_uint32(one.bound), ctypes.c_uint32(one.sms), duration)

    def counters(self, client: int) -> Counters:
        """What was counted of a client."""
        found = _Counters()
        self._call("counters", client, ctypes.byref(found))
        return Counters(**{one.name: getattr(found, one.name) for one in fields(Counters)})

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"rl_operations_{name}")(*arguments)
        if code < 0:
            raise NotSupportedError(f"the scheduler of operations refuses this ({name}): {os.strerror(-code)}")


def start(clients: int = 2, rule: str | Admission = "orion", profiles: Path | None = None) -> Scheduler:
    """Start the scheduler of this process, for so many clients, by a rule, with profiles of a file as `read` takes it.

    In a process that is a client itself, under MPS (`runlist run --share sms`), it runs already, and only the rule and
    the profiles are set. Raises UsageError for what is wrong in arguments or the file, and NotSupportedError where the
    library is not in the process. Then nothing was started.
    """
    if not 1 <= clients <= MOST_CLIENTS:
        raise UsageError(f"{clients} clients: there can be 1 to {MOST_CLIENTS}")
    admission = rule_of(rule)
    known = [] if profiles is None else read(profiles)
    scheduler = Scheduler(library(), clients, own="/" not in os.environ.get(names.OPERATIONS, ""))
    if scheduler._own:
        scheduler._call("start", clients)
    try:
        scheduler.use(admission)
        scheduler.profile(*known)
    except BaseException:
        scheduler.stop()
        raise
    return scheduler


def library() -> ctypes.CDLL:
    """Runlist's, in this process. Raises NotSupportedError where it is not."""
    found = ctypes.CDLL(None)
    if not hasattr(found, "rl_operations_start"):
        raise NotSupportedError(
            f"the library is not in this process: {names.OPERATIONS}=threads runlist run -- COMMAND"
        )
    return found


def rule_of(rule: str | Admission) -> Admission:
    """A rule by its name, or as it is. Raises UsageError for a name that is none."""
    if isinstance(rule, Admission):
        return rule
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r}: take {', '.join(RULES)}")
    return RULES[rule]


def read(path: Path) -> list[Profile]:
    """The profiles of a file of comma-separated lines: Name, Profile (1 compute, 0 memory, -1 unknown, or the word),
    Memory_footprint (not used), SM_usage, Duration(ns). Raises UsageError, with file and line, for what is wrong; then
    nothing of it counts.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: profile fewer kernels")
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            head = next(rows, [])
            if tuple(word.strip() for word in head) != _COLUMNS:
                raise UsageError(f"{path}:1: the columns must be {', '.join(_COLUMNS)}")
            return [_profile(row, f"{path}:{rows.line_num}") for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: no file of comma-separated lines: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _profile(row: list[str], where: str) -> Profile:
    if len(row) != len(_COLUMNS):
        raise UsageError(f"{where}: {len(row)} columns, not {len(_COLUMNS)}")
    name, bound, _, sms, duration = (word.strip() for word in row)
    if not name or "\0" in name:
        raise UsageError(f"{where}: a kernel without a name")
    if bound.lower() not in _BOUNDS:
        raise UsageError(f"{where}: Profile {bound!r}: take 1 (compute), 0 (memory) or -1 (unknown)")
    return Profile(name, _BOUNDS[bound.lower()], _whole(sms, "SM_usage", ANY, where),
                   _whole(duration, "Duration(ns)", _INT64 - 1, where))  # fmt: skip


def _whole(text: str, column: str, most: int, where: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:  # not a number is neither
        raise UsageError(f"{where}: {column} {text!r}: take a number from 0 on")
    return min(most, round(number))


class _Admission(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("size", "beside", "sms", "copies")),
        ("gate_ns", ctypes.c_int64),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in (one.name for one in fields(Counters)))
