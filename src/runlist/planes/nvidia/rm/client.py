"""Calls on one open file: allocate and free RM clients, send controls."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.commands import ALLOCATIONS, COMMANDS, NVOS00_FREE, NVOS21_ALLOC, NVOS54_CONTROL, Command
from runlist.planes.nvidia.rm.transport import OpenFile
from runlist.protocol.rm_autogen import Class, Ioctl, Status
from runlist.structure import Value

_PARAMS_FIELD = NVOS54_CONTROL.offsets["params"]  # the same in NVOS21
_STATUS_FIELD = NVOS54_CONTROL.offsets["status"]
_STATUS_UNSET = Status.UNSET
_STATUS = struct.Struct("<I")


class RawControl(msgspec.Struct, frozen=True):
    """A control ready to be sent. `params` are the bytes that the driver reads."""

    object: int
    command: int
    params: bytes


class RmClient:
    """An RM client, named by its handle, on the open file that created it or a copy of that."""

    def __init__(self, file: OpenFile, handle: int) -> None:
        self.file = file
        self.handle = handle

    def send(self, control: RawControl) -> tuple[int, bytearray]:
        """Send one control; returns NV_STATUS and the parameters as the driver left them. Raises OSError."""
        params = bytearray(control.params)
        argument = bytearray(self._argument(control))
        self.file.call(Ioctl.RM_CONTROL, argument, params, _PARAMS_FIELD)
        return int(NVOS54_CONTROL.struct.unpack(argument)[-1]), params

    def again(self, control: RawControl) -> Callable[[], int]:
        """What sends a control without parameters each time it is called, in a few steps, and returns NV_STATUS or
        raises OSError.
        """
        argument, nothing, call = bytearray(self._argument(control)), bytearray(control.params), self.file.call
        number, params_at, status_of = int(Ioctl.RM_CONTROL), _PARAMS_FIELD, _STATUS.unpack_from

        def send() -> int:
            call(number, argument, nothing, params_at)
            (code,) = status_of(argument, _STATUS_FIELD)
            return int(code)

        return send

    def prepared(self, control: RawControl) -> bytes:
        """A control as a step for an actuator."""
        return self.file.prepared(
            Ioctl.RM_CONTROL, self._argument(control), control.params, _PARAMS_FIELD, _STATUS_FIELD
        )

    def _argument(self, control: RawControl) -> bytes:
        # Discovery makes thousands of these calls, so the fields of NVOS54_CONTROL go by position.
        return NVOS54_CONTROL.struct.pack(
            self.handle, control.object, control.command, 0, 0, len(control.params), _STATUS_UNSET
        )

    def control(self, obj: int, name: str, **values: Value) -> dict[str, int | bytes | tuple[int, ...]]:
        """Send the control `name` of the table to an object; returns its parameters. Raises the status' own
        exception.
        """
        command = COMMANDS[name]
        for parameters in (command.parameters, *command.older):
            taken = {key: value for key, value in values.items() if key in parameters.names}
            packed = bytes(parameters.pack(**taken)) if taken else bytes(parameters.size)
            code, params = self.send(RawControl(obj, command.number, packed))
            if code != status.INVALID_ARGUMENT:
                break
        if code != status.NV_OK:
            status.check(code, f"{name} on 0x{obj:08x} of client 0x{self.handle:08x}")
        return parameters.unpack(params)

    def allocate(self, class_: Class, parent: int, handle: int, **values: Value) -> None:
        """Allocate an object below `parent`, with a handle of our choice. Raises the status' own exception."""
        params = ALLOCATIONS[class_].pack(**values)
        argument = NVOS21_ALLOC.pack(
            root=self.handle, parent=parent, new=handle, class_=class_, params_size=len(params), status=_STATUS_UNSET
        )
        self.file.call(Ioctl.RM_ALLOC, argument, params, _PARAMS_FIELD)
        code = int(NVOS21_ALLOC.unpack(argument)["status"])  # type: ignore[arg-type]
        status.check(code, f"RM_ALLOC of class 0x{class_:x}")

    def gpu_uuid(self, subdevice: int) -> str:
        """The UUID of the GPU of a subdevice."""
        data: bytes = self.control(subdevice, "GET_GID_INFO")["data"]  # type: ignore[assignment]
        return data.partition(b"\0")[0].decode("ascii", "replace")

    def free(self, handle: int) -> None:
        """Free an object and all below it; the client's own handle frees the client."""
        argument = NVOS00_FREE.pack(root=self.handle, old=handle, status=_STATUS_UNSET)
        self.file.call(Ioctl.RM_FREE, argument, bytearray(), 0)


def raw(command: Command, obj: int, **values: Value) -> RawControl:
    """A control of the table, packed but not sent."""
    return RawControl(obj, command.number, bytes(command.parameters.pack(**values)))


def open_client(file: OpenFile) -> RmClient:
    """Allocate a root client of our own on an open file."""
    argument = NVOS21_ALLOC.pack(class_=Class.ROOT_CLIENT, status=_STATUS_UNSET)
    file.call(Ioctl.RM_ALLOC, argument, bytearray(), _PARAMS_FIELD)
    reply = NVOS21_ALLOC.unpack(argument)
    status.check(int(reply["status"]), "RM_ALLOC of a client")  # type: ignore[arg-type]
    return RmClient(file, int(reply["new"]))  # type: ignore[arg-type]


def free_client(client: RmClient) -> None:
    """Free a client and all its objects."""
    client.free(client.handle)
