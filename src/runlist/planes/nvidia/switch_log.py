"""The GPU's own log of context switches, read through an RM client of our own.

The firmware that switches contexts writes down when each context's time on the GPU starts and ends. RM copies this to
an *event buffer*: a header and a ring of records in memory that we may read. A flush makes the log complete up to now.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from typing import NamedTuple, Self

from runlist.errors import NotSupportedError
from runlist.planes.nvidia.gpu_numbers import attached_client, each_gpu
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import RmClient, raw
from runlist.planes.nvidia.rm.commands import COMMANDS
from runlist.planes.nvidia.rm.transport import Driver, OpenFile
from runlist.proc.process import CAP_SYS_PTRACE, capable
from runlist.protocol.rm_autogen import (
    EVENT_BUFFER_KEEP_NEWEST,
    MEMORY_CACHED,
    MEMORY_USER_READ_ONLY,
    STRUCTS,
    SWITCH_LOG_SIMPLE,
    Class,
    SwitchTag,
)
from runlist.structure import Structure

START, END = int(SwitchTag.START), int(SwitchTag.END)
"""Tags of records. There is one context on the GPU at a time."""

Record = tuple[int, int, int, int, int]
"""tag, sequence number (16 bits), context, process id, time (CLOCK_REALTIME, ns). A plain tuple: they come by the
thousand.
"""

RECORDS = 16384
"""Length of the ring: eight seconds at 1,000 switches a second. At most 32768, half of what sequence numbers tell."""

_SWITCH_RECORD = Structure(STRUCTS["SWITCH_RECORD"])
_RECORD = _SWITCH_RECORD.struct
_RECORD_SIZE, _SEQUENCE_AT = _SWITCH_RECORD.size, _SWITCH_RECORD.offsets["sequence"]
_PUT_AT = Structure(STRUCTS["EVENT_BUFFER_HEADER"]).offsets["put"]
_SEQUENCE_MASK = 0xFFFF
_HEADER_SIZE = 4096
_CLOCK_AGE_NS = 1_000_000_000
_CLOSE_NS, _TRIES = 1_000_000, 3  # a question that takes longer tells little: others had the processor meanwhile

_CAP_SYS_ADMIN = 21
_DEVICE, _SUBDEVICE, _HEADER, _RING, _BUFFER = range(0xA0000001, 0xA0000006)
_FLUSH = raw(COMMANDS["EVENT_BUFFER_FLUSH"], _BUFFER)
_REASONS = {
    1: "the GPU is too old",
    2: "it is not enabled for this GPU",
    3: "it is not enabled in this driver",
    4: "only root may read it",
    5: "a capability is missing",
}


def hides_others() -> str:
    """Why the log tells less than what this process can manage, or nothing: the driver names no process of another user
    to who has no CAP_SYS_ADMIN, which root in a container may lack.
    """
    if not capable(CAP_SYS_PTRACE) or capable(_CAP_SYS_ADMIN):
        return ""
    return "the driver's log names others' processes to CAP_SYS_ADMIN alone: shares and caps count none of their use"


class Batch(NamedTuple):
    """The records since the last read.

    `gaps` are pairs (index, count): `count` records were lost just before `records[index]`. The log is complete up to
    `until_ns` (CLOCK_REALTIME); the records may go a little further. `passed_ns` is the time since that of the read
    before by a clock that nobody sets, None where that is not known.
    """

    records: list[Record]
    gaps: list[tuple[int, int]]
    until_ns: int
    passed_ns: int | None = None


class Ring:
    """The reader's side of an event buffer: a `header` (u32 get, u32 put, …) and a ring of records, both written by RM.

    RM overwrites the oldest records when the ring is full: only their sequence numbers tell whether any were lost.
    """

    def __init__(self, header: mmap.mmap | bytearray, records: mmap.mmap | bytearray) -> None:
        self._header = header
        self._records = records
        self._size = len(records) // _RECORD_SIZE
        self._get = 0
        self._last: int | None = None  # sequence number of the newest record that was read

    def take(self) -> tuple[list[Record], list[tuple[int, int]]]:
        """The records since the last call, the oldest first, and the gaps among them. Raises NotSupportedError when the
        header makes no sense.

        Most readings find that nothing was lost: whoever reads often does so with cold caches, where each further step
        counts.
        """
        put, first, last = self._put(), self._get, self._last
        if last is not None:
            data = self._slice(first, put) if first <= put else self._slice(first, self._size) + self._slice(0, put)
            records = list(_RECORD.iter_unpack(data))
            if records:
                newest = records[-1][1]
                if records[0][1] == (last + 1) & _SEQUENCE_MASK and (newest - last) & _SEQUENCE_MASK == len(records):
                    self._get, self._last = put, newest
                    return records, []
            elif self._sequence(put - 1 if put else self._size - 1) == last:
                return records, []
        return self._take_with_gaps(put)

    def _take_with_gaps(self, put: int) -> tuple[list[Record], list[tuple[int, int]]]:
        if self._lapped(put):
            if self._last is None:
                self._last = _SEQUENCE_MASK  # RM numbers from 0: all before the oldest that is left are lost
            data = self._slice(put, self._size) + self._slice(0, put)
            overwritten = (self._put() - put) % self._size  # while we copied
            data = data[overwritten * _RECORD_SIZE :]
        elif put >= self._get:
            data = self._slice(self._get, put)
        else:
            data = self._slice(self._get, self._size) + self._slice(0, put)
        self._get = put
        records = list(_RECORD.iter_unpack(data))
        gaps = self._gaps(records)
        if records:
            self._last = records[-1][1]
        return records, gaps

    def _put(self) -> int:
        (put,) = struct.unpack_from("<I", self._header, _PUT_AT)
        if put >= self._size:
            raise NotSupportedError(f"the switch log's header is damaged (record {put} of {self._size})")
        return int(put)

    def _slice(self, first: int, end: int) -> bytes:
        return bytes(self._records[first * _RECORD_SIZE : end * _RECORD_SIZE])

    def _sequence(self, index: int) -> int:
        (number,) = struct.unpack_from("<H", self._records, index * _RECORD_SIZE + _SEQUENCE_AT)
        return int(number)

    def _lapped(self, put: int) -> bool:
        """Whether the next slot to be written has a record that was not read: then RM has overtaken us."""
        if not any(self._slice(put, put + 1)):
            return False  # never written
        if self._last is None:
            return True
        oldest = (self._sequence(put) - self._last) & _SEQUENCE_MASK
        newest = (self._sequence(put - 1 if put else self._size - 1) - self._last) & _SEQUENCE_MASK
        return 0 < oldest < newest

    def _gaps(self, records: list[Record]) -> list[tuple[int, int]]:
        if not records:
            return []
        expected = records[0][1] if self._last is None else (self._last + 1) & _SEQUENCE_MASK
        if (records[-1][1] - expected) & _SEQUENCE_MASK == len(records) - 1:
            return []  # as nearly always: missing records cannot cancel out
        gaps = []
        for index, record in enumerate(records):
            if missing := (record[1] - expected) & _SEQUENCE_MASK:
                gaps.append((index, missing))
            expected = (record[1] + 1) & _SEQUENCE_MASK
        return gaps


class SwitchLog:
    """The switch log of one GPU, from its opening on. Not thread-safe."""

    def __init__(self, client: RmClient, ring: Ring, keep: contextlib.ExitStack) -> None:
        self._client = client
        self._ring = ring
        self._send_flush = client.again(_FLUSH)
        self._keep = keep  # mappings, client and files, to be closed in order
        self._clock_asked_ns = -_CLOCK_AGE_NS
        self._clock_ahead_ns = 0
        self._until_at_ns = time.monotonic_ns()  # by the clock that nobody sets

    @classmethod
    def open(cls, driver: Driver, gpu_uuid: str, records: int = RECORDS) -> Self:
        """Start a log of our own. Raises RmError or NotSupportedError, which say what was refused, or OSError."""
        with contextlib.ExitStack() as stack:
            client = attached_client(driver, stack)
            _find_gpu(client, gpu_uuid)
            ring = _allocate(client, client.file, records, stack)
            log = cls(client, ring, stack.pop_all())
        try:
            log.now_ns()  # an error shows here, not later
            log.flush()
        except BaseException:
            log.close()
            raise
        return log

    def read(self) -> Batch:
        """The records since the last call.

        Raises RmError or OSError when the driver is gone, NotSupportedError when the log makes no sense.
        """
        until = self.now_ns()
        before, self._until_at_ns = self._until_at_ns, until - self._clock_ahead_ns
        self.flush()
        records, gaps = self._ring.take()
        return Batch(records, gaps, until, time.monotonic_ns() - before)

    def flush(self) -> None:
        """Have RM move the GPU's log to our buffer."""
        if code := self._send_flush():
            status.check(code, "EVENT_BUFFER_FLUSH")

    def now_ns(self) -> int:
        """The GPU's clock, never ahead of it. It is asked once a second, and followed by the machine's in between."""
        now = time.monotonic_ns()
        if now - self._clock_asked_ns >= _CLOCK_AGE_NS:
            ahead = []
            for _ in range(_TRIES):
                began = now
                gpu: int = self._client.control(_SUBDEVICE, "TIMER_GET_TIME")["time_ns"]  # type: ignore[assignment]
                now = time.monotonic_ns()
                ahead.append(gpu - now)
                if now - began <= _CLOSE_NS:
                    break
            self._clock_asked_ns, self._clock_ahead_ns = now, max(ahead)  # it is as far ahead at least
        return now + self._clock_ahead_ns

    def close(self) -> None:
        """Stop the log and free all that belongs to it."""
        with contextlib.suppress(OSError):  # the device may be gone before us
            self._keep.close()


