"""Talking to the daemon.

with Client.open(start=True) as client:
    client.attach(4242, "batch", settings={"cap": 30, "weight": 200})
"""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeVar

import msgspec

from runlist import paths, wire
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError, RunlistError, UsageError
from runlist.frames import MAX_REQUEST
from runlist.planes.registry import choose_plane
from runlist.proc import borrow
from runlist.protocol import environment_autogen as names
from runlist.settings.table import override
from runlist.starting import Turn, start_private
from runlist.version import __version__
from runlist.views.structs import TaskView, WorkloadView
from runlist.waiting import readable

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

_REFUSALS = {int(kind.exit_code): kind for kind in (UsageError, NoPermissionError, NoTargetError, NotSupportedError)}

OnSilence = Callable[[int], None]

Settings = Mapping[str, str | float]
"""Values by name, as people write them, or as numbers."""

_Answer = TypeVar("_Answer", bound=wire.Message)

_NO_ANSWER = "the daemon does not answer: wait, or look at its log"
_CLOSED = "this client has no connection any more: it was closed, or a request was interrupted: open another"
_NOT_READY = "a daemon is starting or ending and gets neither done: see its log, or end it"
_UNKNOWN_ANSWER = "the daemon is of another version: end it with `runlist daemon --stop`, and try again"
_START_PATIENCE_S = 60.0
"""How long another daemon may take to start or to end: a machine can be very busy."""
_TURN_S = 15.0
"""After which we start one though it is another's turn, who may have been stopped in it."""
_LOOK_EVERY_S = 0.03
_SILENCE_S = 3.0  # before somebody wonders
_MOST_PATIENCE_S = 1e9


class DaemonGone(RunlistError):
    """The connection is of no more use: open another."""


class DaemonEnded(DaemonGone):
    """It hung up before it answered."""


class NotForUs(NoPermissionError):
    """The system's daemon is for root and a group. A daemon of one's own will do."""


