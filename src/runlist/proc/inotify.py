"""Noticing without polling hard, by inotify: that processes open the GPU, and that files of a folder change.

Every process opens them again and again while it makes a context. An event does not say who did: it only says that a
look is worth it now. Processes in another mount namespace may have device nodes of their own, so the daemon also looks
now and then without one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from pathlib import Path

import msgspec


class Event(IntFlag):
    """Of inotify(7): what happened, and of what one wants to hear."""

    OPEN = 0x20
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    ISDIR = 0x40000000


_CHANGES = (
    Event.ATTRIB | Event.CLOSE_WRITE | Event.MOVED_FROM | Event.MOVED_TO | Event.CREATE | Event.DELETE
    | Event.DELETE_SELF | Event.MOVE_SELF
)  # fmt: skip
_EVENT = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """An inotify descriptor, which becomes readable when something happened."""

    def __init__(self) -> None:
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def works(self) -> bool:
        """False where the kernel gives no inotify instance (a user's limit)."""
        return self._fd >= 0

    def fileno(self) -> int:
        """The descriptor to wait on; negative where there is none."""
        return self._fd

    def add(self, path: Path | str, events: int) -> int:
        """The number of a watch. Raises OSError."""
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), int(events))
        if number < 0:
            raise OSError(ctypes.get_errno(), "cannot be watched", str(path))
        return number

    def remove(self, number: int) -> None:
        """End a watch."""
        _libc.inotify_rm_watch(self._fd, number)

    def events(self) -> Iterator[tuple[int, int, str]]:
        """What happened since it was last read: the number of a watch, events, and the name in its folder."""
        while content := self._read():
            at = 0
            while at < len(content):
                number, events, _, length = _EVENT.unpack_from(content, at)
                at += _EVENT.size + length
                yield number, events, os.fsdecode(content[at - length : at].rstrip(b"\0"))

    def drain(self) -> None:
        """Drop what happened; only that something did counts. What happens meanwhile waits for the next time: whoever
        makes more of it than can be read would otherwise have us read for ever.
        """
        self._read()

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OpenWatch(Inotify):
    """Becomes readable when one of some files is opened."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__()
        for path in paths if self.works else ():
            with contextlib.suppress(OSError):
                self.add(path, Event.OPEN)


class Changes(msgspec.Struct, frozen=True):
    """The names in a folder with which something happened; with `all` it may be any. Those that are only `made` may be
    written to yet. `moved`: the folder is another, or none.
    """

    names: frozenset[str]
    made: frozenset[str] = frozenset()
    all: bool = False
    moved: bool = False


class FolderWatch(Inotify):
    """Becomes readable when files of a folder are made, written to their end, renamed, removed, or given other
    rights.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watch = -1

    @property
    def works(self) -> bool:
        """False where the kernel gives no inotify instance, or no watch (a user's limits)."""
        return self._watch >= 0

    def watch(self, folder: int) -> None:
        """Watch an open folder, and no other."""
        if self.fileno() >= 0:
            before, self._watch = self._watch, -1
            with contextlib.suppress(OSError):
                self._watch = self.add(f"/proc/self/fd/{folder}", _CHANGES)
            if before not in (-1, self._watch):
                self.remove(before)

    def changes(self) -> Changes:
        """What happened since the last call."""
        found: set[str] = set()
        made: set[str] = set()
        every = moved = False
        for watch, events, name in self.events():
            if events & Event.Q_OVERFLOW:
                every = True
            elif watch == self._watch:
                moved |= bool(events & (Event.DELETE_SELF | Event.MOVE_SELF | Event.IGNORED))
                every |= not name
                (made if events & Event.CREATE else found).update({name} - {""})
        return Changes(frozenset(found), frozenset(made - found), every, moved)

    def close(self) -> None:
        """Close the descriptor."""
        super().close()
        self._watch = -1
