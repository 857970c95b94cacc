"""A latency program that means harm: it says all kinds of things of its requests, and of those of others.

`python -m tests.hostile.liar WAY [PID …]` uses the GPU once, prints its pid, waits for a line, and goes on until it is
killed. With RUNLIST_TEST_USER it becomes that user, and has no library: it makes its own slot in a region of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from runlist.workloads import quick_cuda  # noqa: F401  isort: skip  (before the bindings)
from runlist import paths
from runlist.client import Client
from runlist.planes.process import region
from runlist.planes.process.region.format import (
    DEVICES,
    FILE_BYTES,
    HEADER,
    OPERATIONS,
    OPERATIONS_AT,
    SLOT,
    SLOTS,
    SLOTS_AT,
    USE,
)
from runlist.proc.process import pid_namespace, start_of
from runlist.protocol.tenant_autogen import MAGIC, VERSION, Effect, Kind
from runlist.tenant import RECORD
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

WORK = RECORD.pack(MAGIC, VERSION, Kind.WORK, 0, 1, 0, Effect.UNTOLD)
FUTEX, FUTEX_WAKE = 98 if os.uname().machine == "aarch64" else 202, 1
ANNOUNCE = RECORD.pack(MAGIC, VERSION, Kind.ANNOUNCE, 0, 1, 0, Effect.UNTOLD)
ACTIVITY, WATCH = SLOT.offsets["activity"], SLOT.offsets["watch"]
OPEN, BEFORE = (ACTIVITY + region.format.ACTIVITY.offsets[name] for name in ("open", "before"))


class Liar:
    def __init__(self) -> None:
        gpu = Gpu(0)
        self.job = Accumulator(gpu, blocks=gpu.sm_count)
        self.job.launch(1)
        self.job.synchronize()
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages.setblocking(False)
        self.libc = ctypes.CDLL(None)
        user = os.environ.get("RUNLIST_TEST_USER")
        self.file = os.open(os.environ["RUNLIST_REGION"], os.O_RDWR) if user is None else self.alone(int(user))
        self.region = mmap.mmap(self.file, FILE_BYTES)
        self.messages.connect(str(paths.messages_socket("emulated")))
        self.random = random.Random(1)
        self.mine = next(at for at in self.slots() if self.get(at) & 0xFFFF_FFFF == os.getpid())

    def alone(self, user: int) -> int:
        """Become a user, and be managed as one of its programs."""
        with tempfile.TemporaryDirectory() as folder:
            path, opened = region.create(Path(folder), strict=False)
            os.chown(path, user, user)
        slot = SLOT.pack(
            identity=os.getpid() | 1 << 32, start_time=start_of(os.getpid()), pid_namespace=pid_namespace(),
            enforced=3, use=[0] * len(USE.names) * DEVICES,
        )  # fmt: skip
        os.pwrite(opened.fileno(), slot, SLOTS_AT)
        os.pwrite(opened.fileno(), (1).to_bytes(4, "little"), HEADER.offsets["slots_used"])
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        self.client = Client.open()
        self.client.launch(os.getpid(), "latency", {}, opened.fileno())
        return opened.fileno()

    def slots(self) -> range:
        return range(SLOTS_AT, SLOTS_AT + SLOTS * SLOT.size, SLOT.size)

    def get(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.region, at)[0])

    def put(self, at: int, *numbers: int) -> None:
        struct.pack_into(f"<{len(numbers)}Q", self.region, at, *numbers)

    def say(self, record: bytes = WORK) -> None:
        try:
            self.messages.send(record)
        except BlockingIOError:
            time.sleep(0.0002)

    # -- the ways ----------------------------------------------------------------------------------

    def flood(self) -> None:
        """Says WORK as fast as it can."""
        self.say()

    def garbage(self) -> None:
        """Sends what is no message, or nearly one."""
        record = bytearray(WORK)
        for _ in range(self.random.randrange(4)):
            record[self.random.randrange(len(record))] ^= 1 << self.random.randrange(8)
        self.say(bytes(record[: self.random.choice((1, len(record) - 1, len(record), len(record)))]))

    def waits(self) -> None:
        """Waits for the GPU for ever."""
        self.put(self.mine + ACTIVITY, 1, 1, 0, 0)
        self.say()
        time.sleep(0.01)

    def announces(self) -> None:
        """Says that it begins to work, and does not."""
        self.say()
        time.sleep(0.003)

    def foretells(self) -> None:
        """Announces work all the time, and does none."""
        self.say(ANNOUNCE)
        time.sleep(0.0005)

    def pretends(self) -> None:
        """Announces work, and says that it came."""
        work = self.get(self.mine + ACTIVITY)
        self.put(self.mine + BEFORE, work)
        self.say(ANNOUNCE)
        time.sleep(0.0005)
        self.put(self.mine + ACTIVITY, work + 1)

    def opens(self) -> None:
        """Is within a request for ever, and works a little now and then."""
        self.put(self.mine + OPEN, 1)
        self.say(ANNOUNCE)
        self.job.launch(1)
        self.job.synchronize()
        time.sleep(0.02)

    def counts(self) -> None:
        """Counts up, and tells sums that no clock can."""
        work = self.get(self.mine + ACTIVITY)
        sums = [self.random.choice((0, 1, 1 << 63, (1 << 64) - 1, self.random.getrandbits(64))) for _ in range(2)]
        self.put(self.mine + ACTIVITY, (work + 1) % (1 << 64), self.random.randrange(2), *sums)
        self.say()
        time.sleep(0.0001)

    def hides(self) -> None:
        """Its slot is another one's all the time, in a region that is full."""
        identity, start, pid = self.get(self.mine), self.get(self.mine + 8), os.getppid()
        self.put(HEADER.offsets["slots_used"], SLOTS)
        for at in self.slots():
            self.put(at, pid | 1 << 32, start)
        last = self.slots()[-1]
        while True:
            for at in (self.mine, last):
                self.put(last, pid | 1 << 32)
                self.put(self.mine, pid | 1 << 32)
                self.put(at, identity)
                self.put(at + ACTIVITY, self.random.getrandbits(20), 1)
                self.say()

    def unwatches(self) -> None:
        """Works, and clears what it is asked."""
        self.put(self.mine + WATCH, 0)
        self.job.launch(1)
        self.job.synchronize()
        self.put(self.mine + WATCH, 0)

    def wake(self) -> None:
        """Wake whoever waits for its word."""
        word = ctypes.c_char.from_buffer(self.region, self.mine + WATCH)
        self.libc.syscall(FUTEX, ctypes.byref(word), FUTEX_WAKE, 1 << 30, None, None, 0)

    def wakes(self) -> None:
        """Wakes whoever waits for its word, and does not work."""
        self.wake()

    def toggles(self) -> None:
        """Changes what it is asked, and does not work."""
        for value in (3, 5):
            self.put(self.mine + WATCH, value)
            self.wake()

    def empties(self) -> None:
        """Takes back what it is asked at once, as if it worked."""
        self.put(self.mine + WATCH, 0)
        self.wake()

    def shortens(self) -> None:
        """Cuts the region short, and makes it as long again."""
        os.ftruncate(self.file, SLOTS_AT)
        time.sleep(0.001)
        os.ftruncate(self.file, FILE_BYTES)

    def swells(self) -> None:
        """Has its region take much room, and makes a hole of that: whoever writes there waits meanwhile."""
        for mode in (1, 1 | 2):
            self.libc.fallocate(self.file, mode, ctypes.c_long(0), ctypes.c_long(256 << 20))

    def spins(self) -> None:
        """Has one kernel after the other."""
        self.job.launch(50_000)
        self.job.launch(50_000)
        self.job.synchronize()

    def forges(self) -> None:
        """Says nothing of itself, and that others are at work, in slots that look like theirs."""
        others = [(int(pid), start_of(int(pid)) or 0) for pid in sys.argv[2:]]
        self.put(HEADER.offsets["slots_used"], SLOTS)
        for number, at in enumerate(at for at in self.slots() if at != self.mine):
            pid, start = others[number % len(others)]
            self.put(at, pid | 1 << 32, start)
            self.put(at + 32, pid_namespace())
        while True:
            for at in self.slots()[: 4 * len(others)]:
                if at != self.mine:
                    self.put(at + ACTIVITY, self.random.getrandbits(30), 1, self.random.getrandbits(30))
            time.sleep(0.0005)

    def cuts(self) -> None:
        """Cuts the region short while it is busy."""
        self.put(self.mine + ACTIVITY, 1, 1, 0, 0)
        self.say()
        time.sleep(0.03)
        os.ftruncate(self.file, SLOTS_AT)
        while True:
            self.say()
            time.sleep(0.01)

    def scribbles(self) -> None:
        """Writes anything anywhere behind the header."""
        end = self.random.choice((OPERATIONS_AT, FILE_BYTES))
        self.put(self.random.randrange(HEADER.size, end - 8, 8), self.random.getrandbits(64))
        self.put(self.mine + ACTIVITY, self.random.getrandbits(20), 1)
        self.say()

    def boasts(self) -> None:
        """Says anything of clients that it does not have, as if it were of just now."""
        place = OPERATIONS_AT + (self.mine - SLOTS_AT) // SLOT.size * OPERATIONS.size
        self.region[place : place + OPERATIONS.size] = self.random.randbytes(OPERATIONS.size)
        self.put(place, time.time_ns(), self.random.choice((10**7, 10**9, self.random.getrandbits(64))))
        self.put(self.mine + SLOT.offsets["clients"], self.random.getrandbits(64) | 1)


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)
    liar = Liar()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    way: Callable[[], None] = getattr(liar, sys.argv[1])
    while True:
        way()


if __name__ == "__main__":
    main()