class Client:
    """A connection to a daemon. Every method raises RunlistError with the daemon's own line when it is refused, and
    DaemonGone when no answer comes. Threads may share one, and take turns; a child of fork opens its own.
    """

    def __init__(self, connection: wire.Connection, on_silence: OnSilence | None = None) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._on_silence = on_silence  # until the first answer
        self._decoder = msgspec.json.Decoder(wire.Answer)
        self.notes: list[str] = []
        """The daemon's notes on the last request that was about tasks."""

    @classmethod
    def open(
        cls,
        *,
        start: bool = False,
        device: str | None = None,
        patience_s: float | None = None,
        on_silence: OnSilence | None = None,
    ) -> Client:
        """Connect to the daemon of a device (RUNLIST_DEVICE when None): this user's, else the system's.

        With `start`, a private daemon is started when none runs. `patience_s` is how long to wait for an answer, as
        long as it takes when None. `on_silence` is called once, with its process id, where the first answer takes long.
        Raises NoTargetError when there is none.
        """
        plane = choose_plane(None if device is None else _text("a device", device))
        patience_s = None if patience_s is None else _seconds(patience_s)
        if start:
            return cls._open_or_start(plane, patience_s, on_silence)
        client = cls._connect(paths.candidate_sockets(plane), patience_s=patience_s, on_silence=on_silence)
        if client is None:
            raise NoTargetError(
                "no daemon runs: start one with `runlist daemon`, or use `runlist run` or `runlist attach`"
            )
        return client

    @classmethod
    def _open_or_start(cls, plane: Plane, patience_s: float | None, on_silence: OnSilence | None) -> Client:
        """Connect to a daemon that will last. Many may want one at once: a single one of them starts it, and the others
        wait. A daemon that is ending or starting has the lock without listening, and may hang up on us.
        """
        began = time.monotonic()
        with Turn(paths.daemon_socket(plane).with_suffix(paths.START)) as turn:
            while True:
                client = cls._connect(
                    paths.candidate_sockets(plane), pass_over_denied=True, patience_s=patience_s, on_silence=on_silence
                )
                if client is not None and client._answers():
                    return client
                if client is None:
                    plane.check()  # no driver: say so before anything is made
                    if (turn.ours() or time.monotonic() - began > _TURN_S) and start_private(plane):
                        continue
                if time.monotonic() - began > _START_PATIENCE_S:
                    raise DaemonGone(_NOT_READY)
                time.sleep(_LOOK_EVERY_S)

    def _answers(self) -> bool:
        """Whether this daemon serves us: from then on it stays, for as long as we do. Else the connection is closed."""
        try:
            self.status()
        except DaemonEnded:
            self.close()
            return False
        return True

    @classmethod
    def _connect(
        cls,
        candidates: list[Path],
        *,
        pass_over_denied: bool = False,
        patience_s: float | None,
        on_silence: OnSilence | None,
    ) -> Client | None:
        for path in candidates:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if patience_s is not None:  # with a time-out of Python's it would not wait for its turn
                limit = struct.pack("ll", *divmod(math.ceil(patience_s * 1e6), 1_000_000))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            try:
                sock.connect(str(path))
                sock.settimeout(patience_s)
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                if path.exists() and not path.is_socket():
                    raise UsageError(f"{path} is not a socket: remove it, or name another by {names.SOCKET}") from None
                continue
            except PermissionError:
                sock.close()
                if pass_over_denied:
                    continue
                denied = f"no right to use the daemon's socket {path}: ask for membership of its group"
                if path == candidates[0]:  # where one's own would be, as RUNLIST_SOCKET says
                    raise NoPermissionError(denied) from None
                raise NotForUs(f"{denied}, or have one of your own by `runlist run` or `runlist attach`") from None
            except (TimeoutError, BlockingIOError):  # too many wait before us
                sock.close()
                raise DaemonGone(_NO_ANSWER) from None
            except OSError as error:
                sock.close()
                raise RunlistError(f"{path} cannot be used as the daemon's socket: {error.strerror or error}") from None
            _, server_uid = _peer(sock)
            if server_uid not in (0, os.geteuid()):
                sock.close()
                raise NoPermissionError(_served_by_another(path, server_uid))
            return cls(wire.Connection(sock), on_silence)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def messages(self) -> Path:
        """The socket on which this daemon hears what our tenants say of themselves, once it has answered us."""
        shared = Path(self._connection.sock.getpeername()).with_name(names.MESSAGES_SOCKET)
        apart = paths.messages_apart(shared, os.geteuid())
        return apart if os.access(apart, os.W_OK) else shared

    @property
    def drop_ins(self) -> Path:
        """Where programs drop rules in for this daemon."""
        return Path(self._connection.sock.getpeername()).with_name(paths.DROP_INS)

    def close(self) -> None:
        """Hang up. What is managed stays managed."""
        self._connection.close()

    def attach(
        self,
        pid: int,
        task_class: str | None = "normal",
        *,
        wait: bool = False,
        settings: Settings | None = None,
    ) -> list[TaskView]:
        """Manage a running process and its descendants, with a class (None: what the rules say) and further settings,
        as those of `set`. `wait`: also when it has no GPU context yet; it is then managed once it has.
        """
        return self._tasks(wire.Attach(_pid(pid), _with_class(task_class, settings), bool(wait))).tasks

    def detach(self, pid: int) -> list[str]:
        """Put a process back; returns notes on failures."""
        return self._tasks(wire.Detach(_pid(pid))).notes

    def release(self) -> list[str]:
        """Put everything of this user back; returns notes on failures."""
        return self._tasks(wire.Release()).notes

    def ps(self) -> list[TaskView]:
        """The managed tasks."""
        return self._tasks(wire.ListTasks()).tasks

    def set(self, pid: int, settings: Settings) -> list[TaskView]:
        """Change settings of a process, such as `{"class": "batch", "cap": 30}`. A number is written as a person would:
        where a setting has a unit for numbers alone, it counts that.
        """
        return self._tasks(wire.Change(_pid(pid), words(settings))).tasks

    def manage(self, settings: Settings, region: int | None = None) -> list[TaskView]:
        """Manage this process, and what it starts, with settings on top of those that it has, also when it has no GPU
        context yet; they replace the ones of its last such request. `region` is the descriptor of the memory region
        that the library in this process uses. `runlist.manage` is this with an end.
        """
        self._let_borrow()
        request = wire.Manage(words(settings), region is not None)
        return self._tasks(request, [] if region is None else [region]).tasks

    def leave(self) -> list[str]:
        """Put this process back to what it had before `manage`; returns notes on failures."""
        return self._tasks(wire.Leave()).notes

    def _let_borrow(self) -> None:
        """Let the daemon copy this process' descriptor of the driver, where the kernel wants to be told so (Yama)."""
        pid, uid = _peer(self._connection.sock)
        if uid != 0 and borrow.asks_for_tracers():
            borrow.allow(pid)

    def suspend(self, pid: int) -> list[TaskView]:
        """Take a process off its GPUs."""
        return self._tasks(wire.Suspend(_pid(pid))).tasks

    def resume(self, pid: int) -> list[TaskView]:
        """Let a suspended process run."""
        return self._tasks(wire.Resume(_pid(pid))).tasks

    def use_policy(self, name: str, options: Settings | None = None) -> wire.DaemonStatus:
        """Switch the policy of every GPU."""
        return self._ask(wire.UsePolicy(_text("a policy's name", name), words(options or {})), wire.DaemonStatus)

    def rules(self) -> wire.RulesInForce:
        """The rules in force, with the processes that have them, and what is wrong with their files."""
        return self._ask(wire.ListRules(), wire.RulesInForce)

    def policy_map(self) -> wire.PolicyMap:
        """The policy map, and who sees to what it refuses."""
        return self._ask(wire.GetPolicyMap(), wire.PolicyMap)

    def reload_rules(self) -> wire.RulesInForce:
        """Have the main file of rules read again; UsageError for a bad one, and what it said before stays."""
        return self._ask(wire.ReloadRules(), wire.RulesInForce)

    def status(self) -> wire.DaemonStatus:
        """The daemon's status."""
        return self._ask(wire.GetStatus(), wire.DaemonStatus)

    def workloads(self) -> list[WorkloadView]:
        """What each workload used of each GPU, also when all its tasks have ended."""
        return self._ask(wire.ListWorkloads(), wire.Workloads).workloads

    def stop(self) -> None:
        """End the daemon; it puts everything back first."""
        self._ask(wire.Stop(), wire.DaemonStatus)
        while self._connection.receive() is not None:
            pass

    def launch(
        self, pid: int, task_class: str | None, settings: Settings | None = None, region: int | None = None
    ) -> None:
        """Have all descendants of `pid` managed as they come, with settings as those of `attach`. `region` is the
        descriptor of the memory region that they will share. Then call `serve_launch` for as long as they live.
        """
        request = wire.Launch(_pid(pid), _with_class(task_class, settings), region is not None, hears=True)
        self._tasks(request, [] if region is None else [region])

    def serve_launch(self) -> Iterator[wire.BorrowRequest | wire.Note]:
        """Requests to borrow from descendants, each of which is answered with `lend`, and notes for the user, until the
        daemon hangs up.
        """
        with contextlib.suppress(OSError):
            while (body := self._connection.receive()) is not None:
                message = self._decoder.decode(body)
                if isinstance(message, wire.BorrowRequest | wire.Note):
                    yield message

    def lend(self, fd: int | OSError) -> None:
        """Answer one borrow request, with a descriptor (closed here afterwards) or with why not."""
        if isinstance(fd, OSError):
            self._connection.send(wire.Borrowed(fd.errno or 1))
        else:
            self._connection.send(wire.Borrowed(), [fd])
            os.close(fd)

    def end_launch(self) -> None:
        """Say that the command has ended. `serve_launch` ends when the daemon knows who is left of it."""
        with contextlib.suppress(OSError):
            self._connection.sock.shutdown(socket.SHUT_WR)

    def _ask(self, request: wire.Message, kind: type[_Answer], fds: Sequence[int] = ()) -> _Answer:
        frame = _frame(request)
        if self._pid != os.getpid():
            raise DaemonGone(f"this client is process {self._pid}'s, which forked: open another")
        with self._turn:
            if self._connection.sock.fileno() < 0:
                raise DaemonGone(_CLOSED)
            path = self._connection.sock.getpeername()
            try:
                answer = self._answer(frame, fds)
            except DaemonEnded:
                self._connection.close()
                if not isinstance(request, wire.GetStatus) and (other := _hangs_up(path)):
                    raise DaemonGone(other) from None
                raise
            except BaseException:  # also an interrupt: what is answered later would be taken for the next answer
                self._connection.close()
                raise
        if isinstance(answer, wire.Failure):
            other = self._another_version(answer)
            refused = _REFUSALS.get(answer.exit_code, RunlistError)
            raise refused(f"{answer.message} ({other})" if other else answer.message)
        if not isinstance(answer, kind):
            raise DaemonGone(_UNKNOWN_ANSWER)
        return answer

    def _answer(self, frame: bytes, fds: Sequence[int]) -> wire.Message:
        try:
            with contextlib.suppress(ConnectionError):  # a daemon that refuses us may have said why before it hung up
                self._connection.send_frame(frame, fds)
            self._hear_nothing()
            body = self._connection.receive()
        except TimeoutError:
            raise DaemonGone(_NO_ANSWER) from None
        except OSError:
            body = None
        except ValueError:
            raise DaemonGone(_UNKNOWN_ANSWER) from None
        if body is None:
            raise DaemonEnded("the daemon ended before it answered: everything is put back; see its log")
        try:
            answer: wire.Message = self._decoder.decode(body)
        except msgspec.MsgspecError:
            raise DaemonGone(_UNKNOWN_ANSWER) from None
        return answer

    def _hear_nothing(self) -> None:
        """Say so, once, where the daemon is silent from the beginning."""
        said, self._on_silence = self._on_silence, None
        if said is not None and not readable([self._connection.sock.fileno()], _SILENCE_S):
            said(_peer(self._connection.sock)[0])

    def _another_version(self, answer: wire.Tasks | wire.Failure) -> str:
        """A note where the daemon is of another version, which may lack features of this one; else empty."""
        return "" if answer.version == __version__ else _other_version(self.status())

    def _tasks(self, request: wire.Message, fds: Sequence[int] = ()) -> wire.Tasks:
        answer = self._ask(request, wire.Tasks, fds)
        other = self._another_version(answer)
        self.notes = [*answer.notes, other] if other else answer.notes
        return answer


