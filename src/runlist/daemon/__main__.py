"""`python -m runlist.daemon`: the daemon process."""

from __future__ import annotations

import runlist.daemon.lean  # noqa: F401  isort: skip  (before asyncio and structlog)

import argparse
import asyncio
import contextlib
import fcntl
import gc
import grp
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

from runlist import paths
from runlist.daemon.compose import Daemon, compose
from runlist.daemon.log_limit import LogLimit
from runlist.daemon.relay.relays import Relays
from runlist.daemon.requests.messages import Messages
from runlist.daemon.requests.server import Server
from runlist.daemon.tree.look_schedule import SETTLE_S
from runlist.errors import ExitCode, RunlistError, UsageError
from runlist.planes.interface import Plane
from runlist.planes.registry import choose_plane
from runlist.policies import DEFAULT_POLICY, PolicySpec
from runlist.proc.exhaustion import passes
from runlist.proc.inotify import OpenWatch
from runlist.protocol import environment_autogen as names

_log = structlog.get_logger()

CHECK_EVERY_S = 1.0
GUARD_EVERY_S = 0.3  # while there is a memory limit: a tree over it is suspended within a second
SLICES_EVERY = 3  # checks
SCAN_EVERY_S = 10.0  # without a sign; inotify causes most scans
FIRST_LOOK_S = 0.02
PRIVATE_LIFETIME_S = 30.0
_BACKLOG = 64


def main() -> int:
    """Parse arguments, take the socket, and serve until told to stop."""
    parser = argparse.ArgumentParser(prog="runlist daemon")
    parser.add_argument(
        "--private", nargs="?", const=PRIVATE_LIFETIME_S, type=float, metavar="S", help="end after S idle seconds"
    )
    parser.add_argument("--group", help="let this group use the socket")
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy")
    parser.add_argument("--rules", type=Path, help="file of rules and limits (docs/rules.md)")
    parser.add_argument("--ready-fd", type=int, help="write `ready` or an error line here")
    arguments = parser.parse_args()
    limit = LogLimit()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Log())),
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each managed process takes some of ours
    if arguments.private is not None and os.fork():
        os._exit(0)  # its starter must neither wait for it nor manage it as its own work
    ready = _Ready(arguments.ready_fd)
    try:
        asyncio.run(_run(arguments, ready, limit))
    except KeyboardInterrupt:  # before the loop took the signal
        return 128 + signal.SIGINT
    except (RunlistError, OSError) as error:
        code = error.exit_code if isinstance(error, RunlistError) else ExitCode.FAILED
        ready.say(f"{int(code)} {error}")
        _log.error(str(error))
        return code
    return 0


class _Log:
    """Standard error, as a log: what cannot be written, as on a full disk, is lost and disturbs nobody."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Nothing is kept back."""


