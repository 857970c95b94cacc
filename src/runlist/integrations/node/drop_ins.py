"""The drop-ins of this node's containers: a file each, in the folder that the daemon reads (docs/rules.md)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path

from runlist import trusted
from runlist.errors import RunlistError
from runlist.integrations import drop_ins

_ID = r"[0-9a-f]{64}"
FILE = re.compile(rf"kubernetes-({_ID})\.toml")
_HALF = re.compile(rf"\.kubernetes-{_ID}\..*")
_LOCK = ".kubernetes.lock"
_MAX_FILE = 1 << 16


def is_id(text: str) -> bool:
    """Whether a container's id is one as the daemon finds it in cgroups: nothing else is a file's name."""
    return re.fullmatch(_ID, text) is not None


def file_name(container: str) -> str:
    """The name of a container's file."""
    return f"kubernetes-{container}.toml"


def rule_text(container: str, labels: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """The drop-in of a container."""
    head = "Written by `runlist node`, which also removes it."
    return drop_ins.rule_text(head, {"container": container}, labels, settings)


class DropIns:
    """The files of one folder, by container id. What a former agent left is taken up. Of two agents one is refused.

    Methods raise RunlistError or OSError; what could not be written is tried again with the next call.
    """

    def __init__(self, folder: Path, *, write: bool = True) -> None:
        self.path = folder
        self._write = write
        self._folder = drop_ins.Folder(folder)
        self._lock = -1
        self._files: dict[str, str] = {}
        self._own: set[str] = set()
        self.writes = 0

    @property
    def there(self) -> set[str]:
        """The containers that have a file."""
        return set(self._files)

    def has_left(self, container: str) -> bool:
        """Whether a container has a file that another agent left: it is not of this one."""
        said = self._files.get(container, "")
        return container not in self._own and f'container = "{container}"' in said

    def take_up(self) -> None:
        """Look at the folder: what is in it is ours from now on. It is made where it is missing."""
        if self._write and not self._folder.is_current:
            self.close()
            self._folder.open()
            self._take_lock()
        try:
            names = self._folder.names() if self._write else os.listdir(self.path)
        except FileNotFoundError:
            names = []
        found = {match[1]: name for name in names if (match := FILE.fullmatch(name))}
        self._files = {one: self._files[one] if one in self._files else self._read(name) for one, name in found.items()}
        self._own &= found.keys()
        if self._write:
            for name in filter(_HALF.fullmatch, names):
                with contextlib.suppress(OSError):
                    self._folder.remove(name)

    def put(self, container: str, text: str) -> bool:
        """Write a container's file, unless it says so already."""
        if self._files.get(container) == text:
            return False
        if self._write:
            self._folder.put(file_name(container), text)
        self._files[container] = text
        self._own.add(container)
        self.writes += 1
        return True

    def remove(self, container: str) -> None:
        """Remove a container's file."""
        if self._write:
            self._folder.remove(file_name(container))
        self._files.pop(container, None)
        self._own.discard(container)

    def close(self) -> None:
        """Let go of the folder; the files stay."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._folder.close()

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._folder.fd)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunlistError(f"another `runlist node` writes to {self.path}: end it first") from None

    def _read(self, name: str) -> str:
        """What a file says, or nothing, which no file of ours does: then it is written anew."""
        path = self.path / name
        try:
            with open(trusted.open_in(self._folder.fd, name, path) if self._write else path, "rb") as file:
                return file.read(_MAX_FILE).decode()
        except (RunlistError, OSError, UnicodeDecodeError):
            return ""
