"""The list of planes, one line each."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from runlist.errors import UsageError
from runlist.planes.control import Control
from runlist.protocol import environment_autogen as names

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

PLANES = {
    "nvidia": "runlist.planes.nvidia",
    "emulated": "runlist.planes.nvidia.emulated",
}
"""Modules by the name that `--device` takes. Each has a function `make_plane()`."""


def choose_plane(device: str | None = None) -> Plane:
    """The plane named by `device`, or by RUNLIST_DEVICE, or the default. A foreign plane is named by its module, as
    `package.module`. Raises UsageError for a bad name.
    """
    name = device if device is not None else os.environ.get(names.DEVICE) or names.DEFAULT_DEVICE
    if name in PLANES:
        return _made(PLANES[name])
    if not _is_foreign(name):
        raise UsageError(f"no device {name!r}: take {' or '.join(PLANES)}")
    try:
        return _made(name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"no device {name!r}: {error}") from None


def _is_foreign(name: str) -> bool:
    """Whether it may be the module of a plane from elsewhere."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _made(module: str) -> Plane:
    plane: Plane = import_module(module).make_plane()
    return plane


def load_ahead(plane: Plane, process: str) -> None:
    """Import what a plane needs once there is somebody to look after, as far as it says so in `AHEAD`: for the `daemon`
    or the `keeper`. Whoever installs another version meanwhile puts other files in its place.
    """
    for module in getattr(plane, "AHEAD", {}).get(process, ()):
        import_module(module)


def controls() -> tuple[Control, ...]:
    """The controls that can be set, each name once: those of the device that the environment names, as it does for each
    daemon, or those of all planes where it names none.
    """
    named = os.environ.get(names.DEVICE, "")
    modules = [PLANES.get(named, named)] if named in PLANES or _is_foreign(named) else list(PLANES.values())
    return tuple({row.name: row for module in modules for row in _controls(module)}.values())


def _controls(module: str) -> tuple[Control, ...]:
    """`CONTROLS` of a plane: in the module `controls` of its vendor, or in a module that is not Runlist's own."""
    own = module in PLANES.values()
    name = ".".join([*module.split(".")[:3], "controls"]) if own else module
    try:
        return tuple(getattr(import_module(name), "CONTROLS", ()))
    except ImportError as error:
        if own and error.name != name:  # a vendor need have none
            raise
        return ()  # whoever chooses a module that is none says so
