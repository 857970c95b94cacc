"""What the kernel's programs tell, as data."""

from __future__ import annotations

import msgspec

from runlist.planes.kernel.maps import STRUCTURES
from runlist.protocol.kernel_autogen import Kind, What

_EVENT = STRUCTURES["EVENT"].struct
_WHAT = {int(what): what for what in What}
_KIND = {int(kind): kind for kind in Kind}


class Event(msgspec.Struct, frozen=True):
    """One request to a driver that was answered with success, or the end of what was captured. `class_` is the command
    of a control; `parent` the first name of a duplicate, why it is refused, or the flags of a control; `entry` that of
    the policy map which names the process of a new group, or 0; `gpu` one more than the number by which that named its
    GPU, or 0. Times are seconds of the monotonic clock.
    """

    what: What
    kind: Kind
    time: float
    cgroup: int
    pid: int
    tid: int
    uid: int
    fd: int
    client: int
    parent: int
    object: int
    class_: int
    name: str
    entry: int = 0
    gpu: int = 0


def read(record: bytes) -> Event:
    """An event. Raises ValueError for what is none."""
    if len(record) != _EVENT.size:
        raise ValueError(f"an event of {len(record)} bytes")
    what, kind, time_ns, cgroup, pid, tid, uid, fd, client, parent, object_, class_, name, entry, gpu = _EVENT.unpack(
        record
    )
    if what not in _WHAT or kind not in _KIND:
        raise ValueError(f"an event of kind {what}, {kind}")
    text = name.split(b"\0", 1)[0].decode("utf-8", "replace")
    return Event(
        _WHAT[what], _KIND[kind], time_ns / 1e9, cgroup, pid, tid, uid, fd, client, parent, object_, class_, text,
        entry, gpu,
    )  # fmt: skip
