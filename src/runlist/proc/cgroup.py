"""The cgroup of a process, and the container that it names."""

from __future__ import annotations

import re
from pathlib import Path

from runlist.proc.process import read

MOUNT = Path("/sys/fs/cgroup")
"""Where the unified hierarchy is."""

_MAX_BYTES = 1 << 16
_CONTAINER = re.compile(r"(?:(.*)[-:])?([0-9a-f]{64})(?:\.scope)?")


def cgroup_of(pid: int) -> tuple[str, str]:
    """The cgroup v2 path of a process, and the id of the container that it is in; each empty where there is none."""
    lines = read(pid, "cgroup", _MAX_BYTES).splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), "")
    return path, next((found for line in lines if (found := container_of(line.split(":", 2)[-1]))), "")


def container_of(cgroup: str) -> str:
    """The container id in a cgroup path, as Docker, containerd, CRI-O and Podman name cgroups; empty without one.

    The outermost one counts: below it, a process may make and name cgroups as it likes.
    """
    for component in cgroup.split("/"):
        match = _CONTAINER.fullmatch(component)
        if match is not None and not (match[1] or "").endswith("conmon"):  # conmon watches the container from outside
            return match[2]
    return ""
