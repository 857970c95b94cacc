"""A region as the daemon and the launcher use it: by copies that the kernel makes, so that a file that is cut short is
an error and no signal; and without the file's lock, which its owner may never let go of.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from typing import Self

from runlist.planes.process.region.activity import Activities, Activity
from runlist.planes.process.region.format import (
    CAP_UNIT,
    DEVICE,
    DEVICES,
    DEVICES_AT,
    FILE_BYTES,
    HEADER,
    NO_LIMIT,
    OPERATIONS,
    OPERATIONS_AT,
    SLOT,
    SLOTS_AT,
    Watch,
)
from runlist.planes.process.region.memory import Mapped
from runlist.planes.process.region.operations import Operations, parse_operations
from runlist.planes.process.region.reading import RegionError, is_settled, parse
from runlist.planes.process.region.snapshot import Snapshot
from runlist.proc.file_system import Kind, file_system
from runlist.structure import Structure

_ATTEMPTS = 16

_READS_ASK_NOBODY = {Kind.TMPFS, Kind.EXT4, Kind.BTRFS, Kind.F2FS, Kind.RAMFS}
"""File systems on which a read takes no lock of the file. It fills no holes either."""


MOST_ROOM = 16 << 20
"""How many bytes a region may take, of memory or of a disk. A tenant can have it take more, also behind its end, and
make a hole of all that: whoever touches the file meanwhile waits, for a second where there are some gigabytes.
"""

Words = list[tuple[int, int]]
"""Places in the file, and the 64 bits that go there."""

_BLOCK = 512
"""The unit of `st_blocks`."""


class Region:
    """An open region. Every method raises RegionError for a file that is not, or no longer, a region."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: Mapped | None = None
        self._reads_ask: bool | None = None
        self._activities = Activities(self._pread)

    @classmethod
    def adopt(cls, fd: int, owner: int) -> Self:
        """Take over a descriptor, if it is of a region of user `owner` that may be written; else it is closed."""
        region = cls(fd)
        try:
            os.set_inheritable(fd, False)
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise RegionError("it is no file")
            if found.st_uid != owner:
                raise RegionError(f"it belongs to user {found.st_uid}, not {owner}")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise RegionError("others may write to it")
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
                raise RegionError("it is not open for reading and writing")
            region.read()
        except OSError as error:
            region.close()
            raise RegionError(f"it cannot be read: {error.strerror}") from None
        except BaseException:
            region.close()
            raise
        return region

    def reopen(self) -> None:
        """Open it anew. One that was sent carries its sender's locks, which our copy would keep after the sender's
        death, and has the sender's flags, by which each call may wait for a disk or a lock.
        """
        try:
            ours = os.open(
                f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
            )  # it waits for no lease
        except OSError as error:
            self.close()
            raise RegionError(f"it cannot be opened anew: {error.strerror}") from None
        self.close()
        self._fd = ours

    def fileno(self) -> int:
        """The descriptor, for passing on."""
        return self._fd

    def close(self) -> None:
        """Let go of the file; the processes that mapped it keep it."""
        self._let_go()()

    def _let_go(self) -> Callable[[], None]:
        """Forget the file; what lets go of it, in whatever thread."""
        fd, memory, self._fd, self._memory = self._fd, self._memory, -1, None

        def end() -> None:
            if memory is not None:
                memory.close()
            if fd >= 0:
                os.close(fd)

        return end

    def read(self) -> Snapshot:
        """Its present content."""
        self._check_size()
        head = self._settled_head()
        return parse(head, lambda count: self._pread(SLOTS_AT, count * SLOT.size))

    def activity(self, pid: int) -> Activity | None:
        """What a process does, by its id in our own pid namespace; None when it has no slot. Once it is known which one
        it has, that is one short read.
        """
        return self._activities.of(pid)

    def operations(self, pid: int) -> Operations | None:
        """What a process says of its clients that are scheduled operation by operation; None where it has none."""
        index, clients = self._activities.clients_of(pid)
        if not clients:
            return None
        told = self._pread(OPERATIONS_AT + index * OPERATIONS.size, OPERATIONS.size)
        still = self._activities.clients_of(pid) == (index, clients)
        return parse_operations(told, clients) if still else None

    def watch(self, pid: int, work: bool, announcements: bool = False) -> bool:
        """Have a process say when it submits work next, or announces some, once; or not. Returns whether it has a slot.
        Where that was taken back a moment ago, another process of the tree may say it.
        """
        at = self.watched_at(pid)
        if at is not None:
            self._pwrite(at, Watch.WORK * work | Watch.ANNOUNCEMENTS * announcements)
        return at is not None

    def watched_at(self, pid: int) -> int | None:
        """Where `watch` writes for a process; None when it has no slot."""
        return self._activities.watch_at(pid)

    def _settled_head(self) -> bytes:
        """Header and GPUs, at a moment at which nobody was writing a limit; at any, where that does not come."""
        for _ in range(_ATTEMPTS):
            head = self._pread(0, SLOTS_AT)
            if is_settled(head):
                break
        return head

    def write(self, words: Words) -> None:
        """Write words of these functions, in their order."""
        for at, value in words:
            self._pwrite(at, value)

    def set_memory(self, limit: int | None) -> None:
        """Limit what the tree may hold on each GPU, in bytes; None for no limit. Limits of single GPUs go."""
        self.write(memory_words(limit))

    def set_memory_on(self, index: int, limit: int | None) -> None:
        """The same for one GPU, by its place in the region."""
        self.write(_limit_words("memory", limit, DEVICE, DEVICES_AT + index * DEVICE.size))

    def set_cap(self, fraction: float | None) -> None:
        """Limit the tree's time on each GPU, 0 to 1, from inside its processes; None for no limit. Caps of single GPUs
        go.
        """
        self.write(cap_words(fraction))

    def set_unseen(self, index: int, octets: int) -> None:
        """Have the tree's processes count so many bytes on a GPU beside what their slots tell."""
        self.write(unseen_words(index, octets))

    def _check_size(self) -> None:
        try:
            found = os.fstat(self._fd)
        except OSError as error:
            raise _unusable(error) from None
        if found.st_size != FILE_BYTES:
            raise RegionError(f"it has {found.st_size} bytes, not {FILE_BYTES}: of another version, or damaged")
        if (room := found.st_blocks * _BLOCK) > MOST_ROOM:
            raise RegionError(f"it takes the room of {room} bytes, and has {FILE_BYTES}")

    def _pread(self, at: int, size: int) -> bytes:
        try:
            if self._reads_ask is None:
                self._reads_ask = file_system(self._fd) not in _READS_ASK_NOBODY
            data = self._mapped().read(at, size) if self._reads_ask else os.pread(self._fd, size, at)
        except OSError as error:
            raise _unusable(error) from None
        if len(data) != size:
            raise RegionError("it was cut short")
        return data

    def _pwrite(self, at: int, value: int) -> None:
        try:
            self._mapped().write(at, value.to_bytes(8, "little"))
        except OSError as error:
            raise _unusable(error) from None

    def _mapped(self) -> Mapped:
        """The mapping, which may be touched now."""
        self._check_size()
        if self._memory is None:
            self._memory = Mapped(self._fd, FILE_BYTES)
        return self._memory


