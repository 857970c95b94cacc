"""Regions: the files by which the processes of a tree share their limits, seen from outside those processes."""

from runlist.planes.process.region.activity import Activity
from runlist.planes.process.region.file import Region
from runlist.planes.process.region.folder import create, remove, sweep
from runlist.planes.process.region.format import Enforced
from runlist.planes.process.region.memory import ready
from runlist.planes.process.region.operations import Operations
from runlist.planes.process.region.reading import RegionError
from runlist.planes.process.region.snapshot import Device, Slot, Snapshot, Use, gpu_key

__all__ = [
    "Activity", "Device", "Enforced", "Operations", "Region", "RegionError", "Slot", "Snapshot", "Use",
    "create", "gpu_key", "ready", "remove", "sweep",
]  # fmt: skip
