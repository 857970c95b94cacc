"""The objects of an RM client on GPUs."""

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
    """The objects of one RM client on one GPU. `gpu` is the UUID, `subdevice` the handle for GPU-wide controls."""

    gpu: str
    subdevice: int
    groups: tuple[Group, ...]
