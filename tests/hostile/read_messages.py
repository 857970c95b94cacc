"""Readers of what the daemon is sent: frames, datagrams, and the file that a tree shares."""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path

import msgspec

from runlist import wire
from runlist.daemon.requests.clients import beside, client_view
from runlist.daemon.requests.messages import TenantMessage, parse
from runlist.errors import UsageError
from runlist.planes.process.region import Region, RegionError
from runlist.planes.process.region.operations import parse_operations
from runlist.planes.process.region.snapshot import MAX_BYTES
from runlist.tenant import MAGIC, RECORD, VERSION, Kind
from tests.fixtures.mutation import Records, Texts
from tests.hostile.reader import Reader
from tests.native import regions

REQUESTS: list[wire.Message] = [
    wire.Attach(4242, {"class": "batch", "cap": "30"}, wait=True), wire.Launch(7, {"memory": "8G"}, region=True),
    wire.Detach(1), wire.Release(), wire.ListTasks(), wire.Change(5, {"weight": "300"}), wire.Suspend(5),
    wire.Manage({"cap": "30"}, region=True), wire.Leave(), wire.ListWorkloads(),
    wire.Resume(5), wire.UsePolicy("slo", {"headroom": "0.2"}), wire.GetStatus(), wire.Stop(), wire.Borrowed(9),
    wire.Guard(3, 77, [b"steps", b"\0\xff"]), wire.Unguard(3), wire.BorrowRequest(12, 4),
    wire.Failure("no such process", 4, "0.4.0"), wire.Tasks([], ["a note"]),
]  # fmt: skip


class Frames:
    """Reads a stream as daemon, keeper and client do, off a socket."""

    def __init__(self) -> None:
        self._decoders = [msgspec.json.Decoder(kind) for kind in (wire.Request, wire.Answer, wire.KeeperMessage)]
        bodies = [msgspec.json.encode(message) for message in REQUESTS]
        self.inputs = Texts(bodies, [message.__class__.__name__.encode() for message in REQUESTS], "frames")
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def read(self, body: bytes) -> None:
        whole = len(body).to_bytes(4, "little") + body
        inbox = wire.Inbox()
        cut = len(whole) * (len(body) % 7) // 7
        found: list[bytes] = []
        for piece in (whole[:cut], whole[cut:]):
            self._theirs.send(piece)
            while self._waiting(inbox):
                found += inbox.frames()
        assert found == [body]
        taken = 0
        for decoder in self._decoders:
            try:
                message = decoder.decode(body)
            except (ValueError, RecursionError):  # what daemon and client take for a broken protocol
                continue
            assert decoder.decode(wire.encode(message)[4:]) == message
            taken += 1
        if not taken:
            raise UsageError("no message")

    def _waiting(self, inbox: wire.Inbox) -> bool:
        try:
            return inbox.read(self._ours)
        except BlockingIOError:
            return False


def frames(_: Path) -> Reader:
    made = Frames()
    return Reader(made.inputs, made.read)


def lengths(_: Path) -> Reader:
    """Streams whose lengths are anything: what is promised may never come, and is not kept for."""
    good = [b"".join(wire.encode(message) for message in REQUESTS[at : at + 3]) for at in range(len(REQUESTS) - 2)]
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def read(stream: bytes) -> None:
        inbox = wire.Inbox()
        theirs.send(stream or b"\0")
        said = 0
        assert inbox.read(ours)
        for body in inbox.frames():
            said += 4 + len(body)
        assert said <= len(stream)

    return Reader(Records(good, "lengths", front=80), read, (ValueError,))


WITH_NANOSECONDS = (Kind.REPORT_LATENCY, Kind.HINT, Kind.JOIN)


def datagrams(_: Path) -> Reader:
    good = [TenantMessage(kind, 5 if kind is Kind.SEGMENT_BEGIN else 0, 9, 1000 if kind in WITH_NANOSECONDS else 0)
            for kind in Kind]  # fmt: skip

    def read(record: bytes) -> None:
        message = parse(record)
        if message is None:
            raise UsageError("not ours")
        assert message.encode() == record
        assert RECORD.unpack(record)[:2] == (MAGIC, VERSION)
        assert isinstance(message.kind, Kind)

    return Reader(Records([message.encode() for message in good], "datagrams"), read)


def region(_: Path) -> Reader:
    """The header, the GPUs and the first slots are anything."""
    shown = regions.SLOTS_AT + 4 * regions.SLOT_BYTES
    head = bytearray(regions.header(memory=8 << 30, cap=3000).ljust(shown, b"\0"))
    device = regions.DEVICE.pack(77, bytes(16), 1 << 30, (1 << 30) ^ regions.NO_LIMIT, 0, 0, 0, 3)
    head[regions.HEADER.size : regions.HEADER.size + len(device)] = device
    for index in range(3):
        at = regions.SLOTS_AT + index * regions.SLOT_BYTES
        slot = regions.SLOT.pack(1 << 32 | os.getpid() + index, 0, 3) + regions.USE.pack(5 << 20, 1 << 20, 0, 0)
        head[at : at + len(slot)] = slot
    head[96:100] = (3).to_bytes(4, "little")
    fd = os.memfd_create("region")
    file = Region(fd)

    def read(data: bytes) -> None:
        os.ftruncate(fd, regions.FILE_BYTES if len(data) == shown else len(data))
        os.pwrite(fd, data, 0)
        found = file.read()
        for limit, cap in ((found.memory, found.cap), *((one.limit, one.cap) for one in found.devices.values())):
            assert limit is None or 0 <= limit <= MAX_BYTES
            assert cap is None or 0 <= cap < 1
        assert len(found.slots) <= regions.SLOTS
        assert all(0 <= one.index < regions.DEVICES for one in found.devices.values())
        for slot in found.slots:
            assert slot.pid > 0
            assert all(0 <= use.held <= MAX_BYTES and 0 <= use.overhead <= MAX_BYTES for use in slot.use)
        assert found.strict == bool(int.from_bytes(data[100:104], "little"))

    return Reader(Records([bytes(head)], "region", front=shown // 2), read, (RegionError,))


def told_clients(_: Path) -> Reader:
    """What a process says of its clients, of just now where nobody changed when that was."""
    written = time.time_ns().to_bytes(8, "little")
    head = regions.OPERATIONS.pack(0, 10**9, 20_000, 0o357, 66, 1, 132, 10**6, 10**5)[8:]
    each = regions.CLIENT.pack(900, 300, 1, 7, 2_500_000, 200, 100, 45_600, 10**8)
    good = written + head + each * regions.CLIENTS
    numbers = random.Random(1)

    def read(data: bytes) -> None:
        exact = data[: len(good)].ljust(len(good), b"\0")
        if exact[:8] == written:
            exact = time.time_ns().to_bytes(8, "little") + exact[8:]
        bits = numbers.getrandbits(64)
        told = parse_operations(exact, bits)
        if told is None:
            raise UsageError("nothing")
        assert [one.index for one in told.clients] == [index for index in range(regions.CLIENTS) if bits >> index & 1]
        assert len(beside(told.rule)) < 100
        assert beside(told.rule).isprintable()
        for client in told.clients:
            values = msgspec.structs.astuple(client_view(client, told))
            assert all(0 <= value < 1 << 63 for value in values if isinstance(value, int | float))

    return Reader(Records([good], "clients"), read)
