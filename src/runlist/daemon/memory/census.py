"""Which processes are on each GPU and how much memory they hold, from the plane's census, at most two seconds old."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from runlist.planes.interface import Census, CensusError, GpuInfo

_KEPT_S = 2.0  # asking takes some 2 ms

_Answer = TypeVar("_Answer")


class MemoryCensus:
    """The plane's census, remembered. Its answers are empty where there is none, or where it fails."""

    def __init__(self, open_census: Callable[[], Census]) -> None:
        self._open_census = open_census
        self._census: Census | None = None
        self._tried = False
        self._known: dict[str, tuple[float, dict[int, int]]] = {}
        self._mps: dict[str, tuple[float, set[int]]] = {}
        self._infos: list[GpuInfo] = []

    def gpus(self) -> list[str]:
        """UUIDs of all GPUs."""
        return [found.uuid for found in self._gpus()]

    def size_of(self, gpu: str) -> int | None:
        """How much memory a GPU has, in bytes; None where that is unknown."""
        return next((found.memory for found in self._gpus() if found.uuid == gpu), None)

    async def refresh(self) -> None:
        """Ask for every GPU now, in threads: a machine can have many."""
        gpus = self.gpus()
        held = await asyncio.gather(*(asyncio.to_thread(self._held, gpu) for gpu in gpus))
        now = time.monotonic()
        self._known.update({gpu: (now, of_gpu) for gpu, of_gpu in zip(gpus, held, strict=True)})

    def by_pid(self, gpu: str) -> dict[int, int]:
        """The bytes that each process holds on a GPU, by process id."""
        asked_at, held = self._known.get(gpu, (-_KEPT_S, {}))
        now = time.monotonic()
        if now - asked_at >= _KEPT_S:
            held = self._held(gpu)
            self._known[gpu] = (now, held)
        return held

    def pids(self) -> set[int]:
        """Processes with work on any GPU."""
        return self._ask(lambda census: census.pids(), set())

    def mps_clients(self, gpu: str, kept_s: float = _KEPT_S) -> set[int]:
        """Processes whose work reaches a GPU through an MPS server, as they were at most `kept_s` ago."""
        asked_at, clients = self._mps.get(gpu, (-math.inf, set()))
        now = time.monotonic()
        if now - asked_at >= kept_s:
            clients = self._ask(lambda census: census.mps_clients(gpu), set())
            self._mps[gpu] = (now, clients)
        return clients

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
        if self._census is not None:
            self._census.close()

    def _gpus(self) -> list[GpuInfo]:
        if not self._infos:
            self._infos = self._ask(lambda census: census.gpus(), [])
        return self._infos

    def _held(self, gpu: str) -> dict[int, int]:
        return self._ask(lambda census: census.memory(gpu), {})

    def _ask(self, question: Callable[[Census], _Answer], nothing: _Answer) -> _Answer:
        """The census' answer, or `nothing`. Opening it is tried once."""
        try:
            if not self._tried:
                self._tried = True
                self._census = self._open_census()
            return nothing if self._census is None else question(self._census)
        except CensusError:
            return nothing
