"""`python -m runlist.daemon`: the daemon process."""

from __future__ import annotations

from runlist.daemon.lean import keep_little  # isort: skip  (before asyncio and structlog)

import argparse
import asyncio
import contextlib
import fcntl
import grp
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from runlist import lean, log, paths
from runlist.daemon.compose import Daemon, compose
from runlist.daemon.placement.rule import CPU_WEIGHTS
from runlist.daemon.relay.relays import Relays
from runlist.daemon.requests.apart import Apart
from runlist.daemon.requests.messages import Messages, Rests, bind
from runlist.daemon.requests.server import Server
from runlist.daemon.service import ServiceManager
from runlist.daemon.tree.look_schedule import QUIET_S, SETTLE_S
from runlist.daemon.undo.record import Record, settle
from runlist.errors import ExitCode, NoPermissionError, RunlistError, UsageError
from runlist.log_limit import LogLimit
from runlist.planes.interface import Plane
from runlist.planes.registry import choose_plane, load_ahead
from runlist.policies import DEFAULT_POLICY, PolicySpec
from runlist.proc import threads
from runlist.proc.aside import wait_for_nobody
from runlist.proc.exhaustion import passes
from runlist.proc.inotify import OpenWatch
from runlist.proc.pool import Pool, leave
from runlist.protocol import environment_autogen as names

_log = structlog.get_logger()

CHECK_EVERY_S = 1.0
CALM_CHECK_EVERY_S, CALM_AFTER_S = 2.0, 10.0  # once no GPU was in use for so long, and the kernel tells of the rest
GUARD_EVERY_S = 0.3  # while there is a memory limit: a tree over it is suspended within a second
CHECKPOINTS_REST = 10  # so many times what a look at who waits for one took
SLICES_EVERY_S = 3
TOLD_EVERY_S = 30  # of files and slices, while the kernel tells of changes: they are looked at all the same
WEIGHTS_EVERY_S = 2  # of cgroups whose CPU weight tasks follow
SCAN_EVERY_S = 10.0  # without a sign; inotify causes most scans
SCAN_EVERY_TOLD_S = 30.0  # while the kernel tells of new groups
NEWCOMERS_EVERY_S = 0.5  # with drop-ins: containers may open device nodes of their own, of which inotify does not tell
NEWCOMERS_REST, NEWCOMERS_LONGEST_S = 100, 2.0  # so many times what a look took: 14 ms beside two H200
FIRST_LOOK_S = 0.02
PRIVATE_LIFETIME_S, IDLE_LOOKS = 30.0, 10
AHEAD_S = 0.5  # after which it loads what the first tenant will take: who starts a daemon waits for nothing of it
THREADS_TURN_S = 0.0005  # how long a thread that reads files may keep the interpreter from the loop, which answers
_BACKLOG = 64
_FEWEST_FILES = 128  # open at a time: half of them are no connection's


def main() -> int:
    """Parse arguments, take the socket, and serve until told to stop."""
    log.have_streams()
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
    keep_little()
    os.umask(os.umask(0o077) & 0o077)  # what it makes is of use to the next one, too
    limit = LogLimit()
    log.to_standard_error(limit)
    manager = ServiceManager(os.environ)
    threads.refuse_without_memory()
    wait_for_nobody()
    if arguments.private is not None and os.fork():
        os._exit(0)  # its starter must neither wait for it nor manage it as its own work
    ready = _Ready(arguments.ready_fd, manager)
    ended: int | None = None
    try:
        _may_open_files()
        with asyncio.Runner() as runner:
            ended = runner.run(_run(arguments, ready, limit))
    except KeyboardInterrupt:  # before the loop took the signal
        return 128 + signal.SIGINT
    except Exception as error:
        if ended is not None and passes(error):  # everything is put back: it is the loop that finds no room to end
            return ended
        if not isinstance(error, (RunlistError, OSError)) and not passes(error):
            raise
        code = error.exit_code if isinstance(error, RunlistError) else ExitCode.FAILED
        reason = f"there is no room for a daemon ({error or 'no memory'}): see `ulimit -a`" if passes(error) else error
        if isinstance(reason, OSError) and reason.filename:
            reason = f"{reason.filename} cannot be used: {reason.strerror}"
        ready.say(f"{int(code)} {reason}")
        _log.error(str(reason))
        return code
    return ended


