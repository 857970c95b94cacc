"""Processes in /proc: their family, their owner, and which process an id means.

A process id means little without the time at which the process began: ids are used again. Questions raise OSError
where there is no descriptor or no memory to ask with: nobody counts as gone for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from runlist.proc.aside import ask_all
from runlist.proc.exhaustion import passes

CAP_SYS_PTRACE = 19
"""What it takes to look into processes of others, for `capable`."""

_CHUNK = 1 << 16
_MAX_STATUS = 1 << 20  # its line of groups may be long
_MAX_STAT = 1 << 12
_MAX_COUNT = 10_000
_DEAD = (b"Z", b"X")
_SCHED_CLOCK = 2  # of the clocks of a process: what the scheduler gave it, to the ns


_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # the inode of the one that a machine begins with


def pid_namespace() -> int:
    """The inode of our own pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def has_the_kernels_pids() -> bool:
    """Whether processes have the numbers here by which the kernel itself knows them, as in the first pid namespace."""
    return pid_namespace() == _FIRST_PID_NAMESPACE


NEAR = 32
"""So many processes above another are asked for one by one; those of careful programs have fewer above them."""

_MOST_STARTS = 1 << 16
_FIELDS = 20
_FROM_STATUS = (("State", 1), ("PPid", None), ("Threads", None))

_starts: dict[int, bytes] = {}  # when processes began, as it was last told
_walks = 0
_parents: dict[int, int] = {}  # as they were at the last walk


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone or a zombie, which has no memory. A process
    whose first thread has ended lives as long as others run.
    """
    return _start_in(_stat(pid))


def starts_of(pids: Collection[int]) -> dict[int, int | None]:
    """The same of several, for less."""
    return {pid: _start_in(fields) for pid, fields in _stats(pids).items()}


def _start_in(fields: list[bytes]) -> int | None:
    return None if not fields or (fields[0] in _DEAD and int(fields[17]) <= 1) else int(fields[19])


def names_of(pid: int) -> tuple[int, ...]:
    """The process ids of a process, from our pid namespace down to its own; empty when it is gone."""
    status = _status(pid)
    return tuple(map(int, status.get("NSpid", str(pid)).split())) if status else ()


def descendants(roots: Iterable[int]) -> dict[int, list[int]]:
    """Each process and all its descendants, parents first; empty for one that is gone. One pass over /proc."""
    global _walks, _parents
    found = dict(_look_at_parents())
    _walks += 1
    _parents = found
    return descendants_then(roots)


def descendants_then(roots: Iterable[int]) -> dict[int, list[int]]:
    """The same as it was at the last walk, at once."""
    found = _parents
    children: dict[int, list[int]] = {}
    for child, parent in found.items():
        children.setdefault(parent, []).append(child)
    trees = {}
    for root in roots:
        tree = [root] if root in found else []
        for member in tree:
            tree.extend(children.get(member, ()))
        trees[root] = tree
    return trees


def ancestors(pid: int) -> Iterator[int]:
    """A process and those above it: the next NEAR ones as they are now, all others as they were at the last walk, so
    that nobody who is deep below has others wait. It ends early where that walk does not know one.
    """
    here: int | None = pid
    near = 0
    while here:
        yield here
        near += 1
        here = parent_of(here) if near <= NEAR else _parents.get(here)


def those_below(top: int, pids: Iterable[int], limit: int) -> set[int]:
    """Those of some processes that are another one or descend from it, as far as nobody above `limit` is asked for. Who
    is above several of them is asked for once.
    """
    known = {limit: limit == top, top: True}
    for pid in pids:
        path = []
        for above in ancestors(pid):
            path.append(above)
            if above in known:
                break
        known |= dict.fromkeys(path, known.get(path[-1], False))
    return {pid for pid in pids if known[pid]}


def is_deep(pid: int) -> bool:
    """Whether there are processes above this one that are not known before the next walk."""
    above = list(ancestors(pid))
    return len(above) > NEAR and _parents.get(above[-1]) != 0


def walks() -> int:
    """How often this process has gone over /proc."""
    return _walks


def _look_at_parents() -> Iterator[tuple[int, int]]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    yield from ((pid, int(fields[1])) for pid, fields in _stats(pids, all_of_them=True).items() if fields)


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the name, which may be anything; none when the process is gone."""
    return _stats([pid])[pid]


def _stats(pids: Collection[int], *, all_of_them: bool = False) -> dict[int, list[bytes]]:
    """The same of several. Of one that has the kernel wait those fields are right that are asked for here, and it began
    when it did as it was last told.
    """
    global _starts
    told = ask_all((pid, partial(_read_stat, pid)) for pid in pids)
    found = {pid: told[pid] if pid in told else _stat_by_status(pid) for pid in pids}
    starts = {pid: fields[19] for pid, fields in found.items() if fields}
    if all_of_them or len(_starts) >= _MOST_STARTS:
        _starts = starts
    else:
        _starts.update(starts)
        for pid in found.keys() - starts.keys():
            _starts.pop(pid, None)  # its id may be another's soon
    return found


def _stat_by_status(pid: int) -> list[bytes]:
    status = _status(pid)
    if not status:
        return []
    fields = [b"0"] * _FIELDS
    fields[0], fields[1], fields[17] = (status[name].encode()[:n] for name, n in _FROM_STATUS)
    fields[19] = _starts.get(pid, b"0")
    return fields