def _find_gpu(client: RmClient, uuid: str) -> None:
    """Allocate the device and subdevice of a GPU."""
    for _, found in each_gpu(client, _DEVICE, _SUBDEVICE):
        if found == uuid:
            return
    raise NotSupportedError(f"the driver shows no GPU {uuid}: check `nvidia-smi -L`")


def _allocate(client: RmClient, file: OpenFile, records: int, stack: contextlib.ExitStack) -> Ring:
    """An event buffer with its memories, mapped, and bound to the GPU's log."""
    for handle, size in ((_HEADER, _HEADER_SIZE), (_RING, records * _RECORD_SIZE)):
        client.allocate(
            Class.MEMORY_DEVICELESS, client.handle, handle, attr=MEMORY_CACHED, attr2=MEMORY_USER_READ_ONLY, size=size
        )
    client.allocate(
        Class.EVENT_BUFFER, client.handle, _BUFFER,
        record_size=_RECORD_SIZE, record_count=records, subdevice=_SUBDEVICE, header=_HEADER, records=_RING,
    )  # fmt: skip
    header = stack.enter_context(file.map_memory(client.handle, _HEADER, _HEADER_SIZE))
    ring = stack.enter_context(file.map_memory(client.handle, _RING, records * _RECORD_SIZE))
    _bind(client)
    client.control(_BUFFER, "EVENT_BUFFER_ENABLE", enable=1, flags=EVENT_BUFFER_KEEP_NEWEST)
    return Ring(header, ring)


def _bind(client: RmClient) -> None:
    command = COMMANDS["BIND_SWITCH_LOG"]
    control = raw(
        command, _SUBDEVICE,
        event_buffer=_BUFFER, record_size=_RECORD_SIZE, level_of_detail=SWITCH_LOG_SIMPLE, all_users=1,
    )  # fmt: skip
    code, params = client.send(control)
    if code == status.NV_OK:
        return
    reason = int(command.parameters.unpack(params)["reason"])  # type: ignore[arg-type]
    refusal = status.error_class(code)(code, command.name)
    raise NotSupportedError(
        f"the driver refuses the switch log: {refusal.name} (0x{code:02X}): {_REASONS.get(reason, f'reason {reason}')}"
    )
