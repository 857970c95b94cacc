"""Making a region for a tree of processes, in its user's own directory, and removing regions left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from runlist.planes.process.region.file import FIXED, Region, RegionError
from runlist.planes.process.region.format import FILE_BYTES, HEADER, NO_LIMIT
from runlist.proc.process import pid_namespace, start_of

_SUFFIX = ".region"
_HALF_MADE_S = 60.0
"""A half-made or foreign file is removed after this long."""


def create(directory: Path, *, strict: bool) -> tuple[Path, Region]:
    """A new region without limits, complete before it has its name. `directory` is ours alone.

    Raises RegionError, which says what to do.
    """
    path = directory / f"{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"
    unnamed = path.with_suffix(".new")
    try:
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask
            os.posix_fallocate(fd, 0, FILE_BYTES)  # a disk that is full must not show as SIGBUS in a tenant
            os.pwrite(fd, _header(strict), 0)
            os.rename(unnamed, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(unnamed)
            raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "there is no room for it: free some" if full else f"{error.strerror}: check that folder"
        raise RegionError(f"the memory region cannot be made in {directory}: {why}, or use --no-preload") from None
    return path, Region(fd)


def _header(strict: bool) -> bytes:
    pid = os.getpid()
    return bytes(
        HEADER.pack(
            **FIXED,
            creator_start=start_of(pid) or 0,
            pid_namespace=pid_namespace(),
            creator_pid=pid,
            owner=os.geteuid(),
            memory_value=NO_LIMIT,
            cap_value=NO_LIMIT,
            strict=int(strict),
        )
    )


def sweep(directory: Path) -> None:
    """Remove regions of trees that are gone, and unfinished files."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if _is_left_over(path):
                path.unlink()


def _is_left_over(path: Path) -> bool:
    try:
        region = Region.adopt(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), os.geteuid())
    except RegionError:
        return time.time() - path.lstat().st_mtime > _HALF_MADE_S
    try:
        found = region.read()
    finally:
        region.close()
    pid, started = found.creator
    if found.pid_namespace != pid_namespace() or start_of(pid) == started or found.living():
        return False
    return not _is_named(path)


def _is_named(path: Path) -> bool:
    """Whether a process' environment names a region. A shell in the background has no slot, but the commands that it
    starts need the region.
    """
    value = os.fsencode(f"={path}\0")
    for process in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's: that cannot open the region
            if value in (process / "environ").read_bytes():
                return True
    return False
