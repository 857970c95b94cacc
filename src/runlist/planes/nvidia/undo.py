"""Undo as it travels: each step is one RM control of one client, in bytes that only this plane reads."""

from __future__ import annotations

import struct

from runlist.planes.nvidia.rm.client import RawControl, RmClient
from runlist.planes.nvidia.rm.transport import OpenFile

_HEAD = struct.Struct("<III")  # client, object, command; the control's parameters follow


def pack(client: int, control: RawControl) -> bytes:
    """A control of a client as one step."""
    return _HEAD.pack(client, control.object, control.command) + control.params


class Replayer:
    """Sends steps on one open file."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    def replay(self, step: bytes) -> None:
        client, obj, command = _HEAD.unpack_from(step)
        RmClient(self._file, client).send(RawControl(obj, command, step[_HEAD.size :]))

    def close(self) -> None:
        self._file.close()
