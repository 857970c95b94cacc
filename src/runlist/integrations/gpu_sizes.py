"""How much memory the GPUs of this machine have, of which parts of a GPU are parts."""

from __future__ import annotations

import contextlib

from runlist.client import Client
from runlist.errors import NotSupportedError, RunlistError
from runlist.planes.interface import Plane

PATIENCE_S = 2.0


def gpu_sizes(plane: Plane, device: str | None = None) -> dict[str, int]:
    """Bytes by index and by UUID, as CUDA_VISIBLE_DEVICES may name a GPU: of all GPUs, as the driver tells; where it
    does not answer here, as in a container without NVML, by UUID alone, of those that the daemon knows. Raises
    NotSupportedError where neither tells.
    """
    try:
        with contextlib.closing(plane.census()) as census:
            return {name: gpu.memory for gpu in census.gpus() for name in (str(gpu.index), gpu.uuid)}
    except (RunlistError, OSError) as error:
        try:
            with Client.open(device=device, patience_s=PATIENCE_S) as client:
                found = {gpu.gpu: gpu.memory_size_bytes for gpu in client.status().gpus if gpu.memory_size_bytes}
        except (RunlistError, OSError):
            found = {}
        if not found:
            raise NotSupportedError(f"nobody says how much memory the GPUs have ({error})") from None
        return found