def waits_in_kernel(pid: int) -> bool:
    """Whether a process waits for something that nothing but its coming ends."""
    return _status(pid).get("State", "")[:1] == "D"


def _read_stat(pid: int) -> list[bytes]:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(fd, _MAX_STAT)  # it comes in one piece
        finally:
            os.close(fd)
    except OSError as error:
        if passes(error):
            raise
        return []
    return content.rpartition(b")")[2].split()


def descriptor_count(pid: int) -> int:
    """How many descriptors a process has, counted up to 10,000 before Linux 6.2; -1 when it is gone or we may not ask.
    Cheap, and it changes when the process opens a GPU.
    """
    folder = f"/proc/{pid}/fd"
    try:
        if count := os.stat(folder).st_size:
            return count
        with os.scandir(folder) as entries:
            return sum(1 for _ in itertools.islice(entries, _MAX_COUNT))
    except OSError:
        return -1


def read_bytes(pid: int, name: str, limit: int) -> bytes:
    """A file of /proc/PID, up to so many bytes; empty when it may not be read. Plain calls: this is done for every
    process that opens the GPU. For `cmdline` and `environ` take `words.own_words`.
    """
    content = b""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(content) < limit and (more := os.read(fd, min(limit - len(content), _CHUNK))):
                content += more
        finally:
            os.close(fd)
    except OSError as error:
        if passes(error):
            raise
    return content


def read(pid: int, name: str, limit: int) -> str:
    """The same as text."""
    return read_bytes(pid, name, limit).decode("utf-8", "replace")


def parent_of(pid: int) -> int | None:
    """Process id of a process' parent, or None when it is gone."""
    parent = _status(pid).get("PPid")
    return None if parent is None else int(parent)


def processor_ns(pid: int) -> int:
    """Processor time that a process has had, all of its threads together; -1 for one that is gone."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _SCHED_CLOCK)
    except OSError:
        return -1


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by Ctrl-Z."""
    return _stat(pid)[:1] == [b"T"]


def wants_processor(pid: int) -> bool:
    """Whether a process runs, or waits for nothing but a processor."""
    return _stat(pid)[:1] == [b"R"]


def has_pending(pid: int) -> bool:
    """Whether signals wait for a process, or for its first thread, to take them."""
    status = _status(pid)
    return any(int(status.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd"))


def behind(pidfd: int) -> int:
    """The process id behind a pidfd; 0 where the process has ended, or is not seen in this namespace."""
    try:
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return max(0, next((int(line[4:]) for line in lines if line.startswith("Pid:")), 0))


def owner_of(pid: int) -> int | None:
    """Real user id of a process, or None when it is gone or a zombie. One whose first thread has ended is none."""
    status = _status(pid)
    ended = status.get("State", "Z")[0] in "ZX" and int(status.get("Threads", "0")) <= 1
    return None if ended else int(status["Uid"].split()[0])


def peak_of(pid: int) -> int:
    """The most address space that a process ever had, in KiB; it shrinks only with exec. 0 when it is gone."""
    status = _status(pid)
    if "VmPeak" not in status and status.get("Threads", "1") != "1":
        status = _status_of(read(pid, f"task/{other_thread(pid)}/status", _MAX_STATUS))
    return int(status.get("VmPeak", "0").split()[0])


def other_thread(pid: int) -> int:
    """The id of the last thread: the first may have ended while others run."""
    with contextlib.suppress(OSError):
        return max(map(int, os.listdir(f"/proc/{pid}/task")), default=pid)  # one that just ends has none
    return pid


class Program(msgspec.Struct, frozen=True):
    """Which program a process runs. Its peak of address space shrinks only with exec, which makes it another."""

    pid: int
    started: int | None
    peak: int

    @classmethod
    def of(cls, pid: int) -> Program:
        """The program of a process, now."""
        return cls(pid, start_of(pid), peak_of(pid))

    def now(self) -> Program | None:
        """The program with its peak as it is now; None where the process has ended or become another program."""
        now = Program.of(self.pid)
        return now if now.started is not None and now.started == self.started and now.peak >= self.peak else None

    def runs(self) -> bool:
        """Whether the process lives and has not become another program."""
        return self.now() is not None


class ProcessIds(set[int]):
    """Ids of processes, each of the one that has it when it is added: once that has ended it may be another's."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[int, int | None] = {}

    def add(self, pid: int) -> None:
        super().add(pid)
        self._started[pid] = start_of(pid)

    def __contains__(self, pid: object) -> bool:
        if super().__contains__(pid) and isinstance(pid, int) and start_of(pid) not in (None, self._started[pid]):
            self.discard(pid)
        return super().__contains__(pid)


def _status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status, by name; empty when the process is gone."""
    return _status_of(read(pid, "status", _MAX_STATUS))


def _status_of(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.split("\n") if line)}


def has_other_pids(pid: int) -> bool:
    """Whether a process is in a pid namespace below ours, and so knows processes by other ids."""
    ours, theirs = (len(_status(each).get("NSpid", "").split()) for each in (os.getpid(), pid))
    return theirs > ours


def capable(capability: int) -> bool:
    """Whether this process has a capability in force, by its number."""
    return bool(int(_status(os.getpid())["CapEff"], 16) >> capability & 1)
