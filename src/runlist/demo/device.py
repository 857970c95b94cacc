"""Which GPU the demo runs on: one that is there, or an emulated one that it starts for the purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from runlist.errors import NotSupportedError, RunlistError, UsageError
from runlist.planes.interface import CensusError
from runlist.planes.registry import PLANES, choose_plane
from runlist.protocol import environment_autogen as names

EMULATED = "emulated"


@dataclass(frozen=True)
class Device:
    """The device in use."""

    name: str
    """What `--device` calls it."""
    reason: str
    """Why this one, for a person."""


def why_no_gpu(name: str) -> str | None:
    """None when a GPU of this name can be used here, else what is missing."""
    try:
        with closing(choose_plane(name).census()) as census:
            return None if census.gpus() else "the driver sees no GPU"
    except CensusError as error:
        return str(error).removeprefix("NVML: ")


@contextmanager
def use_device(wanted: str | None) -> Iterator[Device]:
    """Makes a device this process's and its children's: `wanted`, or RUNLIST_DEVICE, or the best that is there.

    The environment is changed inside, and put back with whatever was started. Raises UsageError for an unknown name and
    NotSupportedError for a device that is not here.
    """
    asked = wanted or os.environ.get(names.DEVICE) or None
    if asked not in (None, *PLANES):
        raise UsageError(f"no device {asked!r}: take {' or '.join(PLANES)}")
    real = next(iter(PLANES)) if asked is None else asked
    missing = None if asked == EMULATED else why_no_gpu(real)
    if asked not in (None, EMULATED) and missing:
        raise NotSupportedError(f"no usable {real.upper()} GPU here ({missing}); --device {EMULATED} needs none")
    if asked != EMULATED and not missing:
        with _environment({names.DEVICE: real}):
            yield Device(real, f"an {real.upper()} GPU is here")
        return
    reason = "as asked" if asked else f"no usable {real.upper()} GPU here: {missing}"
    with _emulated_gpu() as environment, _environment(environment):
        yield Device(EMULATED, reason)


@contextmanager
def _emulated_gpu() -> Iterator[Mapping[str, str]]:
    """The environment of an emulated GPU: the one that the caller's environment names, or a new one meanwhile."""
    from runlist.emulated import EmulatedGpu, EmulatedGpuError, environment

    try:
        if running := os.environ.get(names.EMULATED_GPU):
            yield environment(running)
        else:
            with EmulatedGpu() as gpu:
                yield gpu.environment()
    except EmulatedGpuError as error:
        raise RunlistError(str(error)) from None


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
