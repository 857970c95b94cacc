"""Who holds how much memory of each GPU."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.nvml import NvmlError
from runlist.planes.nvidia.rm.transport import Driver

_MEMORY_KEPT_S = 2.0


class Memory:
    """Who is on each GPU and what memory they hold, as NVML tells; asked at most once in two seconds: it takes some
    2 ms.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._session = contextlib.ExitStack()
        self._works: bool | None = None
        self._known: dict[str, tuple[float, dict[int, int]]] = {}
        self._gpus: list[str] = []
        self._sizes: dict[str, int] = {}

    def gpus(self) -> list[str]:
        """UUIDs of all GPUs; empty where NVML does not tell."""
        with contextlib.suppress(NvmlError):
            if not self._gpus and self._open():
                self._gpus = nvml.uuids()
        return self._gpus

    async def refresh(self) -> None:
        """Ask for every GPU now, in a thread: a machine can have many."""
        held = await asyncio.gather(*(asyncio.to_thread(self._ask, gpu) for gpu in self.gpus()))
        now = time.monotonic()
        self._known.update({gpu: (now, of_gpu) for gpu, of_gpu in zip(self.gpus(), held, strict=True)})

    def size_of(self, gpu: str) -> int | None:
        """How much memory a GPU has, in bytes; None where NVML does not tell."""
        with contextlib.suppress(NvmlError):
            if not self._sizes and self._open():
                self._sizes = {found.uuid: found.memory for found in nvml.gpus()}
        return self._sizes.get(gpu)

    def limits_supported(self, cgroup: Path) -> bool:
        """Whether the driver limits memory by cgroup."""
        try:
            return self._open() and nvml.memory_limits_supported(cgroup)
        except NvmlError:
            return False

    def by_pid(self, gpu: str) -> dict[int, int]:
        """Bytes by process id; empty where NVML does not tell."""
        asked_at, held = self._known.get(gpu, (-_MEMORY_KEPT_S, {}))
        now = time.monotonic()
        if now - asked_at >= _MEMORY_KEPT_S:
            held = self._ask(gpu)
            self._known[gpu] = (now, held)
        return held

    def pids(self) -> set[int]:
        """Processes with a compute context on any GPU; empty where NVML does not tell."""
        try:
            return nvml.compute_pids() if self._open() else set()
        except NvmlError:
            return set()

    def close(self) -> None:
        """End the session with NVML."""
        self._session.close()

    def _ask(self, gpu: str) -> dict[int, int]:
        try:
            return nvml.memory_by_pid(gpu) if self._open() else {}
        except NvmlError:
            return {}

    def _open(self) -> bool:
        """Whether NVML works; tried once."""
        if self._works is None:
            self._works = False
            self._session.enter_context(nvml.session(self._driver))
            self._works = True
        return self._works
