"""The process that starts an MPS control daemon, and ends it when its last client is gone.

`runlist.sharing.attendant FOLDER TURN PROGRAM GPUS READY` is nobody's child. It says `ready` on descriptor READY, or
what is wrong. The control daemon ends with it, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from runlist.errors import RunlistError
from runlist.protocol import environment_autogen as names
from runlist.sharing import mps, places
from runlist.waiting import readable

LOCK = "attendant"
PIPE, LOG = "pipe", "log"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_START_S, _QUIT_S = 30.0, 20.0
_LOOK_S = 0.05
_ASKED_S = 1.0  # who asks whether we are there has our lock for a moment
_CLIENTS_LOOK_S = 1.0
_LAST_WORDS = 400  # characters


class _Control:
    """The control daemon, as our child."""

    def __init__(self, program: str, folder: Path, gpus: str) -> None:
        self._program, self._folder = program, folder
        self.pipe, self._log = folder / PIPE, folder / LOG
        for made in (self.pipe, self._log):
            made.mkdir(mode=0o700)
        environment = {**mps.environment(os.environ), **mps.folders(self.pipe, self._log)}
        if gpus:
            environment[names.VISIBLE_DEVICES] = gpus
        us = os.getpid()

        def end_with_us() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != us:
                os._exit(1)

        with (self._log / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [program, "-f"], env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                preexec_fn=end_with_us,  # noqa: PLW1509 (we have no other thread yet)
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until_it_answers(self) -> None:
        """Raises RunlistError where it does not."""
        deadline = time.monotonic() + _START_S
        while mps.servers(self._program, self.pipe) is None:
            if self.ended() or time.monotonic() > deadline:
                raise RunlistError(f"{mps.CONTROL} did not start: {self._last_words()}")
            time.sleep(_LOOK_S)

    def has_clients(self) -> bool:
        return not self.ended() and bool(mps.clients(self._program, self.pipe))

    def end(self) -> None:
        """End it, and what it started. Its clients are gone."""
        if not self.ended() and mps.ask(self._program, self.pipe, "quit") is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_QUIT_S)
        self.kill()

    def kill(self) -> None:
        """The same, at once."""
        if not self.ended():
            self._process.kill()
            self._process.wait()
        mps.kill_left(self.pipe)

    def _last_words(self) -> str:
        for name in ("said", "control.log"):
            with contextlib.suppress(OSError):
                lines = (self._log / name).read_text(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1][-_LAST_WORDS:]
        return "it says nothing" if self.ended() else f"no answer in {_START_S:.0f} s"


def _wait_for_the_end(folder: Path, turn: Path, control: _Control) -> None:
    """Return, in our turn, once nobody is there any more. Where the control daemon was killed its clients go on, and
    nobody new can come.
    """
    file = places.open_places(folder)
    while True:
        _wait_until_left(file, control)
        with contextlib.suppress(RunlistError), places.Turn(turn) as held:
            if places.locked(file) and not control.has_clients():
                held.keep()
                return
            places.unlock(file)
        time.sleep(_CLIENTS_LOOK_S)


def _wait_until_left(file: int, control: _Control) -> None:
    """Return once nobody has a place, and reap the control daemon where it ends before."""
    left = os.eventfd(0, os.EFD_CLOEXEC)

    def watch() -> None:
        places.wait_until_left(file)
        os.eventfd_write(left, 1)

    threading.Thread(target=watch, daemon=True).start()
    watched = [] if control.ended() else [os.pidfd_open(control.pid)]
    while left not in readable([left, *watched]):
        control.ended()
        os.close(watched.pop())
    for fd in (left, *watched):
        os.close(fd)


def _is_awaited(ready: int) -> bool:
    """Whether who started us still listens: another one may have begun anew in the same folder."""
    poll = select.poll()
    poll.register(ready, 0)  # that the other end is closed is told in any case
    return not poll.poll(0)


def _say(ready: int, line: str) -> None:
    """Tell who started us, unless that was killed."""
    with contextlib.suppress(OSError):
        os.write(ready, f"{line}\n".encode())
    os.close(ready)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit


def main() -> None:
    """Start the control daemon, and see to its end."""
    folder, turn = map(Path, sys.argv[1:3])
    program, gpus, ready = sys.argv[3], sys.argv[4], int(sys.argv[5])
    if os.fork():
        os._exit(0)
    os.umask(os.umask(0o077) & 0o077)  # what we make is of use to us
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # its servers are ours when it is gone
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _ASKED_S
    while not places.locked(lock):
        if time.monotonic() > until:
            _say(ready, "another attendant is there: try again")
            return
        time.sleep(_LOOK_S)
    if not _is_awaited(ready):
        return
    try:
        control = _Control(program, folder, gpus)
    except OSError as error:
        _say(ready, f"{program} cannot be started: {error.strerror}")
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        try:
            control.wait_until_it_answers()
        except RunlistError as error:
            control.kill()
            _say(ready, str(error))
            return
        _say(ready, "ready")
        _wait_for_the_end(folder, turn, control)
        control.end()
    finally:
        control.kill()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
