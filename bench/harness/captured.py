"""The kernel plane's programs, loaded in this process, and what they tell."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from runlist.planes.interface import Capture, DriverFiles
from runlist.planes.kernel import loading, rights
from runlist.planes.kernel.bpf import Map
from runlist.planes.kernel.events import Event, read
from runlist.planes.kernel.names import Names
from runlist.planes.kernel.ring import Ring
from runlist.planes.nvidia.capture import CAPTURE
from runlist.protocol.kernel_autogen import RING_BYTES, Counter


class Captured:
    """The programs, loaded in this process for a while, and what they tell of all processes but `own`."""

    def __init__(
        self,
        names: Names | None = None,
        budget: int = 1_000_000,
        own: int = 0,
        capture: Capture = CAPTURE,
        settle_ms: int = 0,
        exempt: tuple[int, ...] = (),
    ) -> None:
        tracing = rights.open_tracing()
        try:
            wanted = loading.Wanted(capture, own, budget, names, settle_ms, exempt)
            self.loaded = loading.load(wanted, loading.read_object(), tracing)
        finally:
            os.close(tracing)
        self.ring = Ring(self.loaded.maps["events"], RING_BYTES)

    def map(self, name: str) -> Map:
        return loading.open_map(name, self.loaded.maps[name])

    def counter(self, which: Counter) -> int:
        found = self.map("counters").get(struct.pack("<I", which)) or b""
        return sum(value for (value,) in struct.iter_unpack("<Q", found))

    def asked(self, pid: int) -> int:
        """When a process asked for anything last; 0: never."""
        return int.from_bytes(self.map("asked").get(struct.pack("<I", pid)) or b"", "little")

    def take(self) -> list[Event]:
        return [read(record) for record in self.ring.take(1 << 20)]

    def take_until(self, enough: Callable[[list[Event]], object], seconds: float = 20.0) -> list[Event]:
        """Take events until there are enough."""
        taken: list[Event] = []
        until = time.monotonic() + seconds
        while not enough(taken):
            assert time.monotonic() < until, f"only {len(taken)} events"
            select.select([self.ring], [], [], 0.1)
            taken += self.take()
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ring.close()
        self.loaded.close()


def of_file(file: Path | int) -> Capture:
    """What is to be captured where this is the driver's one file, by its path or a descriptor."""
    found = os.stat(file)
    return msgspec.structs.replace(CAPTURE, files=DriverFiles(device=found.st_dev, inode=found.st_ino))
