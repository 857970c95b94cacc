"""The bytes of a region made into a snapshot."""

from __future__ import annotations

from collections.abc import Callable

from runlist.errors import RunlistError
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
    TAKEN,
    VERSION,
    Enforced,
    SlotState,
)
from runlist.planes.process.region.snapshot import MAX_BYTES, Device, Slot, Snapshot, Uses

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


def parse(head: bytes, first_slots: Callable[[int], bytes]) -> Snapshot:
    """The snapshot of header and GPUs, and of the slots that are used, of which `first_slots` reads so many. Raises
    RegionError for another version.
    """
    header = _header(head)
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
    slots = first_slots(min(header["slots_used"], SLOTS))
    found = (_slot(fields, header["pid_namespace"]) for fields in SLOT.struct.iter_unpack(slots))
    return Snapshot(
        pid_namespace=header["pid_namespace"],
        creator=(header["creator_pid"], header["creator_start"]),
        memory=memory,
        cap=_fraction(cap),
        strict=bool(header["strict"]),
        devices=devices,
        slots=tuple(slot for slot in found if slot is not None),
    )


def is_settled(head: bytes) -> bool:
    """Whether nobody was writing a limit when these bytes were read."""
    return all(_is_settled(head, at) for at in _LIMITS)


def _header(head: bytes) -> dict[str, int]:
    header = _numbers(HEADER.unpack(head[: HEADER.size]))
    wrong = next((name for name, value in FIXED.items() if header[name] != value), None)
    if wrong is not None:
        raise RegionError(f"it is of another version (its {wrong} is {header[wrong]})")
    return header


def _numbers(fields: dict[str, int | bytes | tuple[int, ...]]) -> dict[str, int]:
    return {name: value for name, value in fields.items() if isinstance(value, int)}


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
    identity, start_time, enforced, _, namespace, _, _, _, _, *numbers = fields
    state, pid = identity >> 32, identity & 0xFFFF_FFFF
    if state not in TAKEN or not pid:
        return None
    if not namespace and state == SlotState.CLAIMED:
        namespace = creators_namespace
    return Slot(pid, namespace, start_time, _ENFORCED[enforced & _ALL_ENFORCED], Uses(numbers))


_ALL_ENFORCED = sum(Enforced)
_ENFORCED = [Enforced(bits) for bits in range(_ALL_ENFORCED + 1)]
