"""What an RM client has on GPUs, as it was found."""

from __future__ import annotations

from dataclasses import dataclass

from runlist.model import Engine


@dataclass(frozen=True)
class Group:
    """A channel group: its handle, the engine it runs on, and the handles of its channels."""

    handle: int
    engine: Engine
    channels: tuple[int, ...]


@dataclass(frozen=True)
class GpuObjects:
    """What one RM client has on one GPU. `gpu` is the UUID, `subdevice` the handle that GPU-wide controls go to."""

    gpu: str
    subdevice: int
    groups: tuple[Group, ...]
