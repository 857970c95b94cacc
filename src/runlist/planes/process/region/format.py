"""The bytes of a region: a header, the GPUs, then one slot for each process."""

from __future__ import annotations

from runlist.protocol import region_autogen
from runlist.protocol.region_autogen import (
    CAP_UNIT,
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
    "ACTIVITY", "CAP_UNIT", "DEVICE", "DEVICES", "DEVICES_AT", "FILE_BYTES", "HEADER", "MAGIC", "NO_LIMIT", "SLOT",
    "SLOTS", "SLOTS_AT", "TAKEN", "USE", "VERSION", "Enforced", "SlotState", "Watch",
]  # fmt: skip

HEADER, DEVICE, USE, ACTIVITY, SLOT, _FILE = (
    Structure(region_autogen.STRUCTS[name]) for name in ("HEADER", "DEVICE", "USE", "ACTIVITY", "SLOT", "FILE")
)

DEVICES_AT, SLOTS_AT = _FILE.offsets["devices"], _FILE.offsets["slots"]
FILE_BYTES = _FILE.size

TAKEN = {SlotState.CLAIMED, SlotState.FOREIGN}
"""States of a slot that is somebody's."""
