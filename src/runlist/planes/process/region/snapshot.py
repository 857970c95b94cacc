"""What a region holds at one moment. Its owner can write anything into it at any time, so its numbers are never
trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import overload

import msgspec

from runlist.planes.process.region.activity import all_names
from runlist.planes.process.region.format import SLOTS, USE, Enforced
from runlist.proc.process import pid_namespace, start_of, starts_of

MAX_BYTES = (1 << 63) - 1
"""The largest number of bytes; a larger one in a file is nonsense, and is shown as this."""

_USE_FIELDS = len(USE.names)


class Use(msgspec.Struct, frozen=True):
    """The bytes that a process holds on one GPU: `held` by the program itself, `overhead` by the driver for it."""

    held: int
    overhead: int

    @property
    def total(self) -> int:
        """All of it."""
        return min(MAX_BYTES, self.held + self.overhead)


class Device(msgspec.Struct, frozen=True):
    """A GPU in the region: its place in `Slot.use`, the memory limit in force (bytes), the cap in force (a part of its
    time, 0 to 1), refusals so far, and the bytes that the daemon found beyond what the slots tell.
    """

    index: int
    limit: int | None
    cap: float | None
    refusals: int
    unseen: int = 0


class Slot(msgspec.Struct, frozen=True):
    """A process in the region. Its `pid` is that in its own `pid_namespace`; `use` is by `Device.index`."""

    pid: int
    pid_namespace: int
    start_time: int
    enforced: Enforced
    use: Sequence[Use]


class Uses(Sequence[Use]):
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


class Snapshot(msgspec.Struct, frozen=True):
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
    _asked: dict[tuple[int, int], bool] = {}  # whether processes lived at the first question, which takes 10 µs each

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
            if (slot.pid in known or others >= 0) and self._lives(slot, ours):
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
        return min(MAX_BYTES, sum(slot.use[device.index].total for slot in self.holders()))

    def used(self, gpu: str) -> int:
        """Bytes that the tree holds on a GPU."""
        device = self.device(gpu)
        return 0 if device is None else min(MAX_BYTES, device.unseen + self.told(gpu))

    def living(self) -> list[Slot]:
        """The slots of processes that live, as far as can be seen from here."""
        ours = pid_namespace()
        return [slot for slot in self.slots if _lives(slot, ours)]

    def holders(self) -> list[Slot]:
        """Those of them that hold memory."""
        ours = pid_namespace()
        holding = [slot for slot in self.slots if slot.use]
        asked = [
            slot for slot in holding if slot.pid_namespace == ours and (slot.pid, slot.start_time) not in self._asked
        ]
        starts = starts_of({slot.pid for slot in asked})
        self._asked.update({(slot.pid, slot.start_time): _began(slot, starts[slot.pid]) for slot in asked})
        return [slot for slot in holding if self._lives(slot, ours)]

    def _lives(self, slot: Slot, namespace: int) -> bool:
        if slot.pid_namespace != namespace:
            return True
        key = slot.pid, slot.start_time
        if key not in self._asked:
            self._asked[key] = _lives(slot, namespace)
        return self._asked[key]


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
    return _began(slot, start_of(slot.pid))


def _began(slot: Slot, started: int | None) -> bool:
    return started is not None and slot.start_time in (0, started)


def gpu_key(gpu: str) -> int:
    """The key of a GPU in a region, from its UUID; 0, which no GPU has, for other texts."""
    try:
        raw = bytes.fromhex(gpu.partition("-")[2].replace("-", ""))
    except ValueError:
        return 0
    if len(raw) != 16:
        return 0
    return int.from_bytes(raw[:8], "little") ^ int.from_bytes(raw[8:], "little") or 1
