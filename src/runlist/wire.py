"""The messages between client, daemon, keeper and `runlist run`: JSON, in frames on a UNIX stream socket."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import msgspec

from runlist.frames import Inbox, frame
from runlist.views.structs import DaemonView, PolicyMapView, RulesView, TaskView, WorkloadView

REGION_REFUSED = "the memory region is refused"
"""How the line begins with which a daemon refuses one; a daemon of another version may for its form alone."""

MAX_ERRNO = 4095
"""The kernel's."""


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
    request. With `region` the descriptor of their memory region travels with the message. With `hears` it takes a
    `Note` at any time after the answer.
    """

    pid: int
    settings: dict[str, str] = {}
    region: bool = False
    hears: bool = False


class Detach(Message, frozen=True):
    """Put a process back and stop managing it and its descendants."""

    pid: int


class Release(Message, frozen=True):
    """Put back and stop managing everything that the caller may manage."""


class ListTasks(Message, frozen=True):
    """Ask for all tasks that the caller may see."""


class ListWorkloads(Message, frozen=True):
    """Ask what each workload used, of those that the caller may see."""


class Change(Message, frozen=True):
    """Change settings of a process: all of them, or none when one is refused."""

    pid: int
    settings: dict[str, str]


class Manage(Message, frozen=True):
    """Manage the process that asks, and what it starts, with these settings on top of those that it has. They replace
    the ones of its last such request. With `region` the descriptor of its memory region travels with the message.
    """

    settings: dict[str, str] = {}
    region: bool = False


class Leave(Message, frozen=True):
    """Put the process that asks back to what it had before its first `Manage`."""


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
    """Ask for the daemon's status."""


class ListRules(Message, frozen=True):
    """Ask for the rules in force."""


class GetPolicyMap(Message, frozen=True):
    """Ask for the policy map."""


class ReloadRules(Message, frozen=True):
    """Read the main file of rules again."""


class Stop(Message, frozen=True):
    """Put everything back and end the daemon."""


# -- answers ---------------------------------------------------------------------------------------


class Tasks(Message, frozen=True):
    """The tasks that a request touched or asked for, and notes for the person who made it. `version` is the daemon's;
    daemons before 0.4 leave it empty.
    """

    tasks: list[TaskView]
    notes: list[str] = []
    version: str = ""


class Workloads(Message, frozen=True):
    """What each workload used of each GPU since the daemon started."""

    workloads: list[WorkloadView]


class DaemonStatus(Message, DaemonView, frozen=True):
    """What the daemon is."""


class RulesInForce(Message, RulesView, frozen=True):
    """The rules in force."""


class PolicyMap(Message, PolicyMapView, frozen=True):
    """The policy map."""


class Failure(Message, frozen=True):
    """The request was refused, and nothing changed. `version` as in `Tasks`."""

    message: str
    exit_code: int
    version: str = ""


# -- daemon to `runlist run`, and back -------------------------------------------------------------


class BorrowRequest(Message, frozen=True):
    """Copy descriptor `fd` of a descendant, and send it."""

    pid: int
    fd: int


class Note(Message, frozen=True):
    """A line for the user of `runlist run`, who is to read it while the command runs."""

    text: str


class Borrowed(Message, frozen=True):
    """The copy travels with this message; or `error` is the errno of why not."""

    error: Annotated[int, msgspec.Meta(ge=0, le=MAX_ERRNO)] = 0


# -- daemon to keeper ------------------------------------------------------------------------------


class KeepRecord(Message, frozen=True):
    """Empty this file, which travels with the message, once everything is put back (daemon/undo/record.py)."""


class Guard(Message, frozen=True):
    """Replay these steps, which only the plane can read, when the daemon dies. The open file travels with the message.
    Replaces an earlier one of the same key.
    """

    key: int
    pid: int
    undo: list[bytes]


class GuardRegion(Message, frozen=True):
    """Write these words into a region when the daemon dies. Its open file travels with the message. Replaces an earlier
    one of the same key.
    """

    key: int
    words: list[tuple[int, int]]


class Unguard(Message, frozen=True):
    """Forget this, and close its open file."""

    key: int


Request = (
    Attach
    | Launch
    | Detach
    | Release
    | ListTasks
    | ListWorkloads
    | Change
    | Manage
    | Leave
    | Suspend
    | Resume
    | UsePolicy
    | GetStatus
    | ListRules
    | GetPolicyMap
    | ReloadRules
    | Stop
    | Borrowed
)
Answer = Tasks | Workloads | DaemonStatus | RulesInForce | PolicyMap | Failure | BorrowRequest | Note
KeeperMessage = KeepRecord | Guard | GuardRegion | Unguard


def encode(message: Message) -> bytes:
    """A whole frame."""
    return frame(msgspec.json.encode(message))


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
        """Send an encoded message."""
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
