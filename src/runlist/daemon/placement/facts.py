"""The facts of a process that rules can ask for, from the kernel."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runlist.proc.cgroup import cgroup_of
from runlist.proc.process import owner_of, read
from runlist.proc.words import command_line, own_words

MAX_COMM = 15
MAX_COMMAND = 1 << 12
MAX_ENVIRONMENT = 1 << 20
"""How many bytes are read: a process chooses these texts itself, and they may be longer."""


class Facts(msgspec.Struct, frozen=True):
    """`uid` is the real user; `command` the command line, `cgroup` the cgroup v2 path, `container` the id in the cgroup
    path, each empty where there is none. `environment` is empty where it may not be read. `comm` is the first
    thread's name, as the kernel has it.
    """

    uid: int
    command: str = ""
    cgroup: str = ""
    container: str = ""
    environment: Mapping[str, str] = {}
    comm: str = ""


def facts_of(pid: int) -> Facts | None:
    """Facts of a process, or None when it is gone. Takes about 0.3 ms; nothing is kept. Of one that
    takes its time, command and environment are empty.
    """
    uid = owner_of(pid)
    if uid is None:
        return None
    return Facts(uid, command_line(pid)[:MAX_COMMAND], *cgroup_of(pid), environment_of(pid), comm_of(pid))


def comm_of(pid: int) -> str:
    """The name of a process' first thread; empty when it is gone."""
    return read(pid, "comm", MAX_COMM + 1).rstrip("\n")


def environment_of(pid: int) -> dict[str, str]:
    """The environment of a process; empty where it may not be read, or takes its time."""
    words = own_words(pid, "environ", MAX_ENVIRONMENT)
    entries = [word.decode("utf-8", "replace").partition("=") for word in words]
    return {name: value for name, equals, value in reversed(entries) if name and equals}
