"""The list of planes, one line each."""

from __future__ import annotations

import contextlib
import os
from importlib import import_module

from runlist.errors import UsageError
from runlist.planes.interface import Control, Plane
from runlist.protocol import environment_autogen as names

PLANES = {
    "nvidia": "runlist.planes.nvidia",
    "emulated": "runlist.planes.nvidia.emulated",
}
"""Modules by the name that `--device` takes, the default first. Each has a function `make_plane()`."""


def choose_plane(device: str | None = None) -> Plane:
    """The plane named by `device`, or by RUNLIST_DEVICE, or the default. A foreign plane is named by its module, as
    `package.module`. Raises UsageError for a bad name.
    """
    name = device or os.environ.get(names.DEVICE) or next(iter(PLANES))
    if name in PLANES:
        return _made(PLANES[name])
    if "." not in name:
        raise UsageError(f"no device {name!r}: take {' or '.join(PLANES)}")
    try:
        return _made(name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"no device {name!r}: {error}") from None


def _made(module: str) -> Plane:
    plane: Plane = import_module(module).make_plane()
    return plane


def controls() -> tuple[Control, ...]:
    """The controls of all planes' drivers, each name once: `CONTROLS` in the module `controls` of each vendor, and in
    the module of a foreign plane that the environment names.
    """
    vendors = dict.fromkeys(".".join(module.split(".")[:3]) for module in PLANES.values())
    modules = [import_module(f"{vendor}.controls") for vendor in vendors]
    named = os.environ.get(names.DEVICE, "")
    if "." in named:
        with contextlib.suppress(ImportError):  # choosing it reports the error
            modules.append(import_module(named))
    rows = (row for module in modules for row in getattr(module, "CONTROLS", ()))
    return tuple({row.name: row for row in rows}.values())
