"""What a cgroup's path tells of a process."""

from __future__ import annotations

import re

_CONTAINER = re.compile(r"(?:(.*)[-:])?([0-9a-f]{64})(?:\.scope)?")


def container_of(cgroup: str) -> str:
    """The container id in a cgroup path, as Docker, containerd, CRI-O and Podman name cgroups; empty without one.

    The outermost one counts: below it, a process may make and name cgroups as it likes.
    """
    for component in cgroup.split("/"):
        match = _CONTAINER.fullmatch(component)
        if match is not None and not (match[1] or "").endswith("conmon"):  # conmon watches the container from outside
            return match[2]
    return ""
