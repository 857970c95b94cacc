"""Undo as it travels: each step is one RM control of one client, in bytes that only this plane reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import RawControl, RmClient, raw
from runlist.planes.nvidia.rm.commands import COMMANDS
from runlist.planes.nvidia.rm.transport import OpenFile

_DISABLE = COMMANDS["FIFO_DISABLE_CHANNELS"]
_HEAD = struct.Struct("<III")  # client, object, command; the control's parameters follow


def pack(client: int, control: RawControl) -> bytes:
    """A control of a client as one step."""
    return _HEAD.pack(client, control.object, control.command) + control.params


def send(client: RmClient, control: RawControl) -> list[int]:
    """Send a step; what the driver answers. It refuses a list of channels of which the process has freed one: then they
    go one by one. Raises OSError.
    """
    code, _ = client.send(control)
    if code != status.NV_OK and control.command == _DISABLE.number:
        return [client.send(one)[0] for one in _one_by_one(control)] or [code]
    return [code]


def _one_by_one(control: RawControl) -> Iterator[RawControl]:
    values: dict[str, Any] = dict(_DISABLE.parameters.unpack(control.params))
    for index in range(values.pop("count")):
        only = {name: [values[name][index]] for name in ("clients", "channels")}
        yield raw(_DISABLE, control.object, **{**values, **only, "count": 1})


class Replayer:
    """Sends steps on one open file."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    def replay(self, step: bytes) -> None:
        client, obj, command = _HEAD.unpack_from(step)
        send(RmClient(self._file, client), RawControl(obj, command, step[_HEAD.size :]))

    def close(self) -> None:
        self._file.close()
