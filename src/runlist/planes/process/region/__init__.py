"""Regions: the files by which the processes of a tree share their limits, seen from outside those processes."""

from runlist.planes.process.region.activity import Activity
from runlist.planes.process.region.file import CROWD, Device, Region, RegionError, Slot, Snapshot, Use, gpu_key
from runlist.planes.process.region.folder import create, remove, sweep
from runlist.planes.process.region.format import Enforced

__all__ = [
    "CROWD", "Activity", "Device", "Enforced", "Region", "RegionError", "Slot", "Snapshot", "Use", "create", "gpu_key",
    "remove", "sweep",
]  # fmt: skip
