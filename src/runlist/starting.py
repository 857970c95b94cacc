"""Starting a private daemon, by the first of all who want one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from runlist import interpreter, paths, trusted
from runlist.errors import ExitCode, RunlistError
from runlist.protocol import environment_autogen as names

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

_PATHS = {names.SOCKET, names.EMULATED_GPU, names.EMULATOR_BUILD, names.NATIVE_BUILD, names.RUNTIME_DIR}

_FOR_COMMANDS = {names.PRELOAD, "LD_AUDIT", "NOTIFY_SOCKET"}

LONG_LOG = 4 << 20
"""A private daemon's log that is longer is begun anew: it may lie in memory."""


def daemon_environment(plane: Plane) -> dict[str, str]:
    """The environment for a daemon, which runs in `/`: paths in it are made absolute here."""
    environment = {**os.environ, names.DEVICE: plane.name}
    for name in environment.keys() & _PATHS:
        environment[name] = environment[name] and os.path.abspath(environment[name])
    return environment


def _private_environment(plane: Plane) -> dict[str, str]:
    """The same for one that serves whoever comes next as well: what its first client has the dynamic linker load into
    programs is for the command, and so is the word that a service manager waits for.
    """
    environment = daemon_environment(plane)
    return {name: value for name, value in environment.items() if name not in _FOR_COMMANDS}


def _opened_log(path: Path) -> BinaryIO:
    """The log, to go on with. One that has become long is put aside."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LONG_LOG:
                path.replace(path.with_name(f"{path.name}.1"))
        with trusted.usable():
            return path.open("ab")
    except OSError as error:
        raise RunlistError(
            f"{path} cannot be written ({error.strerror}): set {names.SOCKET} to a path in a folder of yours"
        ) from None


class Turn:
    """Whose turn it is to start a daemon, among all that see the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def ours(self) -> bool:
        """Whether it is ours; it then stays so. It is ours where the file cannot be made, as the daemon has a lock."""
        try:
            if self._file is None:
                paths.make_private(self._path.parent)
                with trusted.usable():
                    self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def start_private(plane: Plane) -> bool:
    """Start a private daemon and wait until it listens; False where another runs, starts or ends. Raises what else kept
    it from starting.
    """
    directory = paths.daemon_socket(plane).parent
    paths.make_private(directory)
    with _opened_log(directory / paths.LOG) as log:
        ours, theirs = os.pipe()
        with open(ours, "rb") as pipe:
            try:
                subprocess.run(  # returns at once: the daemon makes itself nobody's child
                    interpreter.command("runlist.daemon", "--private", "--ready-fd", str(theirs)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs],
                    start_new_session=True,
                    env=_private_environment(plane),
                    cwd="/",
                    check=False,
                )
            finally:
                os.close(theirs)
            line = pipe.readline().decode().strip()
    if line == "ready":
        return True
    code, _, message = line.partition(" ")
    if not message:
        raise RunlistError(f"the daemon did not start: see {directory / paths.LOG}")
    if "a daemon runs already" in message:
        return False
    raise RunlistError(message, ExitCode(int(code)))
