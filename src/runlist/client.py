"""Talking to the daemon.

with Client.open(start=True) as client:
    client.attach(4242, "batch", settings={"cap": "30", "weight": "200"})
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

import msgspec

from runlist import __version__, interpreter, paths, wire
from runlist.errors import ExitCode, NoPermissionError, NoTargetError, RunlistError, UsageError
from runlist.frames import MAX_REQUEST
from runlist.planes.registry import choose_plane
from runlist.protocol import environment_autogen as names
from runlist.views.structs import TaskView

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

_NO_ANSWER = "the daemon does not answer: wait, or look at its log"
_PATHS = {
    names.SOCKET, names.EMULATED_GPU, names.EMULATOR_BUILD, names.NATIVE_BUILD, names.RUNTIME_DIR, names.CONFIG_HOME,
}  # fmt: skip
_OTHER_VERSION = "the daemon is of another version: end it with `runlist daemon --stop`, and try again"


class DaemonGone(RunlistError):
    """The connection is of no more use: open another."""


class Client:
    """A connection to a daemon. Every method raises RunlistError with the daemon's own line when it is refused, and
    DaemonGone when no answer comes.
    """

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        self._decoder = msgspec.json.Decoder(wire.Answer)
        self.notes: list[str] = []
        """The daemon's notes on the last request that was about tasks."""

    @classmethod
    def open(cls, *, start: bool = False, device: str | None = None, patience_s: float | None = None) -> Client:
        """Connect to the daemon of a device (RUNLIST_DEVICE when None): this user's, else the system's.

        With `start`, a private daemon is started when none runs. `patience_s` is how long to wait for an answer, as
        long as it takes when None. Raises NoTargetError when there is none.
        """
        plane = choose_plane(device)
        client = cls._connect(paths.candidate_sockets(plane), pass_over_denied=start, patience_s=patience_s)
        if client is None and start:
            _start_private(plane)
            client = cls._connect([paths.daemon_socket(plane)], patience_s=patience_s)
        if client is None:
            raise NoTargetError(
                "no daemon runs: start one with `runlist daemon`, or use `runlist run` or `runlist attach`"
            )
        return client

    @classmethod
    def _connect(
        cls, candidates: list[Path], *, pass_over_denied: bool = False, patience_s: float | None
    ) -> Client | None:
        for path in candidates:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if patience_s is not None:  # with a time-out of Python's it would not wait for its turn
                limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6) + 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            try:
                sock.connect(str(path))
                sock.settimeout(patience_s)
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                continue
            except PermissionError:
                sock.close()
                if pass_over_denied:  # the system's daemon is for others: one's own will do
                    continue
                raise NoPermissionError(
                    f"no right to use the daemon's socket {path}: ask for membership of its group"
                ) from None
            except (TimeoutError, BlockingIOError):  # too many wait before us
                sock.close()
                raise DaemonGone(_NO_ANSWER) from None
            except OSError as error:
                sock.close()
                raise RunlistError(f"{path} cannot be used as the daemon's socket: {error.strerror or error}") from None
            server_uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if server_uid not in (0, os.geteuid()):
                sock.close()
                raise NoPermissionError(f"{path} is served by user {server_uid}, not by you or root: remove it")
            return cls(wire.Connection(sock))
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def messages(self) -> Path:
        """The socket on which this daemon hears what tenants say of themselves."""
        return Path(self._connection.sock.getpeername()).with_name(names.MESSAGES_SOCKET)

    def close(self) -> None:
        """Hang up. What is managed stays managed."""
        self._connection.close()

    def attach(
        self,
        pid: int,
        task_class: str | None = "normal",
        *,
        wait: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> list[TaskView]:
        """Manage a running process and its descendants, with a class (None: what the rules say) and further settings,
        as those of `set`. `wait`: also when it has no GPU context yet.
        """
        return self._tasks(wire.Attach(pid, _with_class(task_class, settings), wait)).tasks

    def detach(self, pid: int) -> list[str]:
        """Put a process back; returns notes on failures."""
        return self._tasks(wire.Detach(pid)).notes

    def release(self) -> list[str]:
        """Put everything of this user back; returns notes on failures."""
        return self._tasks(wire.Release()).notes

    def ps(self) -> list[TaskView]:
        """The managed tasks."""
        return self._tasks(wire.ListTasks()).tasks

    def set(self, pid: int, settings: Mapping[str, str]) -> list[TaskView]:
        """Change settings of a process."""
        return self._tasks(wire.Change(pid, dict(settings))).tasks

    def suspend(self, pid: int) -> list[TaskView]:
        """Take a process off its GPUs."""
        return self._tasks(wire.Suspend(pid)).tasks

    def resume(self, pid: int) -> list[TaskView]:
        """Let a suspended process run."""
        return self._tasks(wire.Resume(pid)).tasks

    def use_policy(self, name: str, options: Mapping[str, str]) -> wire.DaemonStatus:
        """Switch the policy of every GPU."""
        return self._status(wire.UsePolicy(name, dict(options)))

    def status(self) -> wire.DaemonStatus:
        """The daemon's status."""
        return self._status(wire.GetStatus())

    def stop(self) -> None:
        """End the daemon; it puts everything back first."""
        self._status(wire.Stop())
        while self._connection.receive() is not None:
            pass

    def launch(
        self, pid: int, task_class: str | None, settings: Mapping[str, str] | None = None, region: int | None = None
    ) -> None:
        """Have all descendants of `pid` managed as they come, with settings as those of `attach`. `region` is the
        descriptor of the memory region that they will share. Then call `serve_launch` for as long as they live.
        """
        request = wire.Launch(pid, _with_class(task_class, settings), region is not None)
        self._tasks(request, [] if region is None else [region])

    def serve_launch(self) -> Iterator[wire.BorrowRequest]:
        """Requests to borrow from descendants, until the daemon hangs up; answer each with `lend`."""
        with contextlib.suppress(OSError):
            while (body := self._connection.receive()) is not None:
                message = self._decoder.decode(body)
                if isinstance(message, wire.BorrowRequest):
                    yield message

    def lend(self, fd: int | OSError) -> None:
        """Answer one borrow request, with a descriptor (closed here afterwards) or with why not."""
        if isinstance(fd, OSError):
            self._connection.send(wire.Borrowed(fd.errno or 1))
        else:
            self._connection.send(wire.Borrowed(), [fd])
            os.close(fd)

    def _ask(self, request: wire.Message, fds: Sequence[int] = ()) -> wire.Message:
        frame = _frame(request)
        try:
            self._connection.send_frame(frame, fds)
            body = self._connection.receive()
        except TimeoutError:
            raise DaemonGone(_NO_ANSWER) from None
        except OSError:
            body = None
        except ValueError:
            raise DaemonGone(_OTHER_VERSION) from None
        if body is None:
            raise DaemonGone("the daemon ended before it answered: everything is put back; see its log")
        try:
            answer: wire.Message = self._decoder.decode(body)
        except msgspec.MsgspecError:
            raise DaemonGone(_OTHER_VERSION) from None
        if isinstance(answer, wire.Failure):
            other = self._another_version(answer)
            raise RunlistError(f"{answer.message} ({other})" if other else answer.message, ExitCode(answer.exit_code))
        return answer

    def _another_version(self, answer: wire.Tasks | wire.Failure) -> str:
        """A note where the daemon is of another version, which may lack features of this one; else empty."""
        if answer.version == __version__:
            return ""
        old = self.status()
        return (
            f"process {old.pid} is a daemon of Runlist {old.version}, and this is {__version__}: end it with "
            "`runlist daemon --stop`, which puts everything back, and start again what is to be managed"
        )

    def _tasks(self, request: wire.Message, fds: Sequence[int] = ()) -> wire.Tasks:
        answer = self._ask(request, fds)
        if not isinstance(answer, wire.Tasks):
            raise DaemonGone(_OTHER_VERSION)
        other = self._another_version(answer)
        self.notes = [*answer.notes, other] if other else answer.notes
        return answer

    def _status(self, request: wire.Message) -> wire.DaemonStatus:
        answer = self._ask(request)
        if not isinstance(answer, wire.DaemonStatus):
            raise DaemonGone(_OTHER_VERSION)
        return answer


def _with_class(task_class: str | None, settings: Mapping[str, str] | None) -> dict[str, str]:
    """All settings of a new task; `settings` win over the class."""
    return {**({} if task_class is None else {"class": task_class}), **(settings or {})}


def _frame(request: wire.Message) -> bytes:
    """A request, encoded. Raises UsageError for one that no daemon would take."""
    try:
        frame = wire.encode(request)
    except UnicodeEncodeError:
        raise UsageError("a setting is no text in UTF-8: write it anew") from None
    if len(frame) > MAX_REQUEST:
        raise UsageError(f"the settings are too long together: {len(frame)} bytes, {MAX_REQUEST} at most")
    return frame


def daemon_environment(plane: Plane) -> dict[str, str]:
    """The environment for a daemon, which runs in `/`: paths in it are made absolute here."""
    environment = {**os.environ, names.DEVICE: plane.name}
    for name in environment.keys() & _PATHS:
        environment[name] = environment[name] and os.path.abspath(environment[name])
    return environment


def _opened_log(path: Path) -> BinaryIO:
    try:
        return path.open("ab")
    except OSError as error:
        raise RunlistError(
            f"{path} cannot be written ({error.strerror}): set {names.SOCKET} to a path in a folder of yours"
        ) from None


def _start_private(plane: Plane) -> None:
    """Start a private daemon and wait until it listens. Raises what kept it from starting."""
    ours, theirs = os.pipe()
    plane.check()  # no driver: say so before anything is made
    directory = paths.daemon_socket(plane).parent
    paths.make_private(directory)
    with _opened_log(directory / "daemon.log") as log:
        subprocess.run(  # returns at once: the daemon makes itself nobody's child
            interpreter.command("runlist.daemon", "--private", "--ready-fd", str(theirs)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            start_new_session=True,
            env=daemon_environment(plane),
            cwd="/",
            check=False,
        )
    os.close(theirs)
    with open(ours, "rb") as pipe:
        line = pipe.readline().decode().strip()
    if line == "ready":
        return
    code, _, message = line.partition(" ")
    if not message:
        raise RunlistError(f"the daemon did not start: see {directory / 'daemon.log'}")
    if "a daemon runs already" not in message:  # somebody else was quicker: fine
        raise RunlistError(message, ExitCode(int(code)))