def _may_open_files() -> None:
    """Have as many as we may, since each managed process takes some of ours. Raises RunlistError for too few."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= most < _FEWEST_FILES:
        raise RunlistError(f"only {most} files may be open (`ulimit -Hn`): a daemon needs {_FEWEST_FILES} at least")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Ready:
    """Tells the starter of the daemon how that went: one line, once."""

    def __init__(self, fd: int | None, manager: ServiceManager) -> None:
        self._fd = fd
        self.manager = manager

    def say(self, line: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, line.encode() + b"\n")
                os.close(self._fd)
            self._fd = None


async def _run(arguments: argparse.Namespace, ready: _Ready, limit: LogLimit) -> int:
    """Serve until told to stop; the exit code: one that gives up has failed, and a service manager starts another."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whatever who started us ignores and blocks, as sigwait needs it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # SIGINT: `runlist daemon` blocks it until somebody takes it
    plane = choose_plane()
    plane.check()  # no driver: say so before anything else
    spec = PolicySpec(arguments.policy, dict(_option(text) for text in arguments.option))
    with _listening(plane, arguments.group, ready.manager) as listener:
        stop, hopeless = asyncio.Event(), asyncio.Event()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be taken
        rules_file = partial(_rules_file, arguments.rules)
        daemon = compose(plane, spec, rules_file, paths.drop_ins(plane), _record(plane), hopeless.set)
        relays = Relays(plane.name)
        hear = partial(
            Messages, on_message=daemon.manager.hear, discarder=daemon.descriptors, strangers=relays,
            wants=daemon.manager.wants, rests=Rests(),
        )  # fmt: skip
        heard_at = paths.messages_socket(plane)
        messages = hear(heard_at)
        apart = Apart(heard_at, lambda uid: hear(paths.messages_apart(heard_at, uid), user=uid))
        server = Server(
            listener, daemon.manager, relays, plane.name, arguments.private is not None, stop,
            shared=ready.manager.listens, on_user=apart.hear if messages.shared else lambda _: None,
        )  # fmt: skip
        shown = _show_to_containers(heard_at, paths.tenants_folder(plane))
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Pool())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        hung_up = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        jobs: list[asyncio.Task[Any]] = [
            loop.create_task(_look(daemon)),
            loop.create_task(_check(daemon, limit, checked := asyncio.Event())),
            loop.create_task(_guard(daemon, checked)),
            loop.create_task(_see_checkpoints(daemon, checked)),
            loop.create_task(daemon.drop_ins.follow()),
            loop.create_task(_reload(daemon, hung_up, ready.manager)),
        ]
        if ready.manager.alive_every_s is not None:
            jobs.append(loop.create_task(_say_alive(ready.manager, ready.manager.alive_every_s)))
        if arguments.private is not None:
            jobs.append(loop.create_task(_end_when_idle(server, arguments.private)))
        jobs += [loop.create_task(stop.wait()), loop.create_task(hopeless.wait())]
        daemon.kernel.start()
        sys.setswitchinterval(THREADS_TURN_S)
        lean.started()
        ready.say("ready")
        ready.manager.ready(f"policy {spec.name} on {plane.name}")
        _log.info("ready", driver=plane.name, policy=spec.name, pid=os.getpid())
        loop.call_later(AHEAD_S, _load_ahead, plane)
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                if error := job.exception():
                    hopeless.set()
                    _log.error("the daemon failed; everything is put back", error=repr(error))
        finally:
            ready.manager.stopping()
            for job in jobs:
                job.cancel()
            if shown is not None:
                shown.unlink(missing_ok=True)
            messages.close()
            apart.close()
            server.close()
            relays.close()
            daemon.close()
    return ExitCode.FAILED if hopeless.is_set() else 0


def _load_ahead(plane: Plane) -> None:
    with _going_on():
        load_ahead(plane, "daemon")


def _record(plane: Plane) -> Record:
    """A record of changes of our own, after those are put back that an earlier daemon left."""
    path = paths.daemon_socket(plane).with_suffix(paths.RECORD)
    settle(path, plane.rescue)
    return Record(path)


