"""The memory limit of a tree: the region for it, setting it, and notes for the person who did."""

from __future__ import annotations

from runlist import wire
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree.descriptors import Descriptors
from runlist.errors import NotSupportedError, RunlistError
from runlist.planes.process.region import Region, RegionError
from runlist.settings.table import memory_change
from runlist.units import size

_REFUSED = "new allocations are refused until"


def set_limit(root: Root, pid: int, limit: int | None, *, keeps: bool = True) -> None:
    """Set the memory limit of a tree. Raises NotSupportedError, which names the process, where nobody can keep it."""
    try:
        root.quota.set_limit(limit, keeps=keeps)
    except NotSupportedError as error:
        raise NotSupportedError(f"process {pid}: {error}") from None


async def sent_region(descriptors: Descriptors, fd: int, uid: int) -> Region:
    """The region in a descriptor that a user sent, which is taken over. Raises RunlistError for a bad one."""
    try:
        return await descriptors.region(fd, uid)
    except RegionError as error:
        raise RunlistError(f"{wire.REGION_REFUSED}: {error}") from None


def limit_memory(root: Root, placement: Placement, *, keeps: bool = True) -> None:
    """Set a new root's memory limit, from its user or else from the rules. With `keeps` the tree may hold something
    already, which it keeps.
    """
    found = placement.settings_of(root.pid, root.settings)
    change = memory_change(found.changes)
    if change is not None and "memory" in root.settings:
        set_limit(root, root.pid, change.limit, keeps=keeps)
    placement.limit_memory(root, root.pid, found)


def limit_notes(root: Root, census: MemoryCensus, gpus: Gpus) -> list[str]:
    """Limits without effect and limits that are exceeded already, one line each."""
    limit = root.quota.limit
    if limit is None:
        return []
    notes = []
    sizes = [octets for gpu in census.gpus() if (octets := census.size_of(gpu)) is not None]
    if sizes and limit > max(sizes):
        notes.append(f"a limit of {size(limit)} has no effect: the GPU has {size(max(sizes))}")
    snapshot = root.quota.look()
    if snapshot is None:
        return notes
    for gpu in gpus.with_listed(census.gpus()):
        device = snapshot.device(gpu)
        if device is None or snapshot.used(gpu) <= limit:
            continue
        holders = [pid for pid, slot in snapshot.processes().items() if slot.use[device.index].total]
        held = size(snapshot.used(gpu))
        if len(holders) == 1:
            notes.append(f"process {holders[0]} holds {held}, more than its new limit: {_REFUSED} it frees")
        else:
            notes.append(f"the processes under {root.pid} hold {held}, more than their new limit: {_REFUSED} they free")
    return notes
