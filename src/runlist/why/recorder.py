"""Watching one process while it is asked: its threads and calls, who has its GPUs, and what Runlist does with it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from runlist.client import Client
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError, RunlistError
from runlist.planes.kernel.watching import Watch
from runlist.planes.usage import Residency
from runlist.proc.process import descendants, start_of
from runlist.trace.recorder import process_name
from runlist.trace.writer import TraceWriter
from runlist.views.structs import TaskView
from runlist.why.cost import Cost, measured
from runlist.why.functions import LIBRARY, number_of, watched
from runlist.why.report import Analysis, analyse
from runlist.why.seen import Events, Seen, Throttle, Times, Turn
from runlist.why.symbols import Symbols, mode_of
from runlist.why.tracks import write

MOST_EVENTS = 3_000_000
"""Are kept, turns on the GPUs among them; then the recording ends by itself."""
MOST_SHARE = 0.03
"""Of the process' processor time that watching launches may cost."""
LEAST_SHARE = 0.25
"""Of a core, which a process may have used for that: who sleeps most of the time has time for being watched."""
LEAST_LOOK_NS = 50_000_000
AT_ONCE_NS = 7_500_000
"""What it may cost besides: of a request with some tens of launches that share is not had in one look."""
ASK_S = 0.1
MOST_BELOW, MOST_NAMED = 256, 4
"""Processes below the one in question that are looked at, and named."""
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+) *(.*)")


