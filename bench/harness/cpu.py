"""CPU time and memory of processes, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of CPU, user and system, that these processes have used together."""

    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # user and system time

    return sum(ticks(pid) for pid in pids) * _TICK_S


class Used:
    """The CPU time that processes use from now on, together."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before, self._began = cpu_s(pids), time.perf_counter()

    def share(self) -> float:
        """The part of one core, so far."""
        return (cpu_s(self._pids) - self._before) / (time.perf_counter() - self._began)


def resident_mb(pid: int) -> float:
    """Resident memory, MB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024
