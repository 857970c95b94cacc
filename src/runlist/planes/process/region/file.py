"""A region as the daemon and the launcher use it: by pread and pwrite, so that a file that is cut short is an error and
no signal. Its owner can write anything into it at any time, so its numbers are never trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self, overload

from runlist.errors import RunlistError
from runlist.planes.process.region.activity import Activities, Activity, all_names
from runlist.planes.process.region.format import (
    CAP_UNIT,
    DEVICE,
    DEVICES,
    DEVICES_AT,
    FILE_BYTES,
    HEADER,
    MAGIC,
    NO_LIMIT,
    SLOT,
    SLOTS,
    SLOTS_AT,
    TAKEN,
    USE,
    VERSION,
    Enforced,
    SlotState,
    Watch,
)
from runlist.proc.process import pid_namespace, start_of

MAX_BYTES = (1 << 63) - 1
"""The largest number of bytes; a larger one in a file is nonsense, and is shown as this."""

CROWD = 64
"""A tree of more processes than this is looked at more seldom."""

FIXED: dict[str, int] = {
    "magic": MAGIC,
    "version": VERSION,
    "header_bytes": HEADER.size,
    "device_bytes": DEVICE.size,
    "slot_bytes": SLOT.size,
    "device_count": DEVICES,
    "slot_count": SLOTS,
    "file_bytes": FILE_BYTES,
}


class RegionError(RunlistError):
    """A file that is no region, or cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Use:
    """The bytes that a process holds on one GPU: `held` by the program itself, `overhead` by the driver for it."""

    held: int = 0
    overhead: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return min(MAX_BYTES, self.held + self.overhead)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU in the region: its place in `Slot.use`, the memory limit in force (bytes), the cap in force (a part of its
    time, 0 to 1), refusals so far, and the bytes that the daemon found beyond what the slots tell.
    """

    index: int
    limit: int | None
    cap: float | None
    refusals: int
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A process in the region. Its `pid` is that in its own `pid_namespace`; `use` is by `Device.index`."""

    pid: int
    pid_namespace: int
    start_time: int
    enforced: Enforced
    use: Sequence[Use]


class _Uses(Sequence[Use]):
    """What a slot holds, by GPU: made when it is asked for, since a region can be full of slots."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    @overload
    def __getitem__(self, index: int) -> Use: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Use]: ...
    def __getitem__(self, index: int | slice) -> Use | Sequence[Use]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index] * _USE_FIELDS
        return Use(min(self._numbers[at], MAX_BYTES), min(self._numbers[at + 1], MAX_BYTES))

    def __len__(self) -> int:
        return len(self._numbers) // _USE_FIELDS

    def __bool__(self) -> bool:
        return any(self._numbers)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A region's content at one moment. `memory` (bytes) and `cap` (a part of the GPU's time, 0 to 1) limit each GPU
    that has no limit of its own. None is no limit.
    """

    pid_namespace: int
    creator: tuple[int, int]
    memory: int | None
    cap: float | None
    strict: bool
    devices: dict[int, Device]
    slots: tuple[Slot, ...]
    _alive: list[Slot] = field(default_factory=list, compare=False, repr=False)  # of a crowd, at the first question

    def device(self, gpu: str) -> Device | None:
        """The entry of a GPU, by UUID; None when no process of the tree has used it."""
        return self.devices.get(gpu_key(gpu))

    def limit(self, gpu: str) -> int | None:
        """The memory limit on a GPU, in bytes."""
        device = self.device(gpu)
        return self.memory if device is None else device.limit

    def cap_on(self, gpu: str) -> float | None:
        """The cap on a GPU, as a part of its time."""
        device = self.device(gpu)
        return self.cap if device is None else device.cap

    def slot_of(self, pid: int) -> Slot | None:
        """The slot of a process, by its id in our own pid namespace."""
        return _slot_of(pid, self.slots)

    def processes(self, known: Collection[int] = (), others: int = SLOTS) -> dict[int, Slot]:
        """The slots of the living processes that hold memory, by process id. Of processes that are not `known` at most
        so many are looked at, since a tenant can name any, and none of other pid namespaces.
        """
        ours = pid_namespace()
        found: dict[int, Slot] = {}
        for slot in self.slots:
            if slot.pid_namespace != ours or not slot.use:
                continue
            if slot.pid not in known:
                others -= 1
            if (slot.pid in known or others >= 0) and _lives(slot, ours):
                found[slot.pid] = slot
        if foreign := [slot for slot in self.slots if slot.pid_namespace != ours and slot.use]:
            for pid in set(known) - found.keys():
                if (found_there := _slot_of(pid, foreign)) is not None:
                    found[pid] = found_there
        return found

    def told(self, gpu: str) -> int:
        """Bytes that the slots tell of a GPU."""
        device = self.device(gpu)
        if device is None:
            return 0
        return min(MAX_BYTES, sum(slot.use[device.index].total for slot in self._holders()))

    def used(self, gpu: str) -> int:
        """Bytes that the tree holds on a GPU."""
        device = self.device(gpu)
        return 0 if device is None else min(MAX_BYTES, device.unseen + self.told(gpu))

    def living(self) -> list[Slot]:
        """The slots of processes that live, as far as can be seen from here."""
        ours = pid_namespace()
        return [slot for slot in self.slots if _lives(slot, ours)]

    def _holders(self) -> list[Slot]:
        """Those of them that hold memory. Of a crowd everybody is looked at once: it takes 10 µs each."""
        if self._alive:
            return self._alive
        ours = pid_namespace()
        alive = [slot for slot in self.slots if slot.use and _lives(slot, ours)]
        if len(self.slots) > CROWD:
            self._alive.extend(alive)
        return alive


