"""Region files as native/region/layout.hpp has them. Shares nothing with the package, so that a mistake would show."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC, VERSION = 0x4E4F494745524C52, 3
NO_LIMIT = (1 << 64) - 1
DEVICES, SLOTS, CLIENTS = 16, 1024, 16
HEADER = struct.Struct("<Q6I3QiI4Q2I24x")
DEVICE = struct.Struct("<Q16s4Q8x2Q48x")
SLOT = struct.Struct("<3Q168x")
ACTIVITY = struct.Struct("<4Q24xI")
USE = struct.Struct("<4Q")
SLOT_BYTES = SLOT.size + DEVICES * USE.size
SLOTS_AT = HEADER.size + DEVICES * DEVICE.size
OPERATIONS = struct.Struct("<3Q4I2Q8x")
CLIENT = struct.Struct("<9Q24x")
OPERATIONS_BYTES = OPERATIONS.size + CLIENTS * CLIENT.size
OPERATIONS_AT = SLOTS_AT + SLOTS * SLOT_BYTES
FILE_BYTES = OPERATIONS_AT + SLOTS * OPERATIONS_BYTES
MEMORY_AT, CAP_AT = 64, 80
CLIENTS_AT, ACTIVITY_AT, WATCH_AT = 48, 64, 128  # of a slot
UNSEEN_AT = 80  # of a GPU
CLAIMED = (1, 2)
MEMORY_ENFORCED, QUERIES_ENFORCED = 1, 2

assert (HEADER.size, DEVICE.size, SLOT.size, OPERATIONS.size, CLIENT.size) == (128, 128, 192, 64, 96)


class Use(NamedTuple):
    """What one process holds on one GPU: bytes, and nanoseconds of GPU time."""

    held: int
    overhead: int
    asking: int
    gpu_ns: int


class Activity(NamedTuple):
    """What one process did, and does: submissions, threads that wait, nanoseconds, and waits for what was submitted."""

    work: int
    waiting: int
    waited_ns: int
    launching_ns: int
    waits: int = 0


class Operations(NamedTuple):
    """What a process says of all its clients that are scheduled operation by operation."""

    written_ns: int
    window_ns: int
    gate_ns: int
    beside: int
    most_sms: int
    copies: int
    sms: int
    ahead_ns: int
    rest_ns: int


class Client(NamedTuple):
    """What it says of one."""

    launched: int
    deferred: int
    opened: int
    queued: int
    oldest_ns: int
    lately_launched: int
    lately_deferred: int
    lately_wait_ns: int
    lately_sm_ns: int


class Device(NamedTuple):
    """A GPU; its own limits are pairs of a number and its complement, or zeros."""

    key: int
    uuid: bytes
    memory: int
    memory_check: int
    cap: int
    cap_check: int
    next_turn: int
    refusals: int


def header(memory: int = NO_LIMIT, cap: int = NO_LIMIT, *, strict: bool = False, version: int = VERSION) -> bytes:
    """The header of a new region of ours."""
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    namespace = os.stat("/proc/self/ns/pid").st_ino
    sizes = (HEADER.size, DEVICE.size, SLOT_BYTES, DEVICES, SLOTS)
    whose = (os.getpid(), os.geteuid())
    limits = [word for limit in (memory, cap) for word in (limit, limit ^ NO_LIMIT)]
    return HEADER.pack(MAGIC, version, *sizes, FILE_BYTES, start, namespace, *whose, *limits, 0, strict)


class Region:
    """A region that is looked at from outside. `gpu`: the UUID of the GPU that is meant where no place is named. GPUs
    have places in the order in which they are heard of, and a driver tells of those that a program may not use, too."""

    def __init__(self, path: Path, gpu: bytes | None = None) -> None:
        self.path = path
        self.gpu = gpu

    @classmethod
    def create(
        cls, path: Path, memory: int = NO_LIMIT, cap: int = NO_LIMIT, *, strict: bool = False, gpu: bytes | None = None
    ) -> Region:
        """As the launcher does. `memory` in bytes, `cap` in ten-thousandths."""
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(header(memory, cap, strict=strict).ljust(FILE_BYTES, b"\0"))
        return cls(path, gpu)

    def set_memory(self, limit: int) -> None:
        """Changes the limit while it is in use, as the daemon does."""
        with self.path.open("r+b") as file:
            file.seek(MEMORY_AT)
            file.write(struct.pack("<2Q", limit, limit ^ NO_LIMIT))

    def places(self) -> Iterator[tuple[int, int, bytes]]:
        """Of each process that lives and has a slot: its pid, where the slot is, and its bytes."""
        data = self.path.read_bytes()
        for at in range(SLOTS_AT, OPERATIONS_AT, SLOT_BYTES):
            identity = int.from_bytes(data[at : at + 8], "little")
            pid = identity & 0xFFFFFFFF
            if identity >> 32 in CLAIMED and Path(f"/proc/{pid}").exists():
                yield pid, at, data[at : at + SLOT_BYTES]

    def slots(self) -> Iterator[tuple[int, int, bytes]]:
        """Of each process that lives and has a slot: its pid, what is enforced in it (bits), and what it holds."""
        for pid, _, slot in self.places():
            yield pid, SLOT.unpack_from(slot)[2], slot[SLOT.size :]

    def activities(self) -> dict[int, Activity]:
        """What each process that lives and has a slot does."""
        return {pid: Activity(*ACTIVITY.unpack_from(slot, ACTIVITY_AT)) for pid, _, slot in self.places()}

    def operations(self, pid: int) -> tuple[Operations, dict[int, Client]] | None:
        """What a process says of its clients; None while it says nothing."""
        ((slot, bits),) = [
            ((at - SLOTS_AT) // SLOT_BYTES, int.from_bytes(data[CLIENTS_AT : CLIENTS_AT + 8], "little"))
            for one, at, data in self.places()
            if one == pid
        ]
        if not bits:
            return None
        data = self.path.read_bytes()[OPERATIONS_AT + slot * OPERATIONS_BYTES :][:OPERATIONS_BYTES]
        each = [Client(*numbers) for numbers in CLIENT.iter_unpack(data[OPERATIONS.size :])]
        told = {index: client for index, client in enumerate(each) if bits >> index & 1}
        return Operations(*OPERATIONS.unpack_from(data)), told

    def watch(self, pid: int, value: int = 1) -> None:
        """Have a process say when it submits work next, as the daemon does."""
        (at,) = [at for one, at, _ in self.places() if one == pid]
        with self.path.open("r+b") as file:
            file.seek(at + WATCH_AT)
            file.write(value.to_bytes(8, "little"))

    def watched(self) -> dict[int, int]:
        """What each process that lives and has a slot finds in its line of the daemon's."""
        return {pid: int.from_bytes(slot[WATCH_AT : WATCH_AT + 8], "little") for pid, _, slot in self.places()}

    def uses(self, device: int | None = None) -> dict[int, Use]:
        """What each process that lives and has a slot holds on a GPU."""
        at = self._place(device) * USE.size
        return {pid: Use(*USE.unpack_from(use, at)) for pid, _, use in self.slots()}

    def used(self, device: int | None = None) -> int:
        """Bytes that all processes hold on a GPU."""
        return sum(use.held + use.overhead for use in self.uses(device).values())

    def memory(self) -> int:
        """The limit on each GPU that has none of its own."""
        return int.from_bytes(self.path.read_bytes()[MEMORY_AT : MEMORY_AT + 8], "little")

    def cap(self) -> int:
        """The cap on each GPU that has none of its own."""
        return int.from_bytes(self.path.read_bytes()[CAP_AT : CAP_AT + 8], "little")

    def device(self, index: int | None = None) -> Device:
        return Device(*DEVICE.unpack_from(self.path.read_bytes(), HEADER.size + self._place(index) * DEVICE.size))

    def refusals(self, device: int | None = None) -> int:
        return self.device(device).refusals

    def _place(self, device: int | None) -> int:
        """Nobody has told of the GPU as long as it has none: then the first place has nothing of it either."""
        if device is not None or self.gpu is None:
            return device or 0
        return next((index for index in range(DEVICES) if self.device(index).uuid == self.gpu), 0)
