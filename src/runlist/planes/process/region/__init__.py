"""Regions: the files by which the processes of a tree share their limits, seen from outside those processes."""

from runlist.planes.process.region.activity import Activity
from runlist.planes.process.region.file import Region, Words, cap_words, memory_words, unseen_words
from runlist.planes.process.region.folder import create, remove, sweep
from runlist.planes.process.region.format import Enforced
from runlist.planes.process.region.memory import ready
from runlist.planes.process.region.operations import Operations
from runlist.planes.process.region.reading import RegionError
from runlist.planes.process.region.snapshot import Device, Slot, Snapshot, Use, gpu_key

__all__ = [
    "Activity", "Device", "Enforced", "Operations", "Region", "RegionError", "Slot", "Snapshot", "Use",
    "Words", "cap_words", "create", "gpu_key", "memory_words", "ready", "remove", "sweep", "unseen_words",
]  # fmt: skip
