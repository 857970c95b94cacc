"""The maps that a daemon left which was killed: the next one goes on with them, and knows at once who had made what.

What was made or freed between the two is in none of them. So they are hints, as all that the kernel tells.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from runlist.planes.kernel import bpf, forgetting, maps
from runlist.planes.kernel.events import Event
from runlist.proc.process import start_of
from runlist.protocol.kernel_autogen import Kind, What

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_KEY, _OBJECT, _GROUP, _PROCESS, _FILE_KEY, _FILE = (
    maps.STRUCTURES[name].struct for name in ("OBJECT_KEY", "OBJECT", "GROUP", "PROCESS", "FILE_KEY", "FILE")
)
_NUMBER = struct.Struct("<I")


def open_left(folder: Path) -> dict[str, int]:
    """Descriptors of the maps to go on with: all of them, or none where one is missing or of another version. What an
    owner is counted to have in the others would be there no more.
    """
    return _open(folder, {each.name for each in maps.MAPS if each.inherited})


def made_before(folder: Path) -> list[Event]:
    """What processes that live had made, as if it was told now: the groups of each before what is on them."""
    with contextlib.suppress(OSError), _closing(open_left(folder)) as opened:
        if opened:
            return sorted(_made(opened), key=lambda event: (event.pid, event.client, event.kind))
    return []


def take_out_reused(folder: Path) -> None:
    """Take out what processes had whose numbers others have by now: while no programs run, nobody hears that a process
    ends. It is for a moment when none run.
    """
    with contextlib.suppress(OSError), _closing(_open(folder, forgetting.NEEDED)) as opened:
        if not opened:
            return
        firsts = {
            _NUMBER.unpack(key)[0]: _PROCESS.unpack(value)[1] / 1e9 for key, value in opened["processes"].entries()
        }
        reused = {pid for pid, first in firsts.items() if start_of(pid) is not None and not _is_same(pid, first)}
        if reused:
            forgetting.take_out(
                {name: msgspec.structs.replace(each, fd=os.dup(each.fd)) for name, each in opened.items()}, reused
            )


def _open(folder: Path, names: Collection[str]) -> dict[str, int]:
    """Descriptors of these maps of a folder: all, or none where one is missing or of another version."""
    opened: dict[str, int] = {}
    try:
        for each in maps.MAPS:
            if each.name in names:
                opened[each.name] = fd = bpf.get(str(folder / each.name))
                if bpf.describe(fd) != (each.kind, *each.sizes, each.entries):
                    raise OSError(errno.EINVAL, "of another version")
    except OSError:
        for fd in opened.values():
            os.close(fd)
        return {}
    return opened


@contextlib.contextmanager
def _closing(opened: Mapping[str, int]) -> Iterator[dict[str, bpf.Map]]:
    """Maps by their descriptors, which are closed behind."""
    try:
        yield {each.name: bpf.Map(opened[each.name], *each.sizes) for each in maps.MAPS if each.name in opened}
    finally:
        for fd in opened.values():
            os.close(fd)


def _made(opened: Mapping[str, bpf.Map]) -> Iterator[Event]:
    alive = {}
    for key, value in opened["processes"].entries():
        (pid,), process = _NUMBER.unpack(key), _PROCESS.unpack(value)
        if _is_same(pid, process[1] / 1e9):
            alive[pid] = process
    fds = {}
    for key, value in opened["files"].entries():
        pid, fd = _FILE_KEY.unpack(key)
        fds[pid, _FILE.unpack(value)[1]] = fd
    for key, value in opened["objects"].entries():
        pid, client, number = _KEY.unpack(key)
        parent, kind, *_ = _OBJECT.unpack(value)
        if pid not in alive or (pid, client) not in fds:
            continue
        cgroup, uid, name, when = alive[pid][0], alive[pid][2], alive[pid][6], time.monotonic()
        if kind == Kind.GROUP and (group := opened["groups"].get(key)) is not None:
            cgroup, _, _, uid, _, _, _, _, name, _ = _GROUP.unpack(group)
        yield Event(
            What.MADE, Kind(kind), when, cgroup, pid, pid, uid, fds[pid, client], client, parent, number, 0,
            name.split(b"\0", 1)[0].decode("utf-8", "replace"),
        )  # fmt: skip


def _is_same(pid: int, first_s: float) -> bool:
    """Whether a process is the one that was seen first at that time of the monotonic clock: its number may be used
    again.
    """
    started = start_of(pid)
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return started is not None and started * _TICK_S - asleep_s <= first_s + _TICK_S
