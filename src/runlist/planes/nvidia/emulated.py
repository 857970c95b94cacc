"""The same plane on an emulated GPU: only how its calls reach the driver is another."""

from __future__ import annotations

from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import choose_driver

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from runlist.planes.interface import Plane


def make_plane() -> Plane:
    """The emulated GPU that the environment names. Raises UsageError when it names none."""
    return NvidiaPlane(choose_driver("emulated"))