def _served_by_another(path: Path, uid: int) -> str:
    from runlist.trusted import from_outside  # this happens rarely

    if uid == from_outside():
        return f"{path} is served from outside this user namespace, and by whom is not told here: run this outside, too"
    return f"{path} is served by user {uid}, not by you or root: remove it"


def _peer(sock: socket.socket) -> tuple[int, int]:
    """The daemon's process and user."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _other_version(status: wire.DaemonStatus) -> str:
    return (
        f"process {status.pid} is a daemon of Runlist {status.version}, and this is {__version__}: end it with "
        "`runlist daemon --stop`, which puts everything back, and start again what is to be managed"
    )


def _hangs_up(path: str) -> str:
    """What to say of a daemon that hung up, and goes on: one of another version does so with requests that it does not
    know. Empty for one that has ended.
    """
    try:
        again = Client._connect([Path(path)], patience_s=_SILENCE_S, on_silence=None)
        if again is None:
            return ""
        with again:
            status = again.status()
    except RunlistError:
        return ""
    return "" if status.version == __version__ else _other_version(status)


def _with_class(task_class: str | None, settings: Settings | None) -> dict[str, str]:
    """All settings of a new task; `settings` win over the class."""
    return override({} if task_class is None else {"class": _text("a class", task_class)}, words(settings or {}))


def _pid(pid: Any) -> int:
    """A process id. Raises TypeError for what is no whole number, NoTargetError for a number that no process has."""
    if isinstance(pid, bool) or not isinstance(pid, SupportsIndex):
        raise TypeError(f"a process id is a whole number, not {pid!r}")
    number = operator.index(pid)
    if not 0 < number < 1 << 31:
        raise NoTargetError(f"process {number} does not exist")
    return number


def _seconds(patience_s: Any) -> float:
    """How long to wait. Raises TypeError or ValueError for what is no time."""
    if isinstance(patience_s, bool) or not isinstance(patience_s, int | float):
        raise TypeError(f"patience_s is a number of seconds, not {patience_s!r}")
    if not 0 < patience_s <= _MOST_PATIENCE_S:
        raise ValueError(f"patience_s is more than 0, and up to {_MOST_PATIENCE_S:.0e} seconds, not {patience_s!r}")
    return float(patience_s)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is a string, not {value!r}")
    return str(value)


def words(values: Settings) -> dict[str, str]:
    """Settings or options as people write them. Raises TypeError for what is neither text nor number."""
    try:
        named = dict(values)
    except (TypeError, ValueError):
        raise TypeError(f'settings are values by name, as {{"cap": 30}}, not {values!r}') from None
    return {_text("a name", name): _word(name, value) for name, value in named.items()}


def _word(name: str, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} takes a string or a number, not {value!r}")
    if isinstance(value, numbers.Integral):
        return str(int(value))
    number = float(value)
    return f"{Decimal(repr(number)).normalize():f}" if math.isfinite(number) else repr(number)


def _frame(request: wire.Message) -> bytes:
    """A request, encoded. Raises UsageError for one that no daemon would take."""
    try:
        frame = wire.encode(request)
    except UnicodeEncodeError:
        raise UsageError("a setting is no text in UTF-8: write it anew") from None
    if len(frame) > MAX_REQUEST:
        raise UsageError(f"the settings are too long together: {len(frame)} bytes, {MAX_REQUEST} at most")
    return frame
