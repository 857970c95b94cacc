"""The objects of an RM client on GPUs."""

from __future__ import annotations

import msgspec

from runlist.model import Engine


class Group(msgspec.Struct, frozen=True):
    """A channel group: its handle, the engine it runs on, and the handles of its channels."""

    handle: int
    engine: Engine
    channels: tuple[int, ...]


class GpuObjects(msgspec.Struct, frozen=True):
    """The objects of one RM client on one GPU. `gpu` is the UUID, `subdevice` the handle for GPU-wide controls."""

    gpu: str
    subdevice: int
    groups: tuple[Group, ...]
