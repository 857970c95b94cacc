"""The driver plane: NVIDIA's resource manager (RM) spoken to over descriptors borrowed from other processes.

Read in this order: `rm` (its protocol: commands as data, errors, how a call reaches a driver or the emulated GPU, calls
on one open file), `discover` (what a process has on the GPU), `context` (the controls on what was found), `undo`,
`switch_log` and `usage` (who held the GPU), `nvml` and `census` (who holds how much memory), `plane` (all of it
together).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from runlist.planes.interface import Plane


def make_plane() -> Plane:
    """The kernel's driver."""
    from runlist.planes.nvidia.plane import NvidiaPlane
    from runlist.planes.nvidia.rm.transport import NvidiaDriver

    return NvidiaPlane(NvidiaDriver())