def _slot_of(pid: int, slots: Iterable[Slot]) -> Slot | None:
    started = start_of(pid)
    if started is None:
        return None
    try:
        names = all_names(pid, started)
    except ProcessLookupError:
        return None
    return next((slot for slot in slots if slot.start_time == started and slot.pid in names), None)


def _lives(slot: Slot, namespace: int) -> bool:
    if slot.pid_namespace != namespace:  # nobody here can see it
        return True
    started = start_of(slot.pid)
    return started is not None and slot.start_time in (0, started)


class Region:
    """An open region. Every method raises RegionError for a file that is not, or no longer, a region."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._activities = Activities(self._pread)

    @classmethod
    def adopt(cls, fd: int, owner: int) -> Self:
        """Take over a descriptor, if it is of a region of user `owner` that may be written; else it is closed."""
        region = cls(fd)
        try:
            os.set_inheritable(fd, False)
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise RegionError("it is no file")
            if found.st_uid != owner:
                raise RegionError(f"it belongs to user {found.st_uid}, not {owner}")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise RegionError("others may write to it")
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
                raise RegionError("it is not open for reading and writing")
            region.read()
        except OSError as error:
            region.close()
            raise RegionError(f"it cannot be read: {error.strerror}") from None
        except BaseException:
            region.close()
            raise
        return region

    def reopen(self) -> None:
        """Open it anew, where we may: one that was sent carries its sender's locks, which our copy would keep after the
        sender's death.
        """
        with contextlib.suppress(OSError):
            ours = os.open(
                f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
            )  # it waits for no lease
            os.close(self._fd)
            self._fd = ours

    def fileno(self) -> int:
        """The descriptor, for passing on."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; the processes that mapped the file keep it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> Snapshot:
        """Its present content."""
        self._check_size()
        head = self._settled_head()
        header = _numbers(HEADER.unpack(head[: HEADER.size]))
        wrong = next((name for name, value in FIXED.items() if header[name] != value), None)
        if wrong is not None:
            raise RegionError(f"it is of another version (its {wrong} is {header[wrong]})")
        memory, cap = _limit(header, "memory"), _limit(header, "cap")
        devices = {}
        for index in range(DEVICES):
            at = DEVICES_AT + index * DEVICE.size
            device = _numbers(DEVICE.unpack(head[at : at + DEVICE.size]))
            if device["key"]:
                limit, share = _own(device, "memory", memory), _own(device, "cap", cap)
                if cap is None:  # then no launch is looked at
                    share = None
                devices[device["key"]] = Device(index, limit, _fraction(share), device["refusals"], device["unseen"])
        body = self._pread(SLOTS_AT, min(header["slots_used"], SLOTS) * SLOT.size)
        found = (_slot(fields, header["pid_namespace"]) for fields in SLOT.struct.iter_unpack(body))
        return Snapshot(
            pid_namespace=header["pid_namespace"],
            creator=(header["creator_pid"], header["creator_start"]),
            memory=memory,
            cap=_fraction(cap),
            strict=bool(header["strict"]),
            devices=devices,
            slots=tuple(slot for slot in found if slot is not None),
        )

    def activity(self, pid: int) -> Activity | None:
        """What a process does, by its id in our own pid namespace; None when it has no slot. Once it is known which one
        it has, that is one short read.
        """
        return self._activities.of(pid)

    def watch(self, pid: int, work: bool, announcements: bool = False) -> bool:
        """Have a process say when it submits work next, or announces some, once; or not. Returns whether it has a slot.
        Where that was taken back a moment ago, another process of the tree may say it.
        """
        at = self.watched_at(pid)
        if at is not None:
            self._pwrite(at, Watch.WORK * work | Watch.ANNOUNCEMENTS * announcements)
        return at is not None

    def watched_at(self, pid: int) -> int | None:
        """Where `watch` writes for a process; None when it has no slot."""
        return self._activities.watch_at(pid)

    def _settled_head(self) -> bytes:
        """Header and GPUs, at a moment at which nobody was writing a limit; at any, where that does not come."""
        for _ in range(_ATTEMPTS):
            head = self._pread(0, SLOTS_AT)
            if all(_is_settled(head, at) for at in _LIMITS):
                break
        return head

    def set_memory(self, limit: int | None) -> None:
        """Limit what the tree may hold on each GPU, in bytes; None for no limit. Limits of single GPUs go."""
        self._write_limit("memory", limit)

    def set_cap(self, fraction: float | None) -> None:
        """Limit the tree's time on each GPU, 0 to 1, from inside its processes; None for no limit. Caps of single GPUs
        go.
        """
        self._write_limit("cap", None if fraction is None or fraction >= 1 else round(fraction * CAP_UNIT))

    def set_unseen(self, index: int, octets: int) -> None:
        """Have the tree's processes count so many bytes on a GPU beside what their slots tell."""
        self._check_size()
        self._pwrite(DEVICES_AT + index * DEVICE.size + DEVICE.offsets["unseen"], octets)

    def _write_limit(self, name: str, limit: int | None) -> None:
        """Write a limit for all GPUs and for each: a process' environment may limit single GPUs, and a GPU without a
        limit of its own would take that one.
        """
        self._check_size()
        value = NO_LIMIT if limit is None else limit
        for record, start in ((HEADER, 0), *((DEVICE, DEVICES_AT + index * DEVICE.size) for index in range(DEVICES))):
            self._pwrite(start + record.offsets[f"{name}_value"], value)
            self._pwrite(start + record.offsets[f"{name}_check"], value ^ NO_LIMIT)

    def _check_size(self) -> None:
        try:
            size = os.fstat(self._fd).st_size
        except OSError as error:
            raise _unusable(error) from None
        if size != FILE_BYTES:
            raise RegionError(f"it has {size} bytes, not {FILE_BYTES}")

    def _pread(self, at: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, at)
        except OSError as error:
            raise _unusable(error) from None
        if len(data) != size:
            raise RegionError("it was cut short")
        return data

    def _pwrite(self, at: int, value: int) -> None:
        try:
            os.pwrite(self._fd, value.to_bytes(8, "little"), at)
        except OSError as error:
            raise _unusable(error) from None