def _show_to_containers(messages: Path, folder: Path) -> Path | None:
    """Give the messages' socket a second name in a folder that containers may see; None where that cannot be."""
    shown, made = folder / messages.name, folder / f".{messages.name}"
    try:
        paths.make_private(folder, 0o755)
        made.unlink(missing_ok=True)
        made.hardlink_to(messages)
        made.replace(shown)
    except (OSError, RunlistError) as error:
        _log.warning("containers cannot send messages", reason=str(error))
        return None
    return shown


async def _say_alive(manager: ServiceManager, every_s: float) -> None:
    """A loop that stands still says nothing, and the service manager starts a new daemon."""
    while True:
        manager.alive()
        await asyncio.sleep(every_s)


async def _look(daemon: Daemon) -> None:
    """Scan for new processes and contexts: soon after a GPU was opened, then more and more seldom. While the kernel
    tells of each group that is made, opens cause none: what asks a GPU how it is opens it, too, every few seconds.
    """
    watch = OpenWatch(daemon.plane.watch_paths())
    opened = daemon.opened
    last_opened = time.monotonic()  # rules may name processes that are there already
    listens = False

    def on_open() -> None:
        nonlocal listens
        watch.drain()
        loop.remove_reader(watch.fileno())  # a flood of opens is told once a look
        listens = False
        if not daemon.kernel.works:
            opened.set()

    def listen() -> None:
        nonlocal listens
        if watch.works and not listens:
            watch.drain()  # of what was opened since then the look tells that comes now
            loop.add_reader(watch.fileno(), on_open)
            listens = True

    loop = asyncio.get_running_loop()
    listen()
    try:
        await daemon.sightings.begun()
        soon, pause, scanned_at = True, FIRST_LOOK_S, time.monotonic()
        newcomers_s = NEWCOMERS_EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # before Python 3.12 `wait_for` may forget that it was cancelled
                    await opened.wait()
                await asyncio.sleep(max(FIRST_LOOK_S, daemon.search.took_s))  # opens come in bursts
            was_opened = opened.is_set()
            opened.clear()
            listen()
            wanted = bool(daemon.processes.roots or daemon.placement.rules)
            longest = SCAN_EVERY_TOLD_S if daemon.kernel.works else SCAN_EVERY_S
            due = was_opened or soon or time.monotonic() - scanned_at >= longest
            if wanted and not due:
                with _going_on():
                    since = time.monotonic()
                    was_opened = await daemon.search.has_newcomers()  # by device nodes that we do not watch
                    newcomers_s = max(NEWCOMERS_EVERY_S, NEWCOMERS_REST * (time.monotonic() - since))
            if was_opened:
                last_opened = time.monotonic()
            if wanted and (due or was_opened):
                scanned_at = time.monotonic()
                with _going_on():
                    await daemon.search.scan(walk=was_opened or not soon)
            if daemon.search.missed:  # what that one had may be others' now
                opened.set()
            by_chance = wanted and due and not (was_opened or soon)
            quiet_for = time.monotonic() - last_opened
            soon = quiet_for < SETTLE_S and not daemon.search.settled
            pause = max(FIRST_LOOK_S, quiet_for / 2) if soon else longest
            if by_chance:  # what came since the last walk is looked at once it has come to rest
                soon, pause = True, 2 * QUIET_S
            if daemon.placement.rules.drop_ins:
                pause = min(pause, newcomers_s, NEWCOMERS_LONGEST_S)
    finally:
        if watch.works:
            loop.remove_reader(watch.fileno())
        watch.close()