class Recorder:
    """A recording of a process. Raises RunlistError, in one line, where that cannot be."""

    def __init__(self, pid: int, device: str | None, slower_than_ns: int | None, pause_ns: int | None) -> None:
        self.pid = pid
        self.analysis: Analysis | None = None
        self.ended_by = ""
        """Why the recording ended by itself, in words."""
        self.elsewhere = ""
        """Who else to ask about, in words, where the process made no request."""
        self._bounds = slower_than_ns, pause_ns
        self._events = Events()
        self._turns: dict[int, list[Turn]] = {}
        self._maps: list[tuple[int, int, str]] = []
        self._names: dict[int, str] = {}
        _check(pid)
        self._started = start_of(pid)
        libraries = _libraries(pid)
        if not libraries:
            ask = _below(pid) or "once it uses the GPU"
            raise NoTargetError(f"process {pid} has not loaded {LIBRARY}: ask {ask}")
        self._daemon = _Daemon(pid, device)
        self._throttling = _Throttling(pid)
        self.began_ns = time.monotonic_ns()
        self._watch = Watch(pid)
        try:
            for library in libraries:
                self._watch.watch_functions(library, watched())
            if not self._watch.functions:
                raise NotSupportedError(f"{libraries[0]} exports none of the driver's functions")
        except BaseException:
            self.close()
            raise
        self._cost: Cost | None = None
        with contextlib.suppress(OSError):
            self._cost = measured(self._watch.watch_own)
        self._counted_at = time.monotonic_ns()
        self._counted = 0
        self._worked = self._worked_first = self._worked_counted = _worked_ns(pid)
        self._launches_until: int | None = None
        self._over_ns = 0.0  # what watching launches has cost beyond that share
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self._symbols = Symbols()
        self._read_maps()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The process, for people."""
        return self._name(self.pid)

    @property
    def watches_launches(self) -> bool:
        """Whether they are watched still."""
        return self._launches_until is None

    @property
    def call_cost(self) -> Cost | None:
        """What watched calls cost here; None where that cannot be told."""
        return self._cost

    def look(self) -> bool:
        """Take what was told since the last time; whether to go on."""
        for record in self._watch.take():
            self._events.add(record)
        self._worked = max(self._worked, _worked_ns(self.pid))  # nobody tells of one that has ended
        self._limit_cost()
        self._daemon.look()
        self._throttling.look()
        if start_of(self.pid) != self._started:
            self.ended_by = f"process {self.pid} has ended"
        else:
            self._read_maps()
            if len(self._events) + sum(map(len, self._turns.values())) >= MOST_EVENTS:
                self.ended_by = f"the recording is full, with {MOST_EVENTS:,} events: what came later is not in it"
        return not self.ended_by

    def hear(self, gpu: int, residencies: Sequence[Residency], ahead_ns: int) -> None:
        """Who held a GPU."""
        self._ahead_ns = ahead_ns
        turns = self._turns.setdefault(gpu, [])
        for each in residencies:
            start, end = each.start_ns - ahead_ns, each.end_ns - ahead_ns
            if turns and turns[-1].pid == each.pid and turns[-1].end_ns == start:
                turns[-1] = turns[-1]._replace(end_ns=end)
            else:
                turns.append(Turn(start, end, each.pid))
            self._name(each.pid)  # while it lives

    def finish(self, trace: TraceWriter | None) -> None:
        """What it all means, into the file as well, if there is one."""
        self.look()
        seen = self.seen()
        self.analysis = analyse(seen, *self._bounds)
        if trace is not None:
            write(trace, seen, self.analysis, self._ahead_ns)
        report = self.analysis.report
        if not (report.requests or report.going_on) and (ask := _below(self.pid)):
            self.elsewhere = f"process {self.pid} made no request: ask {ask}"

    def beginning(self) -> str:
        """One line: what is being watched."""
        missing = f"; this kernel has no {', '.join(self._watch.missing)}" if self._watch.missing else ""
        return f"watching {self.name}: {self._watch.functions} functions of the driver{missing}"

    def cost(self) -> str:
        """One line: what that cost the process."""
        if self._cost is None:
            return "what watching costs cannot be told here: the kernel does not let us watch ourselves"
        counts = self._watch.counts()
        ended = self._events.ends
        begun = counts.calls - ended
        self._worked = max(self._worked, _worked_ns(self.pid))
        spent = self._spent_ns(begun, ended)
        cost = spent / max(self._worked - self._worked_first, spent, 1)
        lost = f"; {counts.dropped} events were lost" if counts.dropped else ""
        gave_up = ""
        if self._launches_until is not None:
            after = (self._launches_until - self.began_ns) / 1e9
            gave_up = (
                f"; launches were let go of after {after:.1f} s, because that cost more than {100 * MOST_SHARE:.0f} %: "
                f"from then on a request begins where its thread awakes"
            )
        return (
            f"watching cost some {spent / 1e6:.1f} ms, {100 * cost:.1f} % of the processor time that it had, for "
            f"{begun} calls and {ended} ends of calls; "
            f"{counts.switches} switches of cores were looked at{gave_up}{lost}"
        )

    def _spent_ns(self, begun: int, ended: int) -> float:
        """What so many calls cost, most of which are launches."""
        if self._cost is None:
            return 0.0
        each = self._cost.stepped_ns if number_of("cuLaunchKernel") in self._watch.stepped else self._cost.call_ns
        return begun * each + ended * self._cost.return_ns

    def _limit_cost(self) -> None:
        """Let go of launches where watching them costs too much. A request begins then where its thread awakes."""
        if self._launches_until is not None:
            return
        now = time.monotonic_ns()
        took = now - self._counted_at
        if took < LEAST_LOOK_NS:
            return
        calls = self._watch.counts().calls
        new, had = calls - self._counted, max(self._worked - self._worked_counted, LEAST_SHARE * took)
        self._counted_at, self._counted, self._worked_counted = now, calls, self._worked
        self._over_ns = max(0.0, self._over_ns + self._spent_ns(new, 0) - MOST_SHARE * had)
        if self._over_ns > AT_ONCE_NS:
            self._watch.let_go_of_launches()
            self._launches_until = now

    def seen(self) -> Seen:
        """All that was seen."""
        counts = self._watch.counts()
        own = {gpu: turns for gpu, turns in self._turns.items() if any(turn.pid == self.pid for turn in turns)}
        used = own or self._turns
        turns = used[min(used, key=lambda gpu: -_time_of(used[gpu], self.pid))] if used else []
        now = time.monotonic_ns()
        return Seen(
            self.pid,
            self.began_ns,
            now,
            self._events,
            turns,
            self._daemon.held.until(now),
            self._daemon.capped.until(now),
            self._daemon.refusals,
            self._daemon.quota,
            self._throttling.found,
            counts.dropped,
            self._launches_until,
            functools.cache(lambda stack: mode_of(self._symbols.names(self._watch.stack(stack)))),
            self._file_at,
            self._name,
        )

    def close(self) -> None:
        """Stop watching. Nothing is left in the kernel."""
        self._watch.close()
        self._daemon.close()

    def _name(self, pid: int) -> str:
        if pid not in self._names:
            self._names[pid] = process_name(pid)
        return self._names[pid]

    def _read_maps(self) -> None:
        with contextlib.suppress(OSError):
            maps = [each for each in _mapped(self.pid) if each[2].startswith("/")]
            known = set(self._maps)
            self._maps += [each for each in maps if each not in known]

    def _file_at(self, address: int) -> str:
        for start, end, path in reversed(self._maps):
            if start <= address < end:
                return path
        return ""


def _worked_ns(pid: int) -> int:
    """The processor time that a process has had; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | 2)  # its clock, as the kernel numbers them
    return 0


def _time_of(turns: Sequence[Turn], pid: int) -> int:
    return sum(turn.end_ns - turn.start_ns for turn in turns if turn.pid == pid)


def _check(pid: int) -> None:
    if start_of(pid) is None:
        raise NoTargetError(f"process {pid} does not exist")
    try:
        with open(f"/proc/{pid}/exe", "rb") as program:
            head = program.read(5)
    except PermissionError:
        raise _not_permitted(pid) from None
    except OSError:
        raise NoTargetError(f"process {pid} has no program: it is the kernel's, or ends") from None
    if head[:4] == b"\x7fELF" and head[4:] == b"\x01":
        raise NotSupportedError(f"process {pid} is of 32 bits, for which there is no CUDA driver any more")


def _not_permitted(pid: int) -> NoPermissionError:
    if os.geteuid() == 0:
        return NoPermissionError(
            f"process {pid} may not be looked into without CAP_SYS_PTRACE: ask outside the container"
        )
    return NoPermissionError(f"process {pid} is another user's: ask as root")


