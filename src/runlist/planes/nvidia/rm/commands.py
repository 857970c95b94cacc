"""RM's protocol as the rest of the plane uses it: its structures, and the table of its controls by name.

The protocol itself, with its sources, is in protocol/rm.toml; docs/driver-protocol.md tells what each control does in
practice.
"""

from __future__ import annotations

import msgspec

from runlist.protocol import rm_autogen as rm
from runlist.protocol.rm_autogen import Class, Privilege, Target
from runlist.structure import Structure

NVOS54_CONTROL, NVOS21_ALLOC, NVOS00_FREE, NVOS33_MAP_MEMORY, REGISTER_FD = (
    Structure(rm.STRUCTS[name])
    for name in ("NVOS54_CONTROL", "NVOS21_ALLOC", "NVOS00_FREE", "NVOS33_MAP_MEMORY", "REGISTER_FD")
)

ALLOCATIONS: dict[Class, Structure] = {class_: Structure(text) for class_, text in rm.ALLOCATIONS.items()}
"""Parameters with which objects of our own are allocated."""


def is_channel(class_: int) -> bool:
    """Whether a class is one of GPFIFO channels, of any generation."""
    return class_ & 0xFF == rm.CHANNEL_BYTE


def is_compute(class_: int) -> bool:
    """Whether a class is one of compute engines, which are children of a channel."""
    return class_ > rm.ENGINES_FROM and class_ & 0xFF == rm.COMPUTE_BYTE


def is_copy(class_: int) -> bool:
    """Whether a class is one of copy engines, which are children of a channel."""
    return class_ > rm.ENGINES_FROM and class_ & 0xFF == rm.COPY_BYTE


class Command(msgspec.Struct, frozen=True):
    """One control: its number, what it is sent to, who may send it, and the structure of its parameters.

    `older` are shorter structures of earlier drivers, tried when the driver refuses the size.
    """

    name: str
    number: int
    target: Target
    privilege: Privilege
    parameters: Structure
    effect: str
    older: tuple[Structure, ...]


def _command(
    name: str, number: int, target: Target, privilege: Privilege, parameters: str, effect: str, older: tuple[str, ...]
) -> Command:
    return Command(name, number, target, privilege, Structure(parameters), effect, tuple(map(Structure, older)))


COMMANDS: dict[str, Command] = {row[0]: _command(*row) for row in rm.CONTROLS}
COMMAND_NAMES: dict[int, str] = {command.number: command.name for command in COMMANDS.values()}
