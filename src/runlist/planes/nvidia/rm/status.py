"""NV_STATUS as exceptions.

Every status but NV_OK has its own exception class, `error_class(status)`, named after the driver's:
NV_ERR_INVALID_CLIENT raises `InvalidClient`. Those that a caller meets in practice say what to do about it.
"""

from __future__ import annotations

from functools import cache

from runlist.errors import ContextGone, ExitCode, RunlistError
from runlist.planes.nvidia.rm.status_autogen import NAMES
from runlist.protocol.rm_autogen import Status

NV_OK = Status.OK
NO_PERMISSION = Status.INSUFFICIENT_PERMISSIONS
INVALID_ARGUMENT = Status.INVALID_ARGUMENT
MISSING = (Status.INVALID_CLIENT, Status.OBJECT_NOT_FOUND, Status.INVALID_OBJECT_HANDLE, Status.INVALID_CHANNEL)
"""There is no such client, object or, in a list, channel; INVALID_OBJECT_HANDLE is said of a client that is just being
freed, too.
"""

_OTHER_PARAMETERS = "this driver takes other parameters: run `runlist doctor` and report the driver's version"
_ADVICE = {
    "NV_ERR_INSUFFICIENT_PERMISSIONS": "this control needs root or CAP_SYS_NICE: run the daemon as root to use it",
    "NV_ERR_INVALID_ACCESS_TYPE": "the descriptor has no right to this object: attach again",
    "NV_ERR_INVALID_ARGUMENT": _OTHER_PARAMETERS,
    "NV_ERR_INVALID_CLIENT": "the client was freed, or belongs to another open file: the process closed its context",
    "NV_ERR_INVALID_PARAM_STRUCT": _OTHER_PARAMETERS,
    "NV_ERR_INVALID_STATE": "another client has set this, or the channel cannot change now: try again later",
    "NV_ERR_OBJECT_NOT_FOUND": "the process freed this object: attach again",
    "NV_ERR_INVALID_OBJECT_HANDLE": "the process freed this object: attach again",
    "NV_ERR_NOT_SUPPORTED": "this driver or engine does not have this control",
    "NV_ERR_INSUFFICIENT_RESOURCES": "the driver is out of resources: close other GPU programs and try again",
    "NV_ERR_NO_MEMORY": "the driver is out of memory: close other GPU programs and try again",
    "NV_ERR_TIMEOUT": "the GPU did not answer in time: try again, and look at the kernel log for Xid errors",
    "NV_ERR_GPU_IS_LOST": "the GPU fell off the bus: look at the kernel log for Xid errors",
    "NV_ERR_RESET_REQUIRED": "the GPU needs a reset: look at the kernel log for Xid errors",
}
_EXIT_CODES = {
    "NV_ERR_INSUFFICIENT_PERMISSIONS": ExitCode.NO_PERMISSION,
    "NV_ERR_INVALID_ACCESS_TYPE": ExitCode.NO_PERMISSION,
    "NV_ERR_INVALID_CLIENT": ExitCode.NO_TARGET,
    "NV_ERR_OBJECT_NOT_FOUND": ExitCode.NO_TARGET,
    "NV_ERR_INVALID_OBJECT_HANDLE": ExitCode.NO_TARGET,
    "NV_ERR_NOT_SUPPORTED": ExitCode.NOT_SUPPORTED,
}


class RmError(RunlistError):
    """A call that RM refused. `status` is the NV_STATUS number, `name` its name, `call` what was asked."""

    def __init__(self, status: int, call: str) -> None:
        self.status = status
        self.name = NAMES.get(status, f"NV_STATUS 0x{status:02X}")
        self.call = call
        advice = _ADVICE.get(self.name, "the driver refused: look at the kernel log")
        super().__init__(f"{call}: {self.name} (0x{status:02X}): {advice}", _EXIT_CODES.get(self.name))


class InsufficientPermissions(RmError):
    """The control is privileged (0x1B)."""


class InvalidArgument(RmError):
    """A value or the size of the parameters is wrong (0x1F)."""


class InvalidClient(RmError, ContextGone):
    """The client handle does not exist on this open file (0x23)."""


class NotSupported(RmError):
    """The object's class, or this driver, does not know the control (0x56)."""


class ObjectNotFound(RmError):
    """The client has no such object (0x57)."""


class InvalidObjectHandle(ObjectNotFound):
    """The same, said of a client that is just being freed (0x33)."""


def _class_name(status_name: str) -> str:
    return "".join(word.capitalize() for word in status_name.removeprefix("NV_ERR_").split("_"))


_BY_NAME: dict[str, type[RmError]] = {
    cls.__name__: cls
    for cls in (
        InsufficientPermissions,
        InvalidArgument,
        InvalidClient,
        InvalidObjectHandle,
        NotSupported,
        ObjectNotFound,
    )
}


def error_class(status: int) -> type[RmError]:
    """The exception class of an NV_STATUS; `RmError` itself for a number that this version does not know."""
    name = NAMES.get(status)
    return RmError if name is None or status == NV_OK else _class(name)


@cache  # a process meets few of more than a hundred
def _class(name: str) -> type[RmError]:
    return _BY_NAME.get(_class_name(name)) or type(_class_name(name), (RmError,), {"__doc__": name})


def check(status: int, call: str) -> None:
    """Raise the status' own exception unless it is NV_OK."""
    if status != NV_OK:
        raise error_class(status)(status, call)
