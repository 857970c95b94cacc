"""Files that are written in whatever folder somebody named. They are replaced at once: whoever reads one sees what it
was or what it is, and never half of it.

The folder may be a stranger's, as where root works in one. So a path is walked, and its last folder stays the one that
was reached; links on it are followed only if they are ours or root's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from runlist.trusted import from_outside

_MAX_LINKS = 40
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_HIDDEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file, or put this one in its place. Raises OSError, and leaves what was there: devices, pipes and links
    among it, which others know by that name.
    """
    with _folder_of(path, links=False) as (folder, name):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
                raise OSError(errno.EINVAL, "it is there, and no regular file", str(path))
        hidden = f".{name}.{secrets.token_hex(4)}"
        try:
            with open(os.open(hidden, _HIDDEN, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
            os.replace(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(hidden, dir_fd=folder)
            raise


def descriptor(path: Path) -> int:
    """One of a file that is to be written from its beginning. Raises OSError."""
    with _folder_of(path, links=True) as (folder, name):
        follow = 0 if _is_the_kernels(folder) else os.O_NOFOLLOW  # a link there is made by us, and swapped by nobody
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | follow
        return os.open(name, flags, 0o666, dir_fd=folder)


@contextlib.contextmanager
def _folder_of(path: Path, *, links: bool) -> Iterator[tuple[int, str]]:
    """The folder that a path is in, and its name there; with `links` those of what its last component leads to."""
    rest, followed = deque(Path(os.path.abspath(path)).parts[1:] or (".",)), 0
    folder = os.open("/", _PLACE | os.O_DIRECTORY)
    try:
        while True:
            name = rest.popleft()
            target = _target(name, folder, path) if rest or links else None
            if target is not None:
                if (followed := followed + 1) > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                rest.extendleft(reversed(target.parts))
                if not target.is_absolute():
                    continue
                rest.popleft()
                below = os.open("/", _PLACE | os.O_DIRECTORY)
            elif not rest:
                break
            else:
                below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, name
    finally:
        os.close(folder)


def _target(name: str, folder: int, path: Path) -> Path | None:
    """What a link leads to; None for what is none, or is a link of the kernel's own, which leads to no path."""
    try:
        fd = os.open(name, _PLACE, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISLNK(found.st_mode):
            return None
        if found.st_uid not in (0, os.geteuid(), from_outside()):
            raise OSError(errno.EPERM, f"a link of user {found.st_uid}'s leads elsewhere", str(path))
        target = os.readlink("", dir_fd=fd)
        return None if _is_the_kernels(folder) and not target.startswith("/") and ":" in target else Path(target)
    finally:
        os.close(fd)


def _is_the_kernels(folder: int) -> bool:
    """Whether a folder is one of /proc."""
    return os.fstat(folder).st_dev == os.stat("/proc").st_dev
