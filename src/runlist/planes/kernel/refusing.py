"""The program that refuses requests: it is attached where the kernel asks its security modules, if BPF is one of them.

Whether it does refuse is tried: a kernel that has such programs, and was not told to ask them, takes one and never
runs it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping

from runlist.planes.kernel import bpf
from runlist.planes.kernel.kernel_types import KernelTypes
from runlist.planes.kernel.program import Program
from runlist.protocol.kernel_autogen import PROBE

FORBIDDEN = "the kernel lets nobody load programs for security hooks: start one that does, with bpf in lsm="
"""EPERM, though we have the rights, and before its verifier was asked: it was built or changed so."""
NEVER_ASKED = "the kernel does not ask it: start Linux with bpf among the names of lsm="


def attach(maps: Mapping[str, int], program: Program, licence: str, types: KernelTypes, held: list[int]) -> str:
    """Attach it; why it is not in force, or nothing. What keeps it attached goes to `held`."""
    if types.unknown:
        return types.unknown
    if not types.hook:
        return "the kernel was built without BPF_LSM"
    try:
        code = bpf.load_program(
            program.name, program.with_maps(maps, types.places), licence, bpf.ProgramType.HOOK, hook=types.hook
        )  # fmt: skip
    except OSError as error:
        before = error.errno == errno.EPERM and isinstance(error, bpf.Refused) and not error.log
        return FORBIDDEN if before else bpf.why_not(program.name, error)
    try:
        link = bpf.attach_hook(code)
    except OSError as error:
        return f"the kernel does not attach {program.name}: {error.strerror}"
    finally:
        os.close(code)
    if not _refuses():
        os.close(link)
        return NEVER_ASKED
    held.append(link)
    return ""


def _refuses() -> bool:
    """Whether a request of ours is refused that no driver knows."""
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, PROBE)
    except OSError as error:
        return error.errno == errno.EPERM
    finally:
        os.close(fd)
    return False
