"""The bytes of a region, as `native/region/layout.hpp` has them; a test compares every offset with a compiler's.

A region is a file: a header, the GPUs, then one slot for each process.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from runlist.structure import Structure

MAGIC = int.from_bytes(b"RLREGION", "little")
VERSION = 1
DEVICES = 16
SLOTS = 1024
NO_LIMIT = (1 << 64) - 1

HEADER = Structure(
    "magic:Q version:I header_bytes:I device_bytes:I slot_bytes:I device_count:I slot_count:I file_bytes:Q "
    "creator_start:Q pid_namespace:Q creator_pid:i owner:I "
    "memory_value:Q memory_check:Q cap_value:Q cap_check:Q slots_used:I strict:I by_hand:I 20x"
)
DEVICE = Structure("key:Q uuid:16s memory_value:Q memory_check:Q cap_value:Q cap_check:Q 8x next_turn:Q refusals:Q 48x")
USE = Structure("held:Q overhead:Q asking:Q gpu_ns:Q")
SLOT = Structure(f"identity:Q start_time:Q enforced:Q image:Q pid_namespace:Q 24x use:{4 * DEVICES}Q")

DEVICES_AT = HEADER.size
SLOTS_AT = DEVICES_AT + DEVICES * DEVICE.size
FILE_BYTES = SLOTS_AT + SLOTS * SLOT.size


class SlotState(IntEnum):
    """The upper half of a slot's identity; the lower one is the process id."""

    FREE = 0
    CLAIMED = 1
    FOREIGN = 2
    """Of another pid namespace than the creator's."""
    REAPED = 3


class Enforced(IntFlag):
    """What is at work in a process."""

    MEMORY = 1
    QUERIES = 2
    CAP = 4
