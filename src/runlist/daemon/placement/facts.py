"""The facts of a process that rules can ask for, from the kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from runlist.proc.cgroup import cgroup_of
from runlist.proc.process import owner_of, read
from runlist.proc.words import command_line, own_bytes

MAX_COMM = 15
MAX_COMMAND = 1 << 12
MAX_ENVIRONMENT = 1 << 20
MAX_VALUE = 1 << 12
"""How many bytes are read, and how many of a variable: a process chooses these texts itself, and they may be longer."""


class Facts(msgspec.Struct, frozen=True):
    """`uid` is the real user; `command` the command line, `cgroup` the cgroup v2 path, `container` the id in the cgroup
    path, each empty where there is none. `environment` has the variables that were asked for, as far as they may be
    read. `comm` is the first thread's name, as the kernel has it.
    """

    uid: int
    command: str = ""
    cgroup: str = ""
    container: str = ""
    environment: Mapping[str, str] = {}
    comm: str = ""


def facts_of(pid: int, variables: Collection[str] = ()) -> Facts | None:
    """Facts of a process, with these variables, or None when it is gone. Takes about 0.3 ms; nothing is kept. Of one
    that takes its time, command and environment are empty.
    """
    uid = owner_of(pid)
    if uid is None:
        return None
    environment = environment_of(pid, variables) or {}
    return Facts(uid, command_line(pid)[:MAX_COMMAND], *cgroup_of(pid), environment, comm_of(pid))


def comm_of(pid: int) -> str:
    """The name of a process' first thread; empty when it is gone."""
    return read(pid, "comm", MAX_COMM + 1).rstrip("\n")


def environment_of(pid: int, variables: Collection[str]) -> dict[str, str] | None:
    """Those of these variables that a process was started with; None where nothing can be read, or it takes its time.
    They are looked for, and the others left: there may be hundreds of thousands, and others wait.
    """
    if not variables:
        return {}
    content = b"\0" + own_bytes(pid, "environ", MAX_ENVIRONMENT)
    found = {}
    for name in variables:
        begins = b"\0" + name.encode("utf-8", "replace") + b"="
        if (at := content.find(begins)) >= 0:
            value = content[at + len(begins) : at + len(begins) + MAX_VALUE].partition(b"\0")[0]
            found[name] = value.decode("utf-8", "replace")
    return found if len(content) > 1 else None
