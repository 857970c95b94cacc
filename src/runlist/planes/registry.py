"""Which planes there are: one line each."""

from __future__ import annotations

from importlib import import_module

from runlist.planes.interface import Control

PLANES = {
    "nvidia": "runlist.planes.nvidia",
}
"""Packages by name."""


def controls() -> tuple[Control, ...]:
    """The controls that the planes' drivers have, each name once."""
    rows = (row for package in PLANES.values() for row in import_module(f"{package}.controls").CONTROLS)
    return tuple({row.name: row for row in rows}.values())
