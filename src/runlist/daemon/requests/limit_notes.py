"""Notes for a person who has just set a memory limit."""

from __future__ import annotations

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.tasks.managed import Root
from runlist.units import size

_REFUSED = "new allocations are refused until"


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
    for gpu in dict.fromkeys([*census.gpus(), *(scheduler.gpu for scheduler in gpus.all())]):
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
