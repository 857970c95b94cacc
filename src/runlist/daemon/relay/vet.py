"""Which of a stranger's descriptors may reach the daemon: looked at in a relay, where looking may hang."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from runlist.planes.process.region import Region, RegionError
from runlist.proc.file_system import LOCAL, file_system

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

_REFUSAL = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_MAX_REASON = 400


def vetted(plane: Plane, fd: int, owner: int) -> int:
    """A descriptor for the daemon in place of one that user `owner` sent, which is taken over: a control file of the
    driver, a region opened anew, or else a file of ours that says why it was refused (`refusal`).
    """
    try:
        return _control_or_region(plane, fd, owner)
    except RegionError as error:
        reason = str(error)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    return _refused(reason)


def _control_or_region(plane: Plane, fd: int, owner: int) -> int:
    try:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:  # whoever serves the file can say anything of it
            raise RegionError("it is not open")
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFSOCK and file_system(fd) not in LOCAL:
            raise RegionError("it is on a file system that a program or another machine serves")
    except BaseException:
        os.close(fd)
        raise
    return _region(fd, owner) if kind == stat.S_IFREG else _control(plane, fd)


def _control(plane: Plane, fd: int) -> int:
    file = None
    try:
        file = plane.adopt(fd)
    except OSError:  # it was not taken over
        os.close(fd)
    if file is None:
        raise RegionError("it is no file")
    try:
        return os.dup(file.fileno())
    finally:
        file.close()


def _region(fd: int, owner: int) -> int:
    region = Region.adopt(fd, owner)
    region.reopen()
    return region.fileno()


# -- refusals --------------------------------------------------------------------------------------


def _refused(reason: str) -> int:
    fd = os.memfd_create("refused", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, reason.encode()[:_MAX_REASON])
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _REFUSAL)
    return fd


def refusal(fd: int) -> str:
    """Why a relay refused what was sent in this descriptor's place; empty for any other file. No stranger can make such
    a file: it belongs to the daemon's user.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return ""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) == _REFUSAL
    except OSError:
        return ""
    return os.pread(fd, _MAX_REASON, 0).decode(errors="replace") if sealed else ""