def memory_words(limit: int | None) -> Words:
    """What `Region.set_memory` writes."""
    return _words_everywhere("memory", limit)


def cap_words(fraction: float | None) -> Words:
    """What `Region.set_cap` writes."""
    return _words_everywhere("cap", None if fraction is None or fraction >= 1 else round(fraction * CAP_UNIT))


def unseen_words(index: int, octets: int) -> Words:
    """What `Region.set_unseen` writes."""
    return [(DEVICES_AT + index * DEVICE.size + DEVICE.offsets["unseen"], octets)]


def _words_everywhere(name: str, limit: int | None) -> Words:
    """A limit for all GPUs and for each: a process' environment may limit single GPUs, and a GPU without a limit of its
    own would take that one.
    """
    places = ((HEADER, 0), *((DEVICE, DEVICES_AT + index * DEVICE.size) for index in range(DEVICES)))
    return [word for record, start in places for word in _limit_words(name, limit, record, start)]


def _limit_words(name: str, limit: int | None, record: Structure, start: int) -> Words:
    value = NO_LIMIT if limit is None else limit
    return [
        (start + record.offsets[f"{name}_value"], value),
        (start + record.offsets[f"{name}_check"], value ^ NO_LIMIT),
    ]


def _unusable(error: OSError) -> RegionError:
    return RegionError(f"it cannot be used: {error.strerror}")
