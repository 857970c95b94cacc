"""What client, daemon, keeper and `runlist run` say to each other: messages, and how they travel on a UNIX stream
socket.

A frame is a four-byte little-endian length and a JSON body; descriptors travel as SCM_RIGHTS with the frame that
mentions them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

MAX_FRAME = 16 << 20
MAX_REQUEST = 32 << 10
"""Of a client: what it asks for comes in one piece, with the descriptors that belong to it."""
_LENGTH = struct.Struct("<I")
_MAX_FDS = 16


class Message(msgspec.Struct, tag=True, frozen=True):
    """Base of all messages; the tag is the class' name."""


# -- requests to the daemon ------------------------------------------------------------------------


class Attach(Message, frozen=True):
    """Manage a process and its descendants, with these settings. `wait`: also when it has no GPU context yet."""

    pid: int
    settings: dict[str, str] = {}
    wait: bool = False


class Launch(Message, frozen=True):
    """`runlist run` says that its descendants are to be managed, and that it will borrow descriptors from them on
    request. With `region` the descriptor of their memory region travels with the message.
    """

    pid: int
    settings: dict[str, str] = {}
    region: bool = False


class Detach(Message, frozen=True):
    """Put a process back and stop managing it and its descendants."""

    pid: int


class Release(Message, frozen=True):
    """Put back and stop managing everything that the caller may manage."""


class ListTasks(Message, frozen=True):
    """Ask for all tasks that the caller may see."""


class Change(Message, frozen=True):
    """Change settings of a process: all of them, or none when one is refused."""

    pid: int
    settings: dict[str, str]


class Suspend(Message, frozen=True):
    """Take a process off its GPUs until it is resumed."""

    pid: int


class Resume(Message, frozen=True):
    """Let a suspended process run again."""

    pid: int


class UsePolicy(Message, frozen=True):
    """Switch every GPU to a policy, by name or path."""

    name: str
    options: dict[str, str]


class GetStatus(Message, frozen=True):
    """Ask what the daemon is."""


class Stop(Message, frozen=True):
    """Put everything back and end the daemon."""


# -- answers ---------------------------------------------------------------------------------------


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as people and tools see it. Times in what their names say; shares of the GPU are 0 to 1.

    `timeslice_us` is None where each group has the slice it was found with.
    `enabled` is false while the policy keeps the task off the GPU, `suspended` when the user does.
    `rule` is the line of the rules file that the task's settings come from, `why` what the policy says of its share.
    `usage_source` names what `share_1s` (the last second), `share_60s` and `history` (the last 60 seconds, one number
    each, newest last) were measured with; `turns_per_s` is how often it was switched in, `memory_bytes` what it holds.
    `p99_us` is of the requests that it reported in the last seconds. `corrections` counts how often it had changed its
    own slice and was put back; `discovery_ms` and `attach_ms` are how long finding it and its whole way to being
    managed took.
    `memory_limit_bytes` is what its whole tree may hold on this GPU, `memory_overhead_bytes` the part of its memory
    that the driver takes for it, `enforcement` what is at work inside the process ("memory, queries"), why not ("not
    loaded: …"), or empty where nothing has to be. `cap_by` says where its cap is kept: "driver", "process" or nowhere.
    `reached_by` is whose right got us its descriptor: "own right", "launcher", "lent" (it sent it itself), or empty
    where there was none.
    `controls` are the driver's own that are not at their defaults.
    """

    pid: int
    gpu: str
    task_class: str
    command: str
    user: int
    group: str
    weight: int
    cap_percent: float | None
    budget_us: int | None
    period_us: int | None
    target_p99_us: float | None
    p99_us: float | None
    segment: int | None
    timeslice_us: int | None
    enabled: bool
    suspended: bool
    policy: str
    rule: str
    why: str
    usage_source: str
    share_1s: float
    share_60s: float
    history: list[float]
    turns_per_s: float
    memory_bytes: int | None
    groups: int
    channels: int
    corrections: int
    discovery_ms: float
    attach_ms: float
    memory_limit_bytes: int | None
    memory_overhead_bytes: int | None
    enforcement: str
    cap_by: str
    reached_by: str
    controls: dict[str, str] = {}


class Tasks(Message, frozen=True):
    """The tasks that a request touched or asked for, and remarks for the person who made it."""

    tasks: list[TaskView]
    notes: list[str] = []


class DaemonStatus(Message, frozen=True):
    """What the daemon is. `rules` is the path of its rules file, `waiting` names the caller's processes that wait for
    room, beside `others_waiting` of other users. `troubles` tells of policies that were dropped, and of usage that was
    lost.
    """

    pid: int
    version: str
    driver: str
    policy: str
    policy_options: dict[str, str]
    private: bool
    keeper_pid: int
    tasks: int
    rules: str = ""
    waiting: list[str] = []
    others_waiting: int = 0
    troubles: list[str] = []


class Failure(Message, frozen=True):
    """The request was refused, and nothing changed."""

    message: str
    exit_code: int


# -- daemon to `runlist run`, and back -------------------------------------------------------------


class BorrowRequest(Message, frozen=True):
    """Copy descriptor `fd` of a descendant, and send it."""

    pid: int
    fd: int


class Borrowed(Message, frozen=True):
    """The copy travels with this message; or `error` is the errno of why not."""

    error: int = 0


# -- daemon to keeper ------------------------------------------------------------------------------


class Guard(Message, frozen=True):
    """Undo this when the daemon dies, by steps that only the plane can read. The open file travels with it. Replaces
    what was said before under the same key.
    """

    key: int
    pid: int
    undo: list[bytes]


class Unguard(Message, frozen=True):
    """Forget this, and close its open file."""

    key: int


Request = (
    Attach | Launch | Detach | Release | ListTasks | Change | Suspend | Resume | UsePolicy | GetStatus | Stop | Borrowed
)
Answer = Tasks | DaemonStatus | Failure | BorrowRequest
KeeperMessage = Guard | Unguard


def encode(message: Message) -> bytes:
    """A whole frame."""
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """Cuts what arrives on a stream into frames, and keeps the descriptors that came with them in order."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.fds: deque[int] = deque()

    def read(self, sock: socket.socket) -> bool:
        """One recv. False at end of stream. Raises BlockingIOError as recv does."""
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, _MAX_FDS)
        for fd in fds:
            os.set_inheritable(fd, False)
        self.fds.extend(fds)
        self._buffer += data
        return bool(data)

    def frames(self) -> Iterator[bytes]:
        """Bodies of the frames that are complete. Raises ValueError for one that no peer of ours would send."""
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.popleft())


class Connection:
    """A blocking end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = Inbox()
        self._ready: deque[bytes] = deque()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message, with descriptors. Raises OSError when the peer is gone."""
        self.send_frame(encode(message), fds)

    def send_frame(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message that is encoded already."""
        sent = socket.send_fds(self.sock, [frame], list(fds), socket.MSG_NOSIGNAL) if fds else 0
        self.sock.sendall(frame[sent:], socket.MSG_NOSIGNAL)

    def receive(self) -> bytes | None:
        """The body of the next message, or None at end of stream."""
        while not self._ready:
            if not self.inbox.read(self.sock):
                return None
            self._ready.extend(self.inbox.frames())
        return self._ready.popleft()

    def close(self) -> None:
        """Close the connection and every descriptor left in it."""
        self.inbox.close()
        self.sock.close()
