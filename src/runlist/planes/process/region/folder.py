"""Making a region for a tree of processes, in its user's own directory, and removing regions left behind.

The directory is opened once, checked, and then used by its descriptor: nothing that others swap on its path counts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from runlist import trusted
from runlist.planes.process.region.file import Region
from runlist.planes.process.region.format import FILE_BYTES, HEADER, MAGIC, NO_LIMIT, OPERATIONS_AT
from runlist.planes.process.region.reading import FIXED, RegionError
from runlist.proc.process import owner_of, pid_namespace, start_of
from runlist.proc.words import own_words

_COMPLETE = re.compile(r"\d+-[0-9a-f]{12}\.region|\d+-\d+|named-\d+")
"""The names of whole regions: ours, and those of the library (`native/region`)."""

_HALF_MADE = re.compile(r"\d+-[0-9a-f]{12}\.new|\.region-[0-9a-f]{16}")

_HALF_MADE_S = 60.0
"""A half-made region is removed after this long."""

_MAGIC = HEADER.pack(magic=MAGIC)[: HEADER.offsets["magic"] + 8]
_MAX_ENVIRONMENT = 1 << 20


def create(directory: Path, *, strict: bool) -> tuple[Path, Region]:
    """A new region without limits, complete before it has its name. `directory` is ours alone.

    Raises RegionError, which says what to do.
    """
    stem = f"{os.getpid()}-{os.urandom(6).hex()}"
    name, unnamed = f"{stem}.region", f"{stem}.new"
    try:
        with _opened(directory) as folder:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(unnamed, flags, 0o600, dir_fd=folder)
            try:
                os.fchmod(fd, 0o600)  # whatever the umask
                os.posix_fallocate(fd, 0, OPERATIONS_AT)  # a disk that is full must not show as SIGBUS in a tenant
                os.ftruncate(fd, FILE_BYTES)
                os.pwrite(fd, _header(strict), 0)
                os.rename(unnamed, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(unnamed, dir_fd=folder)
                raise
    except trusted.Untrusted as error:
        raise RegionError(f"the memory region cannot be made: {error}, or use --no-preload") from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "there is no room for it: free some" if full else f"{error.strerror}: check that folder"
        raise RegionError(f"the memory region cannot be made in {directory}: {why}, or use --no-preload") from None
    return directory / name, Region(fd)


def remove(path: Path) -> None:
    """Remove a region that `create` made, if it is still there."""
    with contextlib.suppress(OSError, trusted.Untrusted), _opened(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    folder = trusted.open_folder(directory)
    try:
        yield folder
    finally:
        os.close(folder)


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
    """Remove regions of trees that are gone, and unfinished ones. Whatever has another name, another owner or another
    content is somebody's file, and stays.
    """
    with contextlib.suppress(OSError, trusted.Untrusted), _opened(directory) as folder:
        names = os.listdir(folder)
        left = [name for name in names if _COMPLETE.fullmatch(name) and _is_left(folder, name)]
        wanted = _named_somewhere(directory) if left else set()
        unwanted = [name for name in left if str(directory / name) not in wanted]
        unwanted += [name for name in names if _HALF_MADE.fullmatch(name) and _is_half_made(folder, name)]
        for name in unwanted:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


def _open(folder: int, name: str) -> int:
    """A descriptor of a file of ours in a folder. Raises OSError."""
    fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a file of ours")


def _is_half_made(folder: int, name: str) -> bool:
    """Whether a file is old and has nothing but the beginning of a region, or not even that."""
    try:
        fd = _open(folder, name)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        start = os.pread(fd, len(_MAGIC), 0)
    finally:
        os.close(fd)
    if found.st_size > FILE_BYTES or start not in (b"", bytes(len(_MAGIC)), _MAGIC):
        return False
    return time.time() - found.st_mtime > _HALF_MADE_S


def _is_left(folder: int, name: str) -> bool:
    """Whether a file is a region whose tree is gone, as far as it tells."""
    try:
        region = Region.adopt(_open(folder, name), os.geteuid())
        try:
            found = region.read()
        finally:
            region.close()
    except (OSError, RegionError):  # RegionError: no region, or one of another version
        return False
    pid, started = found.creator
    return found.pid_namespace == pid_namespace() and start_of(pid) != started and not found.living()


def _named_somewhere(directory: Path) -> set[str]:
    """The regions of a folder that the environments of our processes name. A shell in the background has no slot, but
    the commands that it starts need the region. Other users cannot open it, and reading theirs may take long.
    """
    variable = os.fsencode(f"={directory}/")
    found: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdecimal() and owner_of(int(name)) == os.geteuid():
            entries = own_words(int(name), "environ", _MAX_ENVIRONMENT)
            found.update(os.fsdecode(entry.partition(b"=")[2]) for entry in entries if variable in entry)
    return found
