"""Making a command a client of MPS, beside others on the same GPUs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runlist import interpreter, paths
from runlist.errors import NoTargetError, NotSupportedError, RunlistError, UsageError
from runlist.planes.interface import Plane
from runlist.protocol import environment_autogen as names
from runlist.sharing import attendant, gpus, mps, places
from runlist.waiting import readable

_KEY = 12  # characters of a folder's name
_READY_S = 60.0
_MOST_SERVERS = 64  # that are watched
_NORMAL, _BELOW_NORMAL = "0", "1"  # priorities of clients


@dataclass
class Joined:
    """What makes a command a client: variables to add to its environment, and the descriptor that it is to inherit.
    `notes` are for the person who runs it.
    """

    variables: dict[str, str]
    descriptor: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Server:
    """A control daemon: its program, and its pipe folder. `own` where an attendant of ours runs it."""

    program: str
    pipe: Path
    own: bool


def check(task_class: str, sms: str | None) -> None:
    """Refuse before anything starts what is wrong on every GPU. Raises UsageError."""
    if task_class not in ("latency", "batch"):
        raise UsageError("--share sms has two classes: give --class latency (one at a time) or --class batch")
    if sms is not None:
        gpus.percent_of(sms, [])
    if "/" in os.environ.get(names.OPERATIONS, ""):
        raise UsageError("this runs inside another `runlist run --share sms`: give --share, --class and --sms there")


@contextlib.contextmanager
def joined(plane: Plane, task_class: str, sms: str | None, say: Callable[[str], None]) -> Iterator[Joined]:
    """Variables and a place for a command, as long as this lasts; the place stays with what of it lives on.

    `say` is told when the server ends under it. `check` comes before. Raises RunlistError.
    """
    program = mps.program()
    plain = {**mps.environment(os.environ), **_visible(os.environ), **plane.environment()}
    named = os.environ.get(names.MPS_PIPES)
    root = paths.sharing_dir(plane)
    if named and mps.servers(program, Path(named)) is None:
        raise NoTargetError(f"no MPS control daemon answers in {named}: start one there, or unset {names.MPS_PIPES}")
    try:
        found = gpus.look({**plain, names.MPS_PIPES: named or str(root / "none")})
    except gpus.Refused as error:
        raise NotSupportedError(f"--share sms: no GPU can be used here: {error}") from None
    gpus.check(found)
    percent = None if sms is None else gpus.percent_of(sms, found)
    paths.make_private(root)
    folder = root / _key(named, found)
    with places.Turn(root / places.TURN):
        _sweep(root)
        server = _named(program, named, folder) if named else _ours(program, folder, found)
        place = _take(folder, first=task_class == "latency")
    try:
        variables = {
            names.MPS_PIPES: str(server.pipe),
            names.MPS_PRIORITY: _NORMAL if task_class == "latency" else _BELOW_NORMAL,
            names.OPERATIONS: str(folder / places.PAGE),
            names.OPERATIONS_CLIENT: str(place.index),
        }
        if server.own and _visible(os.environ):  # our control daemon numbers the GPUs anew, from 0
            variables[names.VISIBLE_DEVICES] = ",".join(map(str, range(len(found))))
        if percent is not None:
            variables[names.MPS_PERCENTAGE] = str(percent)
        try:
            given = min(gpu.sms for gpu in gpus.look({**plain, **variables}))
        except (gpus.Refused, ValueError) as error:
            raise gpus.unusable(found, gpus.Refused(str(error))) from None
        notes = []
        if percent is not None:
            variables[names.SMS] = str(given)
            if sms is not None and sms.strip().isdigit() and given != int(sms):
                notes.append(f"{given} SMs instead of {sms}: MPS gives them in steps")
        with _watching(server, say):
            yield Joined(variables, place.fd, notes)
    finally:
        place.close()
        if not places.is_held(folder / attendant.LOCK):  # else the attendant sees to it
            with contextlib.suppress(RunlistError, OSError), places.Turn(root / places.TURN):
                _clear(folder)


def _visible(environment: Mapping[str, str]) -> dict[str, str]:
    return {names.VISIBLE_DEVICES: environment[names.VISIBLE_DEVICES]} if names.VISIBLE_DEVICES in environment else {}


def _key(named: str | None, found: Sequence[gpus.Gpu]) -> str:
    """The folder's name: those who share have the same GPUs in the same order, and the same control daemon."""
    whose = os.path.realpath(named) if named else ""
    return hashlib.sha256("\n".join([whose, *(gpu.uuid for gpu in found)]).encode()).hexdigest()[:_KEY]


