"""Terminals of a user's: the daemon opens none, since it could become its own, whose keys are signals to it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, Commands, Daemon, needs_root, running, wait_for

pytestmark = [needs_root, pytest.mark.skipif(ON_NVIDIA, reason="its program is an interpreter beside the emulated GPU")]

_KEYS = b"\x1a\x1c\x03"
"""Ctrl-Z, Ctrl-backslash and Ctrl-C."""

_CONTEXT = """
import ctypes, time
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
time.sleep(99)
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    """A terminal of nobody's: the end that has the keys, and its path."""
    keys, screen = os.openpty()
    path = os.ttyname(screen)
    os.fchown(screen, NOBODY, NOBODY)
    os.fchmod(screen, 0o755)  # as a program's file
    os.close(screen)
    yield keys, path
    with contextlib.suppress(OSError):
        os.close(keys)


def test_a_program_with_the_path_of_a_terminal_gives_the_daemon_none(
    commands: Commands, start_daemon: Callable[..., Daemon], terminal: tuple[int, str]
) -> None:
    """The path of a program is what it is in the file system that its user made up."""
    keys, path = terminal
    commands.options = {"start_new_session": True}  # as a manager of services, or `runlist daemon` itself, does
    daemon = start_daemon()
    interpreter = Path(sys.executable).resolve()
    script = f'mount -t tmpfs none "$(dirname {path})" && cp {interpreter} {path} && exec {path} -c "$1"'
    hidden = ["env", "LD_PRELOAD=/none/librunlist.so", "unshare", "-m", "sh", "-c", script, "sh", _CONTEXT]
    environment = {**commands.environment, "PYTHONHOME": sys.base_prefix}
    commands.start("run", "--memory", "1G", "--no-strict", "--", *hidden, env=environment)
    wait_for(daemon.client.ps, "the task")
    (task,) = daemon.client.ps()
    assert os.readlink(f"/proc/{task.pid}/exe") == path
    assert task.enforcement.startswith("not loaded: ")
    assert Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[4] == "0", "it has a terminal"
    os.write(keys, _KEYS)
    time.sleep(0.5)
    assert running(daemon.pid)
    assert daemon.client.ps()
