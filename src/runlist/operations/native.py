"""The library's functions, as they are called from Python. Names begin with `rl_operations_`."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import fields

from runlist.errors import NotSupportedError
from runlist.operations.admission import Admission
from runlist.operations.rules.interface import Counters
from runlist.protocol import environment_autogen as names

_LATENCIES = 1024


def library() -> ctypes.CDLL:
    """Runlist's, in this process. Raises NotSupportedError where it is not."""
    found = ctypes.CDLL(None)
    if not hasattr(found, "rl_operations_start"):
        raise NotSupportedError(
            f"the library is not in this process: {names.OPERATIONS}=threads runlist run -- COMMAND"
        )
    return found


def own_client() -> int | None:
    """Which client this process is, with all its threads, under MPS; None where its threads are clients."""
    if "/" not in os.environ.get(names.OPERATIONS, ""):
        return None
    text = os.environ.get(names.OPERATIONS_CLIENT, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


_REFUSALS = {
    errno.ENOENT: "none runs in this process: start one",
    errno.EALREADY: "one runs in this process already: stop it first",
    errno.ENOSPC: "there is no room for more",
    errno.ENOSYS: f"the library's hooks are not in force: {names.OPERATIONS}=threads runlist run -- COMMAND",
}


def call(lib: ctypes.CDLL, name: str, *arguments: object) -> int:
    """What a function returns. Raises NotSupportedError for an error."""
    code: int = getattr(lib, f"rl_operations_{name}")(*arguments)
    if code < 0:
        why = _REFUSALS.get(-code, os.strerror(-code))
        raise NotSupportedError(f"the scheduler of operations refuses this ({name}): {why}")
    return code


def runs(lib: ctypes.CDLL) -> bool:
    """Whether a scheduler was started in this process."""
    return bool(lib.rl_operations_admission(None) != -errno.ENOENT)


def admit(lib: ctypes.CDLL, admission: Admission) -> None:
    """Have it in force from the next operation on."""
    gate = -1 if admission.gate_ns is None else admission.gate_ns
    structure = _Admission(
        ctypes.sizeof(_Admission), admission.bits(), admission.sms, admission.copies, gate, admission.ahead_ns or 0,
        admission.rest_ns,
    )  # fmt: skip
    call(lib, "admission", ctypes.byref(structure))


def counters(lib: ctypes.CDLL, client: int) -> Counters:
    """What was counted of a client."""
    found = _Counters()
    call(lib, "counters", client, ctypes.byref(found))
    return Counters(**{one.name: getattr(found, one.name) for one in fields(Counters)})


def latencies(lib: ctypes.CDLL) -> list[int]:
    """How long client 0's requests took that nobody was told of yet, in ns, oldest first."""
    room = (ctypes.c_uint64 * _LATENCIES)()
    return list(room[: call(lib, "latencies", room, _LATENCIES)])


class _Admission(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("size", "beside", "sms", "copies")),
        *((name, ctypes.c_int64) for name in ("gate_ns", "ahead_ns", "rest_ns")),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((one.name, ctypes.c_uint64) for one in fields(Counters))
