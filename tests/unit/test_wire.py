"""Messages and their framing, whatever the stream does to them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist import wire
from runlist.frames import MAX_FRAME, Inbox
from runlist.views import structs
from runlist.views.structs import RuleFileView, RuleView
from tests.fixtures.fake_daemon import gpu_view, status, view

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def drain(inbox: Inbox, sock: socket.socket) -> list[bytes]:
    """All frames up to the end of the stream."""
    bodies: list[bytes] = []
    while inbox.read(sock):
        bodies.extend(inbox.frames())
    return bodies


def test_a_frame_byte_for_byte() -> None:
    assert wire.encode(wire.Detach(7)) == b"\x19\x00\x00\x00" + b'{"type":"Detach","pid":7}'


MESSAGES: list[wire.Message] = [
    wire.Attach(1, {"class": "batch"}, True),
    wire.Launch(1, {"class": "latency"}, region=True),
    wire.Detach(1),
    wire.Release(),
    wire.ListTasks(),
    wire.Change(1, {"class": "batch", "ü": "ß"}),
    wire.Manage({"cap": "30"}, region=True),
    wire.Leave(),
    wire.Suspend(1),
    wire.Resume(1),
    wire.UsePolicy("x.py", {"a": "b"}),
    wire.GetStatus(),
    wire.ListRules(),
    wire.ReloadRules(),
    wire.GetPolicyMap(),
    wire.ListWorkloads(),
    wire.Stop(),
    wire.Borrowed(13),
]
ANSWERS: list[wire.Message] = [
    wire.Tasks([view(), view(cap_percent=30.0, segment=-1, memory_bytes=None)], ["note"]),
    status(gpus=[gpu_view()], rules="rules.toml", waiting=["process 1"], troubles=["a policy was dropped"]),
    wire.RulesInForce(
        rules=[RuleView(rule="a:1", file="/a", asks={"user": "1"}, sets={}, labels={"pod": "x"}, processes=2)],
        files=[RuleFileView(file="/a", rules=1, trouble="")],
    ),
    wire.PolicyMap(
        entries=[
            structs.PolicyEntryView(
                rule="a:1",
                cgroup="/a",
                cgroup_id=7,
                user=None,
                comm="",
                sets={"class": "batch"},
                refuses={"slices": "own"},
                places=True,
                waits=False,
            )
        ],
        enforced="nobody",
    ),
    wire.Workloads([structs.WorkloadView(gpu="GPU-1", user=None, labels={"pod": "web"}, gpu_seconds_held=1.5)]),
    wire.Failure("no", 4),
    wire.BorrowRequest(1, 8),
    wire.Note("process 1 is not managed"),
]
KEEPER: list[wire.Message] = [
    wire.KeepRecord(),
    wire.Guard(1, 2, [bytes(range(256))]),
    wire.GuardRegion(2, [(64, 2**64 - 1), (72, 0)]),
    wire.Unguard(1),
]


@pytest.mark.parametrize(
    ("messages", "kind"), [(MESSAGES, wire.Request), (ANSWERS, wire.Answer), (KEEPER, wire.KeeperMessage)]
)
def test_every_message_comes_back_as_it_was(messages: list[wire.Message], kind: object) -> None:
    decoder = msgspec.json.Decoder(kind)
    for message in messages:
        assert decoder.decode(wire.encode(message)[4:]) == message


@pytest.mark.parametrize("error", [-1, 4096, 10**12])
def test_an_error_that_no_kernel_has_is_refused(error: int) -> None:
    """One that was too large for C was a fault in the daemon, at each word of whoever was to lend a descriptor."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"Borrowed","error":%d}' % error, type=wire.Request)


def test_the_tables_above_are_complete() -> None:
    listed = {type(message) for message in MESSAGES + ANSWERS + KEEPER}
    assert listed == set(wire.Message.__subclasses__())


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"type":"Nonsense"}', b'{"type":"Detach"}', b'{"type":"Detach","pid":"7"}',
     b'{"type":"Detach","pid":7.5}', b'{"type":"Tasks","tasks":[]}', b"\xff\xfe", b'{"type":"Detach","pid":7}}'],
)  # fmt: skip
def test_what_is_no_request_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (msgspec words it)
        msgspec.json.decode(body, type=wire.Request)


@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
)
def test_frames_survive_any_cuts(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(wire.encode(wire.Failure(text, 1)) for text in texts)
    inbox, bodies = Inbox(), []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        while stream:
            for cut in cuts:
                ours.sendall(stream[:cut])
                stream = stream[cut:]
                if theirs.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) if stream or cut else b"":
                    inbox.read(theirs)
                    bodies.extend(inbox.frames())
                if not stream:
                    break
    assert [msgspec.json.decode(body)["message"] for body in bodies] == texts


def test_several_frames_in_one_read_and_an_empty_one(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(struct.pack("<I", 0) + wire.encode(wire.Stop()) * 3)
    inbox = Inbox()
    assert inbox.read(theirs)
    assert len(list(inbox.frames())) == 4


def test_half_a_frame_is_kept_for_later_and_lost_at_the_end(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(wire.encode(wire.Stop())[:-1])
    ours.close()
    inbox = Inbox()
    assert drain(inbox, theirs) == []


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 0xFFFFFFFF])
def test_an_oversize_frame_is_refused_before_it_is_there(pair: Pair, length: int) -> None:
    ours, theirs = pair
    ours.sendall(struct.pack("<I", length))
    inbox = Inbox()
    inbox.read(theirs)
    with pytest.raises(ValueError, match=f"a frame of {length} bytes"):
        list(inbox.frames())


def test_descriptors_travel_in_order_and_are_not_inherited(pair: Pair) -> None:
    ours, theirs = pair
    connection, inbox = wire.Connection(ours), Inbox()
    sent = [os.memfd_create(f"test{number}") for number in range(3)]
    for fd in sent:
        connection.send(wire.Borrowed(), [fd])
    ours.shutdown(socket.SHUT_WR)
    assert len(drain(inbox, theirs)) == 3
    assert len(inbox.fds) == 3
    for mine, got in zip(sent, inbox.fds, strict=True):
        assert os.path.samestat(os.fstat(mine), os.fstat(got))
        assert not os.get_inheritable(got)
    got = list(inbox.fds)
    inbox.close()
    for fd in got:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    for fd in sent:
        os.close(fd)


def test_more_descriptors_than_are_taken_do_not_leak(pair: Pair) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ours, [wire.encode(wire.Stop())], [0] * 100)
    inbox = Inbox()
    inbox.read(theirs)
    assert len(inbox.fds) <= 16
    inbox.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_connection_speaks_and_hears(pair: Pair) -> None:
    here, there = (wire.Connection(sock) for sock in pair)
    here.send(wire.Stop())
    here.send(wire.Failure("x" * 100_000, 1))
    assert there.receive() == wire.encode(wire.Stop())[4:]
    assert there.receive() == wire.encode(wire.Failure("x" * 100_000, 1))[4:]
    here.close()
    assert there.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):  # and no SIGPIPE
        there.send(wire.Stop())
