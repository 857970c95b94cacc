"""What the loader may do: it keeps two rights, and reads the numbers of tracepoints."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from runlist.proc.process import capable, has_the_kernels_pids

PERFMON, BPF = 38, 39
_TRACING = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
LOCKED_DOWN = "it is locked down (confidentiality), and lets nobody look into it: start Linux with lockdown=integrity"
_CAPSET_SYSCALL = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_SET_NO_NEW_PRIVILEGES, _SET_SECURE_BITS = 38, 28
_NO_ROOT_LOCKED = 0b11
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_CREATE = 6

_FIELD = re.compile(r"field:[^;]*?(\w+)(?:\[[^\]]*\])?;\s*offset:(\d+);")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def hindered() -> str:
    """Why the kernel's programs would be of no use to this process, or why it may not load them; or nothing."""
    if not has_the_kernels_pids():
        return "runlist is in a pid namespace, where the kernel's process ids are others: run its daemon outside"
    if not (capable(BPF) and capable(PERFMON)):
        return "no right to load programs into the kernel (CAP_BPF, CAP_PERFMON): run the daemon as root"
    return ""


def keep_two() -> None:
    """Give all rights up but CAP_BPF and CAP_PERFMON, for good: no program that is started gets any back."""
    _libc.prctl(_SET_SECURE_BITS, _NO_ROOT_LOCKED, 0, 0, 0)  # where we may; the next line does as well for us
    if _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    high = 1 << PERFMON - 32 | 1 << BPF - 32
    number = _CAPSET_SYSCALL[os.uname().machine]
    header = ctypes.create_string_buffer(struct.pack("<Ii", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(struct.pack("<6I", 0, 0, 0, high, high, 0))
    _call(number, header, data)


def open_tracing() -> int:
    """A descriptor of the tracepoints' folder: of the mounted one, or of one that nobody else sees. Raises OSError."""
    for path in _TRACING:
        if Path(path, "events").is_dir():
            return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = _call(_SYS_FSOPEN, ctypes.c_char_p(b"tracefs"), ctypes.c_uint(1))
    try:
        _call(_SYS_FSCONFIG, ctypes.c_int(made), ctypes.c_uint(_CREATE), None, None, ctypes.c_int(0))
        return _call(_SYS_FSMOUNT, ctypes.c_int(made), ctypes.c_uint(1), ctypes.c_uint(0))
    finally:
        os.close(made)


def is_locked_down() -> bool:
    """Whether the kernel lets nobody look into it."""
    with contextlib.suppress(OSError):
        return "[confidentiality]" in _LOCKDOWN.read_text()
    return False


def no_tracepoint(name: str, error: OSError) -> str:
    """What to say of a kernel that does not tell of a tracepoint."""
    if is_locked_down():
        return f"the kernel tells of no tracepoints: {LOCKED_DOWN}"
    return f"this kernel has no tracepoint {name} ({error.strerror})"


def tracepoint_id(tracing: int, name: str) -> int:
    """The number of a tracepoint `group/name`. Raises OSError where this kernel has none."""
    fd = os.open(f"events/{name}/id", os.O_RDONLY | os.O_CLOEXEC, dir_fd=tracing)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)


def fields(tracing: int, name: str) -> Mapping[str, int]:
    """Where the fields of a tracepoint are. Raises OSError where this kernel has none."""
    fd = os.open(f"events/{name}/format", os.O_RDONLY | os.O_CLOEXEC, dir_fd=tracing)
    with open(fd) as file:
        return {field: int(at) for field, at in _FIELD.findall(file.read())}
