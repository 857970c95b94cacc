"""Running a command for `runlist run`: as its parent we have the right to borrow from all that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

from runlist.cli import child
from runlist.cli.common import say
from runlist.cli.forwarding import Forwarding
from runlist.cli.tree import Tree
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.planes.interface import Plane
from runlist.proc import borrow
from runlist.protocol import environment_autogen as names
from runlist.wire import REGION_REFUSED, Note

_PR_SET_CHILD_SUBREAPER = 36
_PARTING_S = 1.0  # how long to wait for the daemon at the end
_SILENCE_S = 3.0  # how long to wait without a word: a daemon on a busy machine may take more than one


def run_command(
    client: Client, command: list[str], settings: dict[str, str], plane: Plane, tree: Tree, without: Tree | None
) -> int:
    """Run a command under the daemon of `client` until it ends; returns its exit code, 128 + number for a signal, and a
    shell's where it cannot be started.

    `settings` are for all that the command starts; `tree` was prepared for it, and `without` is what it gets where the
    daemon refuses the tree's region; None where it needs one.
    """
    # Orphans of the command become our children, and so stay below us in the process tree.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    patience = threading.Timer(_SILENCE_S, _say_that_it_waits)
    waiting = _started(patience)
    tree = _launch(client, settings, tree, without)  # returns when there is room for it
    patience.cancel()
    if waiting:
        patience.join()
    for note in client.notes:
        say(note)
    forwarding = Forwarding()
    children = child.Children()
    variables = {names.MESSAGES: str(client.messages), **tree.variables, **plane.environment()}
    try:
        process = child.start(command, variables, tree.inherited, ignores_children=children.are_ignored)
    except OSError as error:
        forwarding.close()
        return child.not_started(command, error)
    forwarding.to(process.pid)
    lending = threading.Thread(target=_lend, args=(client,))
    lends = _started(lending)
    if not lends:  # the command goes on all the same
        say("there is no room for a thread here (`ulimit -u`): managed is only what the daemon reaches by itself")
    while True:
        pid, status = children.next(-1, process.pid)  # orphans are reaped on the way
        if os.WIFSTOPPED(status):
            if pid == process.pid:
                child.stop_as_well(pid)
            continue
        forwarding.reaped(pid)
        if pid == process.pid:
            code = child.ended(process, status)
            forwarding.close()
            if child.are_left():  # they stay in the tree, although we do not stay above them
                client.end_launch()
                if lends:
                    lending.join(_PARTING_S)
            return code


def _started(thread: threading.Thread) -> bool:
    """Start one for whose end nobody waits; False where there is no room for it."""
    thread.daemon = True
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _launch(client: Client, settings: dict[str, str], tree: Tree, without: Tree | None) -> Tree:
    """Returns the tree that the daemon took."""
    try:
        client.launch(os.getpid(), None, settings, tree.region)
    except RunlistError as error:
        if tree.region is None or without is None or not str(error).startswith(REGION_REFUSED):
            raise
        say(f"{error}; going on without")
        unlimited = {key: value for key, value in settings.items() if key != "memory"}
        client.launch(os.getpid(), None, unlimited)
        client.notes = [note for note in client.notes if note not in str(error)]  # such as that its version is another
        return without
    return tree


def _say_that_it_waits() -> None:
    say("waits for room on a GPU; `runlist policy show` says who else does")


def _lend(client: Client) -> None:
    """Answer the daemon's requests to borrow from our descendants, and say what it has to say of them, until it is gone
    or the command has ended.
    """
    with contextlib.suppress(OSError):
        for request in client.serve_launch():
            if isinstance(request, Note):
                say(request.text)
                continue
            try:
                pidfd = os.pidfd_open(request.pid)
                try:
                    fd = borrow.borrow(pidfd, request.fd)
                finally:
                    os.close(pidfd)
            except OSError as error:
                client.lend(error)
            else:
                client.lend(fd)
