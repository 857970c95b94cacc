"""Putting back a process whose daemon and keeper were both killed."""

from __future__ import annotations

import os

from runlist.errors import NoTargetError
from runlist.planes.nvidia.discover import Discoverer
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.slices import DRIVER_SLICE_US
from runlist.proc import borrow


def rescue(driver: Driver, pid: int) -> list[str]:
    """Enable all channels of a process and give its groups the driver's slices; returns the changes that were found."""
    pidfd = borrow.open_process(pid)
    notes = []
    discoverer = Discoverer(driver)
    try:
        found = discoverer.discover(pid, pidfd, borrow.OwnRight())
        if not found:
            raise NoTargetError(f"process {pid} has no GPU work: nothing was done")
        for client in found:
            for context in client.contexts(client.handle, ()):
                for handle, microseconds in context.original_us.items():
                    wanted = DRIVER_SLICE_US[context.groups[handle].engine]
                    if microseconds != wanted:
                        notes.append(f"process {pid}: a slice of {microseconds} µs is set to {wanted} µs")
                        context.original_us[handle] = wanted
                context.set_timeslice(None)
                context.resume()
        for file in {id(client.handle): client.handle for client in found}.values():
            file.close()
    finally:
        discoverer.close()
        os.close(pidfd)
    return notes
