"""Noticing containers that come and go: inotify on the folders of the kubelet's cgroups.

The folder of a container is made just before it starts, whatever the runtime, the version of cgroups and who manages
them. Only the folders above are watched, one a pod. An event does not say what is new: it only says that a look is
worth it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from runlist.proc.cgroup import MOUNT, container_of
from runlist.proc.inotify import Event, Inotify

_EVENTS = Event.CREATE | Event.DELETE | Event.MOVED_TO | Event.ONLYDIR
_V1 = ("systemd", "pids", "memory", "cpu")
_DEEPEST = 6


def mount() -> Path:
    """The hierarchy to watch: that of version 2, or the first of version 1 that is there."""
    if (MOUNT / "cgroup.controllers").exists():
        return MOUNT
    return next((MOUNT / name for name in _V1 if (MOUNT / name).is_dir()), MOUNT)


class PodsWatch:
    """Calls `changed`, in a thread of its own, when cgroups of pods come or go."""

    def __init__(self, changed: Callable[[], None], top: Path | None = None) -> None:
        self._top = top or mount()
        self._changed = changed
        self._folders: dict[int, tuple[Path, int]] = {}
        self._full = False
        self._containers: set[str] = set()
        self._inotify = Inotify()
        self._end, self._ending = os.pipe()
        self._thread = threading.Thread(target=self._follow, name="cgroups", daemon=True)
        if self._inotify.works:
            self._watch(self._top, 0)
            self._thread.start()

    def sees(self, containers: Collection[str]) -> bool:
        """Whether containers are noticed: any of these has its cgroup where we watch."""
        return self._inotify.works and not self._full and any(one in self._containers for one in containers)

    @property
    def watches(self) -> int:
        """How many folders are watched."""
        return len(self._folders)

    def close(self) -> None:
        """End the thread."""
        os.close(self._ending)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._end)
        self._inotify.close()

    def _watch(self, folder: Path, depth: int) -> None:
        """Watch a folder, and those in it that may have containers below. What came before the watch is found by the
        look that each event causes.
        """
        try:
            number = self._inotify.add(folder, _EVENTS)
        except OSError as error:
            self._full |= error.errno == errno.ENOSPC
            return
        self._folders[number] = (folder, depth)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in below:
                if container := container_of(name):
                    self._containers.add(container)
                elif _leads_to_pods(name, folder, depth):
                    self._watch(folder / name, depth + 1)

    def _follow(self) -> None:
        waiting = select.poll()
        waiting.register(self._inotify.fileno(), select.POLLIN)
        waiting.register(self._end, select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if self._end in ready:
                return
            if self._take():
                self._changed()

    def _take(self) -> bool:
        """Read what happened; whether any of it is about pods."""
        about_pods = False
        for number, events, name in self._inotify.events():
            if events & Event.Q_OVERFLOW:
                self._watch(self._top, 0)
                about_pods = True
            elif events & Event.IGNORED:
                self._folders.pop(number, None)
            elif events & Event.ISDIR and number in self._folders:
                folder, depth = self._folders[number]
                leads = _leads_to_pods(name, folder, depth)
                about_pods |= leads or depth > 0
                if container := container_of(name):
                    (self._containers.discard if events & Event.DELETE else self._containers.add)(container)
                if leads and events & (Event.CREATE | Event.MOVED_TO):
                    self._watch(folder / name, depth + 1)
        return about_pods


def _leads_to_pods(name: str, folder: Path, depth: int) -> bool:
    """Whether a folder has, or may have, cgroups of pods below: kubepods, what is above it, and what is below it but
    the containers themselves.
    """
    if depth >= _DEEPEST or container_of(name):
        return False
    return "kube" in name or any("kubepods" in part for part in folder.parts)
