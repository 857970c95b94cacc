"""The names of a daemon's maps, for people and for the next daemon.

They are in /sys/fs/bpf/runlist/PID, beside a link to the socket on which that daemon served, and one that says when it
began: only the next daemon on that socket goes on with what it left when it was killed. By default everybody may make
folders and links in this file system. So nothing is read or removed unless the folder above is ours alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from runlist import trusted
from runlist.errors import RunlistError
from runlist.planes.kernel import bpf, maps
from runlist.proc.process import start_of

FOLDER = Path("/sys/fs/bpf/runlist")
FOREIGN_S = 600.0
"""What a daemon on another socket left stays for its successor, unless it is older than this."""

_SOCKET, _BEGAN = "socket", "began"


class Names(msgspec.Struct, frozen=True):
    """The folder of one daemon's maps. `above` has the folders of all daemons, `pid` is its process, and `socket` the
    path of the socket on which it serves.
    """

    above: Path
    pid: int
    socket: str

    @property
    def folder(self) -> Path:
        """Where its maps have names."""
        return self.above / str(self.pid)

    def left(self) -> Path | None:
        """The folder of the maps that were left for this daemon: by a loader of its own that was killed, or by the
        youngest of the daemons on its socket that are no more.
        """
        with contextlib.suppress(OSError, RunlistError):
            self._check()
            found = [
                each for each in self._folders() if (each == self.folder or _is_gone(each)) and self._is_ours(each)
            ]
            return min((each for each in found if any(each.iterdir())), key=_age_s, default=None)
        return None

    def give(self, descriptors: Mapping[str, int]) -> str:
        """Give the maps names. Returns why that is not possible, or nothing."""
        try:
            self._check(make=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            for old in self.folder.iterdir():  # of a loader that was killed
                old.unlink()
            (self.folder / _SOCKET).symlink_to(self.socket)
            (self.folder / _BEGAN).symlink_to(str(start_of(self.pid)))
            for each in maps.MAPS:
                if each.pinned:
                    bpf.pin(descriptors[each.name], str(self.folder / each.name))
        except (OSError, RunlistError) as error:
            self.take_away()
            why = error.strerror if isinstance(error, OSError) else str(error)
            return f"maps have no names in {self.folder} ({why})"
        return ""

    def take_away(self) -> None:
        """Take its names away, and the folder."""
        with contextlib.suppress(OSError, RunlistError):
            self._check()
            _remove(self.folder)

    def take_stale_away(self) -> None:
        """Take the folders of daemons away that are no more, but for what their own successors may come for."""
        with contextlib.suppress(OSError, RunlistError):
            self._check()
            for each in self._folders():
                if _is_gone(each) and (self._is_ours(each) or _age_s(each) > FOREIGN_S):
                    _remove(each)

    def _check(self, *, make: bool = False) -> None:
        """Once the folder above is ours alone, nobody can put anything into those below."""
        os.close(trusted.open_folder(self.above, make=0o700 if make else None))

    def _folders(self) -> Iterator[Path]:
        for each in self.above.iterdir():
            if each.name.isdecimal():
                yield each

    def _is_ours(self, folder: Path) -> bool:
        try:
            return os.readlink(folder / _SOCKET) == self.socket
        except OSError:
            return False


def _is_gone(folder: Path) -> bool:
    """Whether its process has ended: another one may have its number."""
    began = start_of(int(folder.name))
    try:
        return began is None or os.readlink(folder / _BEGAN) != str(began)
    except OSError:  # it is being made, or of an older version
        return began is None


def _age_s(folder: Path) -> float:
    return time.time() - folder.stat().st_mtime


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for name in folder.iterdir():
            name.unlink()
        folder.rmdir()