def _named(program: str, named: str, folder: Path) -> _Server:
    """A control daemon that somebody else runs, which is not ended."""
    paths.make_private(folder)
    return _Server(program, Path(named).absolute(), own=False)


def _ours(program: str, folder: Path, found: Sequence[gpus.Gpu]) -> _Server:
    """A control daemon of this user for these GPUs, which is started where none runs."""
    pipe = folder / attendant.PIPE
    if not places.is_held(folder / attendant.LOCK):
        mps.check_path(pipe)
        if folder.exists():
            raise _silent(folder)
        paths.make_private(folder)
        try:
            os.close(places.open_places(folder))
            _start(program, folder, [gpu.uuid for gpu in found])
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    elif mps.servers(program, pipe) is None:
        raise _silent(folder)
    return _Server(program, pipe, own=True)


def _silent(folder: Path) -> RunlistError:
    return RunlistError(
        f"the MPS control daemon of these GPUs does not answer ({folder}): it starts anew once its programs have ended"
    )


def _start(program: str, folder: Path, uuids: Sequence[str]) -> None:
    """Start an attendant, and wait until its control daemon answers. Raises RunlistError."""
    ours, theirs = os.pipe()
    turn = folder.with_name(places.TURN)
    try:
        subprocess.run(  # returns at once: it makes itself nobody's child
            interpreter.command(
                "runlist.sharing.attendant", str(folder), str(turn), program, ",".join(uuids), str(theirs)
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs],
            start_new_session=True, env=mps.environment(os.environ), cwd="/", check=False,
        )  # fmt: skip
    finally:
        os.close(theirs)
    with open(ours, "rb") as pipe:
        line = b"no answer"
        if readable([ours], _READY_S):
            line = pipe.readline().strip()
    if line != b"ready":
        raise NotSupportedError(line.decode(errors="replace") or f"{mps.CONTROL} was killed as it started: try again")


def _take(folder: Path, *, first: bool) -> places.Place:
    """A place, in our turn. Raises RunlistError where there is none."""
    taken = places.take(folder, first=first)
    if isinstance(taken, places.Place):
        return taken
    if taken is None:
        raise RunlistError(f"{places.CLIENTS - 1} batch programs share these SMs already: wait until one has ended")
    whose = f"process {taken}" if taken else "another program"
    raise RunlistError(
        f"{whose} is the latency program on these SMs, and there is one at most: give --class batch, or wait"
    )


def _sweep(root: Path) -> None:
    """Clear away, in our turn, what killed processes left."""
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                _clear(Path(entry.path))


def _clear(folder: Path) -> None:
    """Remove a folder, in our turn, if no attendant has it and nobody is there."""
    if not folder.exists() or places.is_held(folder / attendant.LOCK) or places.is_held(folder / places.PLACES):
        return
    mps.kill_left(folder / attendant.PIPE)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _watching(server: _Server, say: Callable[[str], None]) -> Iterator[None]:
    """Say once, while this lasts, that the server that programs are clients of now has ended."""
    watched = {}
    for pid in list(dict.fromkeys(mps.servers(server.program, server.pipe) or []))[:_MOST_SERVERS]:
        with contextlib.suppress(OSError):
            watched[os.pidfd_open(pid)] = pid
    stop = os.eventfd(0, os.EFD_CLOEXEC)

    def watch() -> None:
        ended = [watched[fd] for fd in readable([*watched, stop]) if fd != stop]
        ended += [watched[fd] for fd in readable([*watched], 0) if watched[fd] not in ended]
        if ended:
            say(
                f"the MPS server (process {ended[0]}) has ended: the programs on it get errors from the driver, start "
                "them again"
            )
        elif any(mps.has_fault(server.program, server.pipe, pid) for pid in watched.values()):
            say("the MPS server is out of order: the fault of one program took down all that share its SMs")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(stop, 1)
        thread.join()
        for fd in (*watched, stop):
            os.close(fd)