def _mapped(pid: int) -> list[tuple[int, int, str]]:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        found = [_MAPPED.match(line) for line in file]
    return [(int(each[1], 16), int(each[2], 16), each[7]) for each in found if each is not None]


def _libraries(pid: int) -> list[Path]:
    """Paths that lead to the very files of the driver's library that a process has mapped to run."""
    found: dict[tuple[str, str], Path] = {}
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except PermissionError:
        raise _not_permitted(pid) from None
    except OSError:
        raise NoTargetError(f"process {pid} does not exist") from None
    for line in lines:
        if (each := _MAPPED.match(line)) is None or "x" not in each[3]:
            continue
        path = each[7].removesuffix(" (deleted)")
        if not os.path.basename(path).startswith(LIBRARY) or (each[5], each[6]) in found:
            continue
        inside = Path(f"/proc/{pid}/root{path}")
        with contextlib.suppress(OSError):
            if os.stat(inside).st_ino == int(each[6]):
                found[each[5], each[6]] = inside
                continue
        found[each[5], each[6]] = Path(f"/proc/{pid}/map_files/{each[1]}-{each[2]}")
    return list(found.values())


def _below(pid: int) -> str:
    """Those below a process that have the driver's library, which may do its work: whom to ask about, in words."""
    found = []
    for child in descendants([pid])[pid][1:MOST_BELOW]:
        with contextlib.suppress(RunlistError):
            if _libraries(child):
                found.append(child)
    return f"about {_any_of(found)}, which uses the GPU below it" if found else ""


def _any_of(pids: Sequence[int]) -> str:
    more = ", …" if len(pids) > MOST_NAMED else ""
    return " or ".join(map(str, pids[:MOST_NAMED])) + more


class _Daemon:
    """What Runlist's daemon does with the process, where one runs: asked ten times a second."""

    def __init__(self, pid: int, device: str | None) -> None:
        self.held = Times()
        self.capped = Times()  # who is off now and then may be so between two looks
        self.refusals = 0
        self.quota = False
        self._pid = pid
        self._client: Client | None = None
        self._asked = 0.0
        self._first: int | None = None
        with contextlib.suppress(RunlistError, OSError):
            self._client = Client.open(device=device, patience_s=2.0)
        self.look()

    def look(self) -> None:
        """Ask again, if it is time."""
        now = time.monotonic()
        if self._client is None or now - self._asked < ASK_S:
            return
        self._asked = now
        try:
            tasks = [task for task in self._client.ps() if task.pid == self._pid]
        except (RunlistError, OSError):
            self.close()
            return
        for task in tasks[:1]:
            self._take(task, time.monotonic_ns())

    def _take(self, task: TaskView, now_ns: int) -> None:
        self.quota = task.memory_limit_bytes is not None
        self._first = task.memory_refusals if self._first is None else self._first
        self.refusals = task.memory_refusals - self._first
        cap = "" if task.cap_percent is None else _cap(task)
        self.capped.take(now_ns, cap)
        off = task.suspended or not task.enabled
        self.held.take(now_ns, (cap if cap and not task.suspended else _suspended(task)) if off else "")

    def close(self) -> None:
        """Hang up."""
        for times in (self.held, self.capped):
            times.take(time.monotonic_ns(), "")
        if self._client is not None:
            self._client.close()
            self._client = None


def _cap(task: TaskView) -> str:
    return f"its cap of {task.cap_percent:g} % of the GPU's time (runlist set {task.pid} cap=…)"


def _suspended(task: TaskView) -> str:
    return f"Runlist suspends it ({task.why})" if task.why else "Runlist suspends it"


class _Throttling:
    """When the quota of processor time of the process' cgroup kept it off all cores."""

    def __init__(self, pid: int) -> None:
        self.found: list[Throttle] = []
        self._pid = pid
        self._paths = _statistics_of(pid)
        self._lost = self._lost_ns()
        self._at = time.monotonic_ns()

    def look(self) -> None:
        """Whether it was, since the last time. A process may be moved meanwhile."""
        if (paths := _statistics_of(self._pid)) and paths != self._paths:
            self._paths = paths
            self._lost = self._lost_ns()
        lost, now = self._lost_ns(), time.monotonic_ns()
        if lost > self._lost:
            self.found.append(Throttle(self._at, now, lost - self._lost))
        self._lost, self._at = lost, now

    def _lost_ns(self) -> int:
        total = 0
        for path in self._paths:
            with contextlib.suppress(OSError, ValueError):
                words = dict(line.split() for line in path.read_text().splitlines())
                total += int(words.get("throttled_time", 0)) + 1000 * int(words.get("throttled_usec", 0))
        return total


def _statistics_of(pid: int) -> list[Path]:
    """`cpu.stat` of the cgroup of a process and of those above it, in either hierarchy."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for mounted in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if not controllers else ("/sys/fs/cgroup/cpu",):
                folder = Path(mounted + path)
                while len(folder.parts) > len(Path(mounted).parts):
                    if (folder / "cpu.stat").exists():
                        found.append(folder / "cpu.stat")
                    folder = folder.parent
    return found