def _unusable(error: OSError) -> RegionError:
    return RegionError(f"it cannot be used: {error.strerror}")


def gpu_key(gpu: str) -> int:
    """The key of a GPU in a region, from its UUID; 0, which no GPU has, for other texts."""
    try:
        raw = bytes.fromhex(gpu.partition("-")[2].replace("-", ""))
    except ValueError:
        return 0
    if len(raw) != 16:
        return 0
    return int.from_bytes(raw[:8], "little") ^ int.from_bytes(raw[8:], "little") or 1


def _numbers(fields: dict[str, int | bytes | tuple[int, ...]]) -> dict[str, int]:
    return {name: value for name, value in fields.items() if isinstance(value, int)}


_ATTEMPTS = 16
_LIMITS = [
    start + record.offsets[f"{name}_value"]
    for record, start in ((HEADER, 0), *((DEVICE, DEVICES_AT + index * DEVICE.size) for index in range(DEVICES)))
    for name in ("memory", "cap")
]


def _is_settled(head: bytes, at: int) -> bool:
    """Whether the two words of a limit belong together: each other's complement, or nothing."""
    value, check = int.from_bytes(head[at : at + 8], "little"), int.from_bytes(head[at + 8 : at + 16], "little")
    return check == value ^ NO_LIMIT or value == check == 0


def _limit(fields: dict[str, int], name: str) -> int | None:
    """A limit. While it is being changed the smaller of two values counts, as in the processes themselves."""
    value = min(fields[f"{name}_value"], fields[f"{name}_check"] ^ NO_LIMIT)
    return None if value == NO_LIMIT else min(value, MAX_BYTES)


def _own(device: dict[str, int], name: str, of_all: int | None) -> int | None:
    """A GPU's own limit, or the one of all GPUs where it has none."""
    written = device[f"{name}_value"] or device[f"{name}_check"]
    return _limit(device, name) if written else of_all


def _fraction(cap: int | None) -> float | None:
    return None if cap is None or cap >= CAP_UNIT else cap / CAP_UNIT


def _slot(fields: tuple[int, ...], creators_namespace: int) -> Slot | None:
    identity, start_time, enforced, _, namespace, _, _, _, *numbers = fields
    state, pid = identity >> 32, identity & 0xFFFF_FFFF
    if state not in TAKEN or not pid:
        return None
    if not namespace and state == SlotState.CLAIMED:
        namespace = creators_namespace
    return Slot(pid, namespace, start_time, _ENFORCED[enforced & _ALL_ENFORCED], _Uses(numbers))


_USE_FIELDS = len(USE.names)
_ALL_ENFORCED = sum(Enforced)
_ENFORCED = [Enforced(bits) for bits in range(_ALL_ENFORCED + 1)]