class _Ready:
    """Tells the starter of the daemon how that went: one line, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def say(self, line: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, line.encode() + b"\n")
                os.close(self._fd)
            self._fd = None


async def _run(arguments: argparse.Namespace, ready: _Ready, limit: LogLimit) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `runlist daemon` until somebody takes it
    plane = choose_plane()
    plane.check()  # no driver: say so before anything else
    spec = PolicySpec(arguments.policy, dict(_option(text) for text in arguments.option))
    with _listening(plane, arguments.group) as listener:
        stop = asyncio.Event()
        daemon = compose(plane, spec, _rules_file(arguments.rules), stop.set)
        relays = Relays(plane.name)
        server = Server(listener, daemon.manager, relays, plane.name, arguments.private is not None, stop)
        messages = Messages(
            paths.messages_socket(plane), daemon.manager.hear, daemon.descriptors, relays, daemon.manager.wants
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        jobs: list[asyncio.Task[Any]] = [
            loop.create_task(_look(daemon)),
            loop.create_task(_check(daemon, limit)),
            loop.create_task(_guard(daemon)),
        ]
        if arguments.private is not None:
            jobs.append(loop.create_task(_end_when_idle(server, arguments.private)))
        jobs.append(loop.create_task(stop.wait()))
        gc.freeze()  # collections skip the objects of start-up, and so stay short
        ready.say("ready")
        _log.info("ready", driver=plane.name, policy=spec.name, pid=os.getpid())
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                if error := job.exception():
                    _log.error("the daemon failed; everything is put back", error=repr(error))
        finally:
            for job in jobs:
                job.cancel()
            messages.close()
            server.close()
            relays.close()
            daemon.close()


async def _look(daemon: Daemon) -> None:
    """Scan for new processes and contexts: soon after a GPU was opened, then more and more seldom."""
    watch = OpenWatch(daemon.plane.watch_paths())
    opened = daemon.opened
    last_opened = time.monotonic()  # rules may name processes that are there already

    def on_open() -> None:
        watch.drain()
        opened.set()

    if watch.works:
        asyncio.get_running_loop().add_reader(watch.fileno(), on_open)
    try:
        soon, pause = True, FIRST_LOOK_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(opened.wait(), pause)
                await asyncio.sleep(FIRST_LOOK_S)  # opens come in bursts
            was_opened = opened.is_set()
            if was_opened:
                last_opened = time.monotonic()
            opened.clear()
            if daemon.processes.roots or daemon.placement.rules:
                with _going_on():
                    await daemon.search.scan(walk=was_opened or not soon)
            quiet_for = time.monotonic() - last_opened
            soon = quiet_for < SETTLE_S and not daemon.search.settled
            pause = max(FIRST_LOOK_S, quiet_for / 2) if soon else SCAN_EVERY_S
    finally:
        if watch.works:
            asyncio.get_running_loop().remove_reader(watch.fileno())
        watch.close()


async def _check(daemon: Daemon, limit: LogLimit) -> None:
    count = 0
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        count += 1
        limit.say_left_out()
        with _going_on():
            daemon.gpus.read_usage(CHECK_EVERY_S / 2)
            daemon.checks.check(slices=count % SLICES_EVERY == 0)
            await daemon.processes.forget_heirs()
            await daemon.checkpoints.look()
            if daemon.processes.expected:
                daemon.opened.set()


async def _guard(daemon: Daemon) -> None:
    """Look at what trees hold: often where there is a limit. The tick costs nothing that shows."""
    looked_at = 0.0
    while True:
        await asyncio.sleep(GUARD_EVERY_S)
        if daemon.guard.hurries or time.monotonic() - looked_at >= CHECK_EVERY_S:
            looked_at = time.monotonic()
            with _going_on():
                await daemon.guard.check()


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Leave a round without descriptors or memory: there will be some again, and tenants are to be looked after."""
    try:
        yield
    except Exception as error:
        if not passes(error):
            raise
        _log.warning("a round of looking was left out", reason=str(error) or "no memory")


def _rules_file(named: Path | None) -> Path | None:
    """The rules file: the named one, else the usual one if it exists."""
    usual = paths.rules_file()
    return named if named is not None or not usual.exists() else usual


async def _end_when_idle(server: Server, lifetime_s: float) -> None:
    """Return when nobody was connected and nothing managed for `lifetime_s`; from then on nobody can connect."""
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < lifetime_s:
        await asyncio.sleep(min(1.0, lifetime_s))
        if server.busy:
            idle_since = time.monotonic()
    server.close()  # before anybody else comes


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text}: write NAME=VALUE")
    return name, value


@contextlib.contextmanager
def _listening(plane: Plane, group: str | None) -> Iterator[socket.socket]:
    """The daemon's socket, under a lock that a second daemon cannot take. A stale socket of a dead daemon is
    replaced.
    """
    path = paths.daemon_socket(plane)
    paths.make_private(path.parent, 0o711 if group else 0o700)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode().strip() or "?"
            raise RunlistError(f"a daemon runs already (process {owner}, {path}): use it, or stop it first") from None
        os.ftruncate(lock, 0)
        with contextlib.suppress(OSError):  # it tells people alone, and a disk may be full
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        if path.exists() and not path.is_socket():
            raise UsageError(f"{path} is not a socket: remove it, or name another by {names.SOCKET}")
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        _restrict(path, group)
        listener.listen(_BACKLOG)
        yield listener
        path.unlink(missing_ok=True)
    finally:
        listener.close()  # unless the server has left it to the end of this process
        os.close(lock)


def _restrict(path: Path, group: str | None) -> None:
    if group is None:
        path.chmod(0o600)
        return
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise UsageError(f"no group {group!r} on this machine") from None
    except PermissionError:
        raise UsageError(f"only root or a member may give the socket to group {group}") from None
    path.chmod(0o660)


if __name__ == "__main__":
    sys.exit(main())
