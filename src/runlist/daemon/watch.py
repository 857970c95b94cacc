"""Noticing that processes open the GPU, without polling hard: inotify on the driver's device nodes.

Every process opens them again and again while it makes a context. An event does not say who; it only says that looking
is worth it now. Processes in another mount namespace may have device nodes of their own, so the manager also looks now
and then unasked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_IN_OPEN = 0x20
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class OpenWatch:
    """An inotify descriptor that becomes readable when one of some files is opened."""

    def __init__(self, paths: list[Path]) -> None:
        self._fd: int = _libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if self._fd >= 0:
            for path in paths:
                _libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN)

    @property
    def works(self) -> bool:
        """False where the kernel gives no inotify instance (a user's limit): then only looking now and then is left."""
        return self._fd >= 0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def drain(self) -> None:
        """Read and drop what is queued; only that something happened counts."""
        try:
            while os.read(self._fd, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def descendants(roots: Iterable[int]) -> dict[int, list[int]]:
    """Each process and all its descendants, parents first; empty for one that is gone. One pass over /proc."""
    children: dict[int, list[int]] = {}
    alive = set()
    for child, parent in _parents():
        alive.add(child)
        children.setdefault(parent, []).append(child)
    trees = {}
    for root in roots:
        tree = [root] if root in alive else []
        for member in tree:
            tree.extend(children.get(member, ()))
        trees[root] = tree
    return trees


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()  # the name in parentheses may hold anything
            except OSError:
                continue
            yield int(name), int(fields[1])


def descriptor_count(pid: int) -> int:
    """How many descriptors a process holds: cheap to ask, and different after it opened a GPU. -1 when it is gone or
    closed to us.
    """
    folder = f"/proc/{pid}/fd"
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))  # st_size is the count since Linux 6.2
    except OSError:
        return -1


def command_of(pid: int) -> str:
    """A process' command, short: the program's name and its first arguments."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    text = " ".join(word.decode("utf-8", "replace") for word in words if word)
    text = "".join(character if character.isprintable() else "?" for character in text)
    program, _, rest = text.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".strip()[:80] or "?"


def parent_of(pid: int) -> int | None:
    """Process id of a process' parent, or None when it is gone."""
    parent = _status(pid).get("PPid")
    return None if parent is None else int(parent)


def owner_of(pid: int) -> int | None:
    """Real user id of a process, or None when it is gone, be it that nobody has asked how it ended."""
    status = _status(pid)
    return None if status.get("State", "Z")[0] in "ZX" else int(status["Uid"].split()[0])


def peak_of(pid: int) -> int:
    """The most address space that a process ever had, in KiB: it never gets less, but starts anew with exec. 0 when it
    is gone.
    """
    return int(_status(pid).get("VmPeak", "0").split()[0])


def _status(pid: int) -> dict[str, str]:
    """What the kernel tells of a process, by name; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
