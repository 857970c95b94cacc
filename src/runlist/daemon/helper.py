"""Starting the processes that a daemon has beside it: the keeper, the actuator, and the nursery of relays."""

from __future__ import annotations

import os
import socket
import subprocess

from runlist import interpreter
from runlist.protocol import environment_autogen as names


def start(module: str, plane: str, ours: socket.socket, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Run a module of ours, as `start_program` does."""
    return start_program(interpreter.command(module), plane, ours, theirs)


def start_program(words: list[str], plane: str, ours: socket.socket, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Run a program with `theirs` as its standard input, in a session of its own: a signal to the daemon's does not
    reach it. `theirs` is closed here, and `ours`, too, where the process cannot be started. Raises OSError.
    """
    with theirs:
        try:
            return subprocess.Popen(
                words,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={**os.environ, names.DEVICE: plane},
            )
        except BaseException:
            ours.close()
            raise
