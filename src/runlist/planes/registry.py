"""Which planes there are: one line each."""

from __future__ import annotations

import os
from importlib import import_module

from runlist.environment import DEVICE_VARIABLE
from runlist.errors import UsageError
from runlist.planes.interface import Control, Plane

PLANES = {
    "nvidia": "runlist.planes.nvidia",
    "emulated": "runlist.planes.nvidia.emulated",
}
"""Modules by the name that `--device` takes, the default first. Each has a function `make_plane()`."""


def choose_plane(device: str | None = None) -> Plane:
    """The plane named by `device`, or by RUNLIST_DEVICE, or the default. One that is not Runlist's own is named by its
    module, as `package.module`. Raises UsageError for a bad name.
    """
    name = device or os.environ.get(DEVICE_VARIABLE) or next(iter(PLANES))
    module = PLANES.get(name, name if "." in name else None)
    if module is None:
        raise UsageError(f"no device {name!r}: take {' or '.join(PLANES)}")
    try:
        plane: Plane = import_module(module).make_plane()
    except (ImportError, AttributeError) as error:
        if module in PLANES.values():
            raise
        raise UsageError(f"no device {name!r}: {error}") from None
    return plane


def controls() -> tuple[Control, ...]:
    """The controls that the planes' drivers have, each name once, from the module `controls` of each vendor."""
    vendors = dict.fromkeys(".".join(module.split(".")[:3]) for module in PLANES.values())
    rows = (row for vendor in vendors for row in import_module(f"{vendor}.controls").CONTROLS)
    return tuple({row.name: row for row in rows}.values())
