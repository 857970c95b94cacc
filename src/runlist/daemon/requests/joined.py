"""Which clients of the driver processes have told of: who tells of one once more has made a compute engine of it."""

from __future__ import annotations

import time

import msgspec

MOST = 4096
"""So many processes are remembered, and the first of them forgotten."""
LOOKS_A_SECOND = 20
"""At a process for what it says, which may be anything. More are left to the ordinary looks."""


class _Told(msgspec.Struct):
    client: int
    second: float = float("-inf")
    looks: int = 0


class Joined:
    """The last client of each process."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}

    def computes(self, pid: int, client: int) -> bool:
        """Take what a process tells. Whether it is worth a look at once."""
        told = self._told.pop(pid, None) or _Told(-1)
        self._told[pid] = told
        if len(self._told) > MOST:
            del self._told[next(iter(self._told))]
        if told.client != client:
            told.client = client
            return False
        now = time.monotonic()
        if now - told.second >= 1:
            told.second, told.looks = now, 0
        told.looks += 1
        return told.looks <= LOOKS_A_SECOND
