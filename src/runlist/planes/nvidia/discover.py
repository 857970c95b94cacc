"""Finding the RM clients, GPUs, channel groups and channels of a process, from outside.

Nothing is preloaded and nothing in the process changes. A borrowed open file answers only for the clients that were
created on it, so handles can be tried:

- Client handles are given out in order and wrap around, so the search starts at one of our own, the newest, and goes
down.
- Object handles are chosen by the CUDA driver library, in order from a base. Asking RM for a client's device and for
that device's first channel group shows where the base is, whatever driver it is; from there handles are tried one by
one until a long run of them is empty.

Each try is one GET_HANDLE_INFO, about 3 µs.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import cast

import msgspec

from runlist.model import Engine
from runlist.planes import interface
from runlist.planes.interface import Borrower, Context, Handle, Lent, Seen
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.objects import GpuObjects, Group
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import RawControl, RmClient, free_client, open_client, raw
from runlist.planes.nvidia.rm.commands import COMMANDS, is_channel, is_compute, is_copy
from runlist.planes.nvidia.rm.transport import Driver, OpenFile
from runlist.proc import borrow, descriptors
from runlist.protocol.rm_autogen import (
    CLIENT_BASE,
    CLIENT_COUNT,
    HANDLE_INFO_CLASS,
    HANDLE_INFO_PARENT,
    OBJECT_BASE,
    Class,
)

NEW_REACH = 0x1000
"""How many client handles back to look in a process that has just opened the GPU."""
ANY_REACH = 0x40000
"""The same for any process: some 80,000 program starts back, and a second of looking."""
LOOK_S = 0.5
"""A process that has many files is looked at in pieces of this length."""
_CLIENT_NEIGHBOURS = 64  # further handles tried below a client that was found: a process' clients lie close together
_RANGE = 0x10000  # object handles of one library share the upper half
_EMPTY_RUN = 512  # this many unused handles in a row end the search


class Found(msgspec.Struct, frozen=True):
    """One RM client of a process with work on GPUs: the number of the descriptor there, our copy of it, and its
    objects.
    """

    fd: int
    handle: OpenFile
    client: int
    gpus: tuple[GpuObjects, ...]

    def contexts(self, handle: Handle, known: Collection[interface.Group]) -> list[GpuContext]:
        return [
            GpuContext(RmClient(cast("OpenFile", handle), self.client), GpuObjects(gpu.gpu, gpu.subdevice, groups))
            for gpu in self.gpus
            if (groups := tuple(group for group in gpu.groups if (self.client, group.handle) not in known))
        ]

    def extend(self, context: Context) -> bool:
        own = cast("GpuContext", context)
        grown = [
            own.grow(group)
            for gpu in self.gpus
            if (gpu.gpu, self.client) == (own.gpu, own.client)
            for group in gpu.groups
        ]
        return any(grown)


class Discoverer:
    """Finds what processes have on the GPU. Keeps one control file of its own open, to ask where handles are now.

    Raises NotSupportedError when there is no driver.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._own_file = driver.open()
        self._rest: dict[int, int] = {}  # by process, the file up to which a look came before its time was over

    def close(self) -> None:
        """Close the own file."""
        self._own_file.close()

    def may_have_work(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return any(True for _ in self._driver.control_files(pid))
        return False

    def find(self, pid: int, pidfd: int, borrower: Borrower, *, new: bool) -> list[Found]:
        return self.discover(pid, pidfd, borrower, NEW_REACH if new else ANY_REACH, LOOK_S)

    def is_unfinished(self, pid: int) -> bool:
        return pid in self._rest

    def discover(
        self, pid: int, pidfd: int, borrower: Borrower, reach: int = ANY_REACH, seconds: float = math.inf
    ) -> list[Found]:
        """All GPU work of a process; empty when it has no context now. The caller closes each distinct `handle`.

        `reach` is how many client handles are tried, from the newest down. After so many seconds no further file is
        begun; the next look goes on with it.

        Raises NoPermissionError without the right to the process.
        """
        found: list[Found] = []
        copies: list[OpenFile] = []
        with _closing_unused(copies, found):
            ends = time.monotonic() + seconds
            begin = self._rest.pop(pid, -1)
            ours = self._own_file.fileno() if pid == os.getpid() else -1  # none of it is work
            for fd, file in _control_files(self._driver, pid, pidfd, borrower, begin, ours):
                copies.append(file)
                newest = self._newest_client()
                with _hiding_no_other():
                    found += [
                        Found(fd, file, handle, gpus)
                        for handle in _clients(file, newest, reach)
                        if (gpus := _gpus(RmClient(file, handle)))
                    ]
                if time.monotonic() >= ends:
                    self._rest[pid] = fd
                    break
        return found

    def is_file(self, pid: int, fd: int) -> bool:
        with contextlib.suppress(OSError):
            behind = self._driver.control_files_behind(pid, fd, few=True)
            return any(True for _ in behind) or descriptors.has_many_threads(pid)  # it may be in a table of the others
        return False

    def find_seen(self, pid: int, pidfd: int, borrower: Borrower, seen: Sequence[Seen]) -> list[Found]:
        """As `discover`, but only among these objects: RM says of each what it is, so that nobody's word is taken."""
        found: list[Found] = []
        copies: list[OpenFile] = []
        with _closing_unused(copies, found):
            for one in seen:
                numbers = _behind(self._driver, pid, one.fd)
                for fd, file in _copies(self._driver, pid, pidfd, borrower, numbers):
                    copies.append(file)
                    gpus: tuple[GpuObjects, ...] = ()
                    with _hiding_no_other():
                        classes = _known(file, one.client, one.objects)
                        gpus = _gpus(RmClient(file, one.client), classes) if classes else ()
                    if gpus:
                        found.append(Found(fd, file, one.client, gpus))
                        break
        return found

    def examine(self, lent: Sequence[Lent]) -> list[Found]:
        """The same for files that a process sent of itself, one client on each; takes them over."""
        found: list[Found] = []
        with _closing_unused([one.handle for one in lent], found):
            for one in lent:
                file = cast("OpenFile", one.handle)
                with _hiding_no_other():
                    if gpus := _gpus(RmClient(file, one.client)):
                        found.append(Found(one.key, file, one.client, gpus))
        return found

    def _newest_client(self) -> int:
        """Index of the client handle that RM gave out last: one of our own, made for asking."""
        own = open_client(self._own_file)
        free_client(own)
        return own.handle - CLIENT_BASE


def _hiding_no_other() -> contextlib.suppress:
    """Pass over a file by which the driver cannot be reached: whoever breaks one of its own hides no other."""
    return contextlib.suppress(OSError)


@contextlib.contextmanager
def _closing_unused(copies: Sequence[Handle], found: list[Found]) -> Iterator[None]:
    """At the end the copies that nothing was found on are closed; where it fails nothing was. A copy left open would
    keep the process' memory when it dies.
    """
    try:
        yield
    except BaseException:
        found.clear()
        raise
    finally:
        for file in copies:
            if not any(client.handle is file for client in found):
                file.close()


def _control_files(
    driver: Driver, pid: int, pidfd: int, borrower: Borrower, begin: int, ours: int
) -> Iterator[tuple[int, OpenFile]]:
    """Copies of a process' control files, those with numbers above `begin`, but for `ours`."""
    numbers = (number for number in driver.control_files(pid) if number > begin and number != ours)
    yield from _copies(driver, pid, pidfd, borrower, numbers)


def _behind(driver: Driver, pid: int, fd: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # closed meanwhile
        yield from driver.control_files_behind(pid, fd)


def _copies(
    driver: Driver, pid: int, pidfd: int, borrower: Borrower, numbers: Iterable[int]
) -> Iterator[tuple[int, OpenFile]]:
    """Copies of these descriptors of a process that are control files."""
    try:
        for fd in sorted(numbers):
            try:
                copy = borrower.borrow(pid, pidfd, fd)
            except OSError as error:
                if error.errno in borrow.DENIED:
                    raise borrow.no_right(pid, os.strerror(error.errno)) from None
                continue  # the descriptor was closed meanwhile
            file = driver.adopt(copy)
            if file is not None:
                yield fd, file
    except PermissionError as error:
        raise borrow.no_right(pid, error.strerror or "not permitted") from None
    except (FileNotFoundError, ProcessLookupError):
        return  # it ended: it has nothing on the GPU


class _Prober:
    """GET_HANDLE_INFO in a tight loop: the same buffers again and again."""

    def __init__(self, file: OpenFile) -> None:
        self._client = RmClient(file, 0)
        self._command = COMMANDS["GET_HANDLE_INFO"]

    def ask(self, client: int, handle: int, index: int) -> int | None:
        """Class or parent of a client's object, or None when there is no such object or client."""
        self._client.handle = client
        params = struct.pack("<IIQ", handle, index, 0)
        code, reply = self._client.send(RawControl(client, self._command.number, params))
        if code == status.NV_OK:
            return int(struct.unpack_from("<Q", reply, 8)[0])
        if code not in status.MISSING:
            status.check(code, f"GET_HANDLE_INFO of 0x{handle:08x}")
        return None


def _clients(file: OpenFile, newest: int, reach: int) -> list[int]:
    """Handles of the clients that were created on an open file, from index `newest` down, around the end."""
    prober = _Prober(file)
    clients: list[int] = []
    last_hit = 0
    for distance in range(reach):
        if clients and distance - last_hit > _CLIENT_NEIGHBOURS:
            break
        handle = CLIENT_BASE + (newest - distance) % CLIENT_COUNT
        if prober.ask(handle, handle, HANDLE_INFO_CLASS) is not None:
            clients.append(handle)
            last_hit = distance
    return clients


def _child(client: RmClient, parent: int, class_: Class) -> int | None:
    code, params = client.send(raw(COMMANDS["GET_CHILD_HANDLE"], client.handle, parent=parent, class_=class_))
    handle = int(COMMANDS["GET_CHILD_HANDLE"].parameters.unpack(params)["object"])  # type: ignore[arg-type]
    return handle if code == status.NV_OK and handle else None


def _objects(client: RmClient) -> dict[int, int]:
    """Classes of the client's objects by handle, around the device and the channel group that RM names."""
    device = _child(client, client.handle, Class.DEVICE)
    group = _child(client, device, Class.CHANNEL_GROUP) if device else None
    prober = _Prober(client.file)
    classes: dict[int, int] = {}
    for known in [handle for handle in (device, group) if handle] or [OBJECT_BASE]:
        if known not in classes:
            base = known & ~(_RANGE - 1)
            classes.update(_used(prober, client.handle, range(known, base - 1, -1)))
            classes.update(_used(prober, client.handle, range(known + 1, 1 << 32)))
    return dict(sorted(classes.items()))


def _used(prober: _Prober, client: int, handles: range) -> Iterator[tuple[int, int]]:
    """Those of `handles` that exist, with their classes, until a long run of them does not."""
    empty = 0
    for handle in handles:
        class_ = prober.ask(client, handle, HANDLE_INFO_CLASS)
        if class_ is not None:
            empty = 0
            yield handle, class_
        elif (empty := empty + 1) > _EMPTY_RUN:
            return


def _known(file: OpenFile, client: int, handles: Iterable[int]) -> dict[int, int]:
    """Classes of those of a client's objects that it has."""
    prober = _Prober(file)
    if prober.ask(client, client, HANDLE_INFO_CLASS) is None:
        return {}
    asked = ((handle, prober.ask(client, handle, HANDLE_INFO_CLASS)) for handle in sorted(handles))
    return {handle: class_ for handle, class_ in asked if class_ is not None}


def _gpus(client: RmClient, classes: dict[int, int] | None = None) -> tuple[GpuObjects, ...]:
    """Its channel groups by GPU, among the objects with these classes, or else among all."""
    classes = _objects(client) if classes is None else classes
    prober = _Prober(client.file)

    def parent(handle: int) -> int | None:
        return prober.ask(client.handle, handle, HANDLE_INFO_PARENT)

    engines: dict[int, Engine] = {}  # by channel
    for handle, class_ in classes.items():
        if is_compute(class_) and (channel := parent(handle)) is not None:
            engines[channel] = Engine.COMPUTE
        elif is_copy(class_) and (channel := parent(handle)) is not None:
            engines.setdefault(channel, Engine.COPY)
    channels: dict[int, list[int]] = {handle: [] for handle, class_ in classes.items() if class_ == Class.CHANNEL_GROUP}
    for handle, class_ in classes.items():
        if is_channel(class_) and (group := parent(handle)) in channels:
            channels[group].append(handle)
    subdevices = {parent(handle): handle for handle, class_ in classes.items() if class_ == Class.SUBDEVICE}

    by_device: dict[int, list[Group]] = {}
    for group, members in channels.items():
        device = parent(group)
        if device in subdevices and members:
            kinds = {engines.get(channel, Engine.OTHER) for channel in members}
            engine = min(kinds, key=list(Engine).index)
            by_device.setdefault(device, []).append(Group(group, engine, tuple(members)))  # type: ignore[arg-type]
    return tuple(
        GpuObjects(client.gpu_uuid(subdevices[device]), subdevices[device], tuple(groups))
        for device, groups in by_device.items()
    )
