"""What the kernel tells of a process that rules can ask for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from runlist.proc.cgroup import container_of
from runlist.proc.process import owner_of

MAX_COMMAND = 1 << 12
MAX_ENVIRONMENT = 1 << 20
"""Bytes that are read; a process can have more, and it is its own choice."""

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Facts:
    """`uid` is the real user; `command` the whole command line, `cgroup` the cgroup v2 path, `container` the id in the
    cgroup path, each empty where there is none. `environment` is empty where it may not be read.
    """

    uid: int
    command: str = ""
    cgroup: str = ""
    container: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def facts_of(pid: int) -> Facts | None:
    """Facts of a process, or None when it is gone. Takes about 0.1 ms; nothing is kept."""
    uid = owner_of(pid)
    if uid is None:
        return None
    cgroups = _read(pid, "cgroup", MAX_ENVIRONMENT).splitlines()
    command = _read(pid, "cmdline", MAX_COMMAND).replace("\0", " ").strip()
    entries = [entry.partition("=") for entry in _read(pid, "environ", MAX_ENVIRONMENT).split("\0")]
    return Facts(
        uid=uid,
        command="".join(character if character.isprintable() else "?" for character in command),
        cgroup=next((line[3:] for line in cgroups if line.startswith("0::")), ""),
        container=next((found for line in cgroups if (found := container_of(line.split(":", 2)[-1]))), ""),
        environment={name: value for name, equals, value in reversed(entries) if name and equals},
    )


def _read(pid: int, name: str, limit: int) -> str:
    """A file of /proc, up to so many bytes; empty when it may not be read. Plain calls: this is done for every process
    that opens the GPU.
    """
    content = b""
    with contextlib.suppress(OSError):
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(content) < limit and (more := os.read(fd, min(limit - len(content), _CHUNK))):
                content += more
        finally:
            os.close(fd)
    return content.decode("utf-8", "replace")
