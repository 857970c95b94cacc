"""What processes hold on the first GPU, as NVML and the region that they share tell it: watched as fast as it goes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pynvml

from runlist.planes.nvidia import nvml
from runlist.planes.process.region import Region, RegionError, Use

NVML, CARD, REGION = "NVML", "card", "region"


def uses(region: Region) -> dict[int, Use]:
    """What each process holds on all GPUs, by process id, as the region says."""
    return {
        slot.pid: Use(sum(each.held for each in slot.use), sum(each.overhead for each in slot.use))
        for slot in region.read().slots
    }


def card_used() -> int:
    """Bytes in use on the whole GPU."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


class MemoryWatch:
    """Watches these processes, and the region that they share. NVML is initialised meanwhile."""

    def __init__(self, pids: Sequence[int], region: Region) -> None:
        self._pids = frozenset(pids)
        self._uuid = nvml.gpus()[0].uuid
        self._region = region
        self.samples: dict[str, list[int]] = {NVML: [], CARD: [], REGION: []}
        """Bytes, by who told it."""

    def processes(self) -> int:
        """Bytes that NVML shows for all of them together."""
        return sum(held for pid, held in nvml.memory_by_pid(self._uuid).items() if pid in self._pids)

    def region(self) -> int:
        """Bytes that the region shows for all of them together."""
        return sum(each.total for pid, each in uses(self._region).items() if pid in self._pids)

    def check(self) -> None:
        """Raises RuntimeError when the region does not know of these processes: then it limits none of them."""
        if missing := self._pids - uses(self._region).keys():
            raise RuntimeError(f"the library is not at work in {len(missing)} of {len(self._pids)} processes")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Each looks again and again meanwhile, in a thread of its own."""
        ended = threading.Event()
        looks = {NVML: self.processes, CARD: card_used, REGION: self.region}
        threads = [threading.Thread(target=_watch, args=(looks[name], samples, ended))
                   for name, samples in self.samples.items()]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def largest(samples: Sequence[int]) -> int:
    """The largest; 0 without any."""
    return max(samples, default=0)


def _watch(look: Callable[[], int], samples: list[int], ended: threading.Event) -> None:
    while not ended.is_set():
        with contextlib.suppress(nvml.NvmlError, RegionError):  # a process that ended while it was asked for
            samples.append(look())
