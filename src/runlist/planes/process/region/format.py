"""The bytes of a region: a header, the GPUs, one slot for each process, and one place for the clients of each."""

from __future__ import annotations

from runlist.protocol import region_autogen
from runlist.protocol.region_autogen import (
    CAP_UNIT,
    CLIENTS,
    DEVICES,
    MAGIC,
    NO_LIMIT,
    SLOTS,
    VERSION,
    Enforced,
    SlotState,
    Watch,
)
from runlist.structure import Structure

__all__ = [
    "ACTIVITY", "CAP_UNIT", "CLIENT", "CLIENTS", "DEVICE", "DEVICES", "DEVICES_AT", "FILE_BYTES", "HEADER", "MAGIC",
    "NO_LIMIT", "OPERATIONS", "OPERATIONS_AT", "SLOT", "SLOTS", "SLOTS_AT", "TAKEN", "USE", "VERSION", "Enforced",
    "SlotState", "Watch",
]  # fmt: skip

HEADER, DEVICE, USE, ACTIVITY, SLOT, CLIENT, OPERATIONS, _FILE = (
    Structure(region_autogen.STRUCTS[name])
    for name in ("HEADER", "DEVICE", "USE", "ACTIVITY", "SLOT", "CLIENT", "OPERATIONS", "FILE")
)

DEVICES_AT, SLOTS_AT, OPERATIONS_AT = (_FILE.offsets[name] for name in ("devices", "slots", "operations"))
FILE_BYTES = _FILE.size
"""Of which that before OPERATIONS_AT has its room on the disk from the start."""

TAKEN = {SlotState.CLAIMED, SlotState.FOREIGN}
"""States of a slot that is somebody's."""
