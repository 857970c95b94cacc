"""Files and folders that only this user and root can change or swap.

A path is walked from the top, each component opened without following links and checked by its descriptor. What comes
of it is that very file: nothing can take its place between the check and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from runlist.errors import NoPermissionError

_MAX_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Untrusted(NoPermissionError):
    """Somebody else could change or swap a file; the message names the part of its path, and what to do."""


class NoFile(OSError):
    """A pipe, a socket or the like where there should be a file."""


class _Place(NamedTuple):
    """An open component: its O_PATH descriptor, its path, and what the kernel says of it."""

    fd: int
    path: Path
    found: os.stat_result

    @classmethod
    def top(cls) -> _Place:
        fd = os.open("/", _FLAGS | os.O_DIRECTORY)
        return cls(fd, Path("/"), os.fstat(fd))

    def below(self, name: str, make: int | None) -> _Place:
        """What has a name here; where nothing has, a folder is made if `make` gives its mode."""
        try:
            fd = os.open(name, _FLAGS, dir_fd=self.fd)
        except FileNotFoundError:
            if make is None:
                raise
            with contextlib.suppress(FileExistsError), usable():  # somebody was quicker: it is checked like any other
                os.mkdir(name, make, dir_fd=self.fd)
            fd = os.open(name, _FLAGS, dir_fd=self.fd)
        return _Place(fd, self.path / name, os.fstat(fd))


@contextlib.contextmanager
def usable() -> Iterator[None]:
    """What is made meanwhile is of use to its owner, whatever the umask: a folder that even its owner may not enter is
    in everybody's way from then on.
    """
    before = os.umask(0o077)
    os.umask(before & 0o077)
    try:
        yield
    finally:
        os.umask(before)


def open_file(path: Path) -> int:
    """A descriptor of a plain file, for reading. The file and all folders above it are this user's or root's, and
    nobody else can write them; its own folder is none that is shared, such as /tmp.

    Raises Untrusted, or OSError as the kernel does.
    """
    place, folder = _walk(path, links=True)
    try:
        if stat.S_ISDIR(place.found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(place.found.st_mode):
            raise NoFile(errno.EINVAL, "not a file")
        _check(place)
        if _others_write(folder.found):
            raise Untrusted(f"others can put files into {folder.path}: move {place.path} to a folder of your own")
        return os.open(f"/proc/self/fd/{place.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place.fd)
        os.close(folder.fd)


def open_folder(path: Path, *, make: int | None = None, above: bool = True) -> int:
    """A descriptor of a folder that is this user's alone; with `make` what is missing is made, the last with this
    mode, and without `above` the last alone. The last component is no link.

    Raises Untrusted, or OSError as the kernel does.
    """
    place, parent = _walk(path, links=False, make=make, make_above=above)
    try:
        found = place.found
        if stat.S_ISLNK(found.st_mode):
            raise Untrusted(f"{place.path} is a link, not a folder")
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if found.st_uid != os.geteuid():
            raise Untrusted(f"{place.path} belongs to somebody else")
        if found.st_mode & _OTHERS_WRITE:
            raise Untrusted(f"{place.path} is a folder of several users: others can write there")
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.fd)
    finally:
        os.close(place.fd)
        os.close(parent.fd)


def make_file(path: Path, *, make: int | None = None, flags: int = 0) -> int:
    """A descriptor, for reading and writing, of a file in such a folder, which is made for this user alone where there
    is none. The file is no link; whose one that is there is remains to be looked at.
    """
    folder = open_folder(path.parent, make=make)
    try:
        wanted = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags
        with usable():
            return os.open(path.name, wanted, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def open_in(folder: int, name: str, shown: Path) -> int:
    """A descriptor of a plain file, for reading, in a folder that `open_folder` opened. It is this user's or root's,
    and nobody else can write it; it is no link. Opening waits for nobody. `shown` is its path, for messages.

    Raises Untrusted, NoFile, or OSError as the kernel does.
    """
    fd = os.open(name, _FLAGS, dir_fd=folder)
    try:
        place = _Place(fd, shown, os.fstat(fd))
        if stat.S_ISLNK(place.found.st_mode):
            raise Untrusted(f"{shown} is a link: put the file itself there")
        if not stat.S_ISREG(place.found.st_mode):
            raise NoFile(errno.EINVAL, "not a file")
        _check(place)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(fd)


def check(path: str | Path) -> None:
    """Raise Untrusted for a file or folder that somebody else could change or swap, OSError for one that is missing."""
    place, above = _walk(path, links=True)
    os.close(above.fd)
    try:
        _check(place)
    finally:
        os.close(place.fd)


def _walk(path: str | Path, *, links: bool, make: int | None = None, make_above: bool = True) -> tuple[_Place, _Place]:
    """The last component of a path, unchecked, and the folder that it is in. Without `links` the last may be one."""
    rest = deque(Path(os.path.abspath(path)).parts[1:])
    followed = 0
    here, above = _Place.top(), _Place.top()
    try:
        while rest:
            _check(here)
            name = rest.popleft()
            last = not rest
            place = here.below(name, make if make is None or last else 0o755 if make_above else None)
            if stat.S_ISLNK(place.found.st_mode) and (links or not last):
                try:
                    followed += 1
                    if followed > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    _check_owner(place)
                    target = Path(os.readlink("", dir_fd=place.fd))
                finally:
                    os.close(place.fd)
                rest.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
                if target.is_absolute():
                    os.close(here.fd)
                    here = _Place.top()
                continue
            if not last and not stat.S_ISDIR(place.found.st_mode):
                os.close(place.fd)
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place.path))
            os.close(above.fd)
            above, here = here, place
    except BaseException:
        os.close(here.fd)
        os.close(above.fd)
        raise
    return here, above


def _check(place: _Place) -> None:
    """Raise Untrusted for what somebody else can change. In a folder with the sticky bit they cannot touch what is not
    theirs.
    """
    _check_owner(place)
    sticky = stat.S_ISDIR(place.found.st_mode) and place.found.st_mode & stat.S_ISVTX
    if _others_write(place.found) and not sticky:
        raise Untrusted(f"others can write to {place.path}: take that right away (chmod go-w {place.path})")


def _check_owner(place: _Place) -> None:
    owner = place.found.st_uid
    if owner in (0, os.geteuid()) or (stat.S_ISDIR(place.found.st_mode) and owner == from_outside()):
        return
    whose = "root" if os.geteuid() == 0 else "you"
    raise Untrusted(f"{place.path} belongs to user {owner}: it must belong to {whose} (chown)")


def _others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return True
    return bool(found.st_mode & stat.S_IWOTH)


@cache
def _is_private(gid: int) -> bool:
    """Whether a group is this user's own and nobody else's, as most distributions make one for each user. Root's is
    not: others may be in it.
    """
    import grp
    import pwd

    if os.geteuid() == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@cache
def from_outside() -> int:
    """The user that folders seem to have which come from outside our user namespace, such as the machine's own /; -1
    where we are in none.
    """
    try:
        inside, outside, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
        if (inside, outside, count) == (0, 0, (1 << 32) - 1):
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return -1