async def _check(daemon: Daemon, limit: LogLimit, checked: asyncio.Event) -> None:
    seconds = calm_s = 0
    rest_s = CHECK_EVERY_S
    told = True  # by the kernel, of all that processes changed since they were looked at

    def comes(every_s: int) -> bool:
        return seconds // every_s > int(seconds - rest_s) // every_s

    while True:
        await asyncio.sleep(rest_s)
        seconds += int(rest_s)
        calm = True
        limit.say_left_out()
        with _going_on():
            calm = not daemon.gpus.read_usage(CHECK_EVERY_S / 2)
            daemon.gpus.look_beside()
            daemon.keeper.look()
            told = daemon.kernel.check() and told
            calm &= told
            files, due = not told or comes(TOLD_EVERY_S), comes(SLICES_EVERY_S)
            slices = files and due
            asking: set[int] = set()  # who may have changed more than that
            if due:  # monitors ask the driver all the time, and to learn who did is a question for each task
                daemon.sightings.count()
                asking = daemon.kernel.asking(daemon.processes.managed)
            daemon.checks.check(files, slices, asking)
            calm &= not daemon.rousing.look()
            told = told or slices
            await daemon.processes.forget_heirs()
            await daemon.search.seek(listed=not daemon.kernel.works)
            daemon.manager.look_who_joined()
            daemon.manager.look_who_is_left()
            if comes(WEIGHTS_EVERY_S) and CPU_WEIGHTS.changed():
                daemon.revision.rules_changed(None)
            if daemon.processes.expected:
                calm = False
                daemon.opened.set()
        calm_s = calm_s + int(rest_s) if calm else 0
        rest_s = CALM_CHECK_EVERY_S if calm_s >= CALM_AFTER_S else CHECK_EVERY_S
        checked.set()  # whoever waits is awake
        checked.clear()


async def _reload(daemon: Daemon, asked: asyncio.Event, manager: ServiceManager) -> None:
    """Read the main file of rules again, each time that a signal asks for it."""
    while True:
        await asked.wait()
        asked.clear()
        manager.reloading()
        with _going_on():
            await daemon.revision.reload_or_say()
        manager.ready(daemon.placement.wrong or "the rules were read again")


async def _see_checkpoints(daemon: Daemon, checked: asyncio.Event) -> None:
    """Look behind checks who waits to checkpoint a process: for one with many descriptors nothing else waits."""
    rests_until = 0.0
    while True:
        await checked.wait()
        began = time.monotonic()
        if began < rests_until:
            continue
        with _going_on():
            await daemon.checkpoints.look()
        ended = time.monotonic()
        rests_until = ended + CHECKPOINTS_REST * (ended - began)


async def _guard(daemon: Daemon, checked: asyncio.Event) -> None:
    """Look at what trees hold: often where there is a limit, and else behind each check, as we are awake then, unless
    that stands.
    """
    chance = random.SystemRandom()
    while True:
        if daemon.guard.hurries:
            # Who knew the moments could keep out of them.
            await asyncio.sleep(GUARD_EVERY_S * chance.uniform(0.5, 1.5))
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.5 * CALM_CHECK_EVERY_S):
                    await checked.wait()
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
    """The rules file: the named one, else the usual one if it is there, also as a link that leads nowhere. Raises
    NoPermissionError where that cannot be told.
    """
    if named is not None:
        return named
    try:
        usual = paths.rules_file()
    except NoPermissionError:  # this user has no home
        return None
    try:
        usual.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        advice = "set HOME to a folder of this user's, or name the rules by --rules"
        raise NoPermissionError(f"{usual} cannot be looked for: {error.strerror}: {advice}") from None
    return usual


async def _end_when_idle(server: Server, lifetime_s: float) -> None:
    """Return when nobody was connected and nothing managed for `lifetime_s`; from then on nobody can connect."""
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < lifetime_s:
        await asyncio.sleep(lifetime_s / IDLE_LOOKS)
        if server.busy:
            idle_since = time.monotonic()
    server.close()  # before anybody else comes


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text}: write NAME=VALUE")
    return name, value


@contextlib.contextmanager
def _listening(plane: Plane, group: str | None, manager: ServiceManager) -> Iterator[socket.socket]:
    """The daemon's socket, under a lock that a second daemon cannot take. A stale socket of a dead daemon is
    replaced; one that a service manager listens on for us is taken, and left there.
    """
    path = paths.daemon_socket(plane)
    paths.make_private(path.parent, 0o711 if group else 0o700)
    lock = os.open(path.with_suffix(paths.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    passed = manager.listener(path)
    listener = passed or socket.socket(socket.AF_UNIX)
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
        if passed is None:
            path.unlink(missing_ok=True)
            bind(listener, path)
        _restrict(path, group)
        listener.listen(_BACKLOG)
        yield listener
        if passed is None:
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
    leave(main())
