"""What the library does inside a process, or why it does nothing, in words."""

from __future__ import annotations

import os

from runlist.planes.process import preload
from runlist.planes.process.region import Enforced, Slot
from runlist.proc import patience
from runlist.proc.process import read_bytes
from runlist.protocol import environment_autogen as names

_MAX_ENVIRONMENT = 1 << 20
_WORDS = {Enforced.MEMORY: "memory", Enforced.QUERIES: "queries", Enforced.CAP: "cap"}


def enforcement(pid: int, slot: Slot | None, *, by_driver: bool = False) -> str:
    """What the library does in a process that should have it: "memory, queries", or "not loaded: …". With `by_driver`
    the driver itself keeps the memory limit.
    """
    if by_driver:
        return "memory (by the driver)" + (
            ", queries" if slot is not None and Enforced.QUERIES in slot.enforced else ""
        )
    if slot is None:
        return f"not loaded: {_why_not(pid)}"
    return ", ".join(word for bit, word in _WORDS.items() if bit in slot.enforced) or "nothing: it could not start"


def _why_not(pid: int) -> str:
    """Why a process is not in its tree's region, as far as can be seen from outside."""
    return patience.ask(pid, lambda: _look(pid), "it cannot be looked at")


def _look(pid: int) -> str:
    """The same. The process chooses what is read, and the path of its program: only the kernel's own link is opened,
    which leads to that very file. Raises OSError.
    """
    words = map(os.fsdecode, read_bytes(pid, "environ", _MAX_ENVIRONMENT).split(b"\0"))
    environment = {name: value for name, _, value in (word.partition("=") for word in words)}
    program = f"/proc/{pid}/exe"
    os.stat(program)
    if preload.LIBRARY not in environment.get(names.PRELOAD, ""):
        return f"{names.PRELOAD} does not name it"
    if (switch := preload.turned_off(environment)) is not None:
        return f"{switch} is set"
    if names.REGION not in environment:
        return f"{names.REGION} is not set"
    return preload.obstacle(program).removeprefix(f"{program} ") or "it is not in its tree's region"
