"""Which processes are on each GPU and how much memory they hold, from the plane's census, at most two seconds old."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from runlist.planes.interface import Census, CensusError, GpuInfo
from runlist.proc.pool import Pool
from runlist.proc.process import start_of

KEPT_S = 2.0
"""How old an answer may be: asking takes some 2 ms."""

_THREADS = 4  # of our own: whoever keeps others busy must not keep us from looking

_Answer = TypeVar("_Answer")


class _Look(msgspec.Struct, frozen=True):
    """Who was on a GPU, and what its memory was used for, in bytes: by each process, and in all (None where that is
    unknown).
    """

    asked_at: float
    begun: float
    held: dict[int, int] = {}
    used: int | None = None
    mps: frozenset[int] = frozenset()
    """Clients of an MPS server."""
    answered: bool = False
    ended: frozenset[int] = frozenset()
    """Those that held some and lived no more."""


_NEVER = _Look(-math.inf, -math.inf)


class MemoryCensus:
    """The plane's census, remembered. Its answers are empty where there is none, or where it fails.

    `heirs` has, for processes that ended, those that keep their memory. It is theirs in all answers but `listed`.
    """

    def __init__(self, open_census: Callable[[], Census]) -> None:
        self.heirs: dict[int, int] = {}
        self._open_census = open_census
        self._census: Census | None = None
        self._tried = False
        self._looks: dict[str, _Look] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._infos: list[GpuInfo] = []
        self._threads = Pool(_THREADS, "census")

    def gpus(self) -> list[str]:
        """UUIDs of all GPUs."""
        return [found.uuid for found in self._gpus()]

    def size_of(self, gpu: str) -> int | None:
        """How much memory a GPU has, in bytes; None where that is unknown."""
        return next((found.memory for found in self._gpus() if found.uuid == gpu), None)

    async def refresh(self, kept_s: float = 0.0) -> None:
        """Ask for every GPU, in threads: a machine can have many. What is known may be so old."""
        since = time.monotonic() - kept_s
        await asyncio.gather(*(self._refresh(gpu, since) for gpu in self.gpus()))

    async def _refresh(self, gpu: str, since: float) -> None:
        """Ask for one, unless somebody did since then. All who wait for a look share the next one: a user may ask on
        hundreds of connections.
        """
        async with self._asking.setdefault(gpu, asyncio.Lock()):
            if self._looks.get(gpu, _NEVER).begun <= since:
                loop = asyncio.get_running_loop()
                self._looks[gpu] = await loop.run_in_executor(self._threads, self._ask_for, gpu)

    def listed(self, gpu: str) -> dict[int, int]:
        """The bytes that the census tells of each process on a GPU, by process id; some may have ended."""
        return self._look(gpu).held

    def began(self, gpu: str) -> float:
        """When the last look at a GPU began, by the monotonic clock: who came later is not in its answers."""
        return self._look(gpu).begun

    def answers(self, gpu: str) -> bool:
        """Whether the census told what is held on a GPU when it was last asked."""
        return self._look(gpu).answered

    def by_pid(self, gpu: str) -> dict[int, int]:
        """The bytes that each process holds on a GPU, by process id."""
        held: dict[int, int] = {}
        for pid, octets in self.listed(gpu).items():
            holder = self.heirs.get(pid, pid)
            held[holder] = held.get(holder, 0) + octets
        return held

    def unowned(self, gpu: str) -> int | None:
        """Bytes in use on a GPU that no living process is known to hold; None where that is unknown."""
        used = self._look(gpu).used
        if used is None:
            return None
        ended = self._look(gpu).ended
        return max(0, used - sum(octets for pid, octets in self.by_pid(gpu).items() if pid not in ended))

    def pids(self) -> set[int]:
        """Processes with work on any GPU."""
        return self._ask(lambda census: census.pids(), set())

    def mps_clients(self, gpu: str) -> frozenset[int]:
        """Processes whose work reaches a GPU through an MPS server."""
        return self._look(gpu).mps

    def limits_supported(self, cgroup: Path) -> bool:
        """Whether the driver limits memory by cgroup."""
        return self._ask(lambda census: census.limits_memory(cgroup), False)

    def limit(self, gpu: str, cgroup: Path, limit: int | None) -> None:
        """Have the driver limit the bytes that a cgroup holds on a GPU. Raises CensusError."""
        if self._census is None:
            raise CensusError("there is no census")
        self._census.limit_memory(gpu, cgroup, limit)

    def close(self) -> None:
        """Let go of the census."""
        self._threads.shutdown()
        if self._census is not None and not self._threads.hangs:
            self._census.close()

    def _gpus(self) -> list[GpuInfo]:
        if not self._infos:
            self._infos = self._ask(lambda census: census.gpus(), [])
        return self._infos

    def _look(self, gpu: str) -> _Look:
        if self._is_old(gpu, KEPT_S):
            self._looks[gpu] = self._ask_for(gpu)
        return self._looks[gpu]

    def _is_old(self, gpu: str, kept_s: float) -> bool:
        return time.monotonic() - self._looks.get(gpu, _NEVER).asked_at >= kept_s

    def _ask_for(self, gpu: str) -> _Look:
        begun = time.monotonic()
        held: dict[int, int] | None = self._ask(lambda census: census.memory(gpu), None)
        used: int | None = self._ask(lambda census: census.used(gpu), None)
        mps: set[int] = self._ask(lambda census: census.mps_clients(gpu), set())
        ended = frozenset(filter(_has_ended, held or {}))
        return _Look(time.monotonic(), begun, held or {}, used, frozenset(mps), held is not None, ended)

    def _ask(self, question: Callable[[Census], _Answer], nothing: _Answer) -> _Answer:
        """The census' answer, or `nothing`. Opening it is tried once."""
        try:
            if not self._tried:
                self._tried = True
                self._census = self._open_census()
            return nothing if self._census is None else question(self._census)
        except CensusError:
            return nothing


def _has_ended(pid: int) -> bool:
    try:
        return start_of(pid) is None
    except OSError:  # there is no descriptor to ask with
        return False
