"""Passing signals on to a command that runs below us, each one once.

A signal to us alone is the command's: who sends it does not know that there are two processes. One that a terminal, a
shell or a service manager sends to a whole process group or cgroup reaches the command as well. A signal does not say
which it was. So there is an *ear*: a child that does nothing but tell of the signals that come to it, and what comes to
both was not for us alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from types import FrameType

from runlist.proc.process import has_pending, wants_processor
from runlist.waiting import readable

SIGNALS = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT, signal.SIGCONT,
    signal.SIGWINCH, signal.SIGPWR, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGABRT, signal.SIGXCPU,
    signal.SIGIO, signal.SIGURG, signal.SIGSTKFLT, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)  # fmt: skip
"""What programs are told by whoever started them: all but faults, stops and what none can handle. Some want to be
stopped so (httpd, systemd), or set a timer before they start another program."""
EAR = "runlist-ear"
"""Its name in `ps`."""

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PATIENCE_S = 0.05
"""How much later than we the ear may be sent a signal …"""
_LONGEST_S = 1.0
"""… and how long it may take to tell of one, on a machine with much else to do."""
_AGAIN_S = 0.005
_SAME_S = 0.25
_HEARD = struct.Struct("<id")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class Forwarding:
    """Passes signals on from now on, also those that come before the command is there. Where we were started to ignore
    one (`nohup`, `&` in a script), so is the command. Call it where there is one thread.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._early: list[int] = []
        self._heard: dict[int, float] = {}
        self._ear: int | None = None  # its process id, where there is one
        self._from_ear = -1
        taken = {number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)  # nothing is missed before the ear hears
        for number in taken:
            signal.signal(number, self._take)  # a handler, unlike ignoring, is not inherited by the command
        with contextlib.suppress(OSError):  # no process, or no descriptor, is left
            self._begin_to_hear(taken)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def to(self, pid: int) -> None:
        """Signals go to this process from now on."""
        self._pid = pid
        for number in self._early:
            self._send(number)

    def reaped(self, pid: int) -> None:
        """A child of ours has ended, and was waited for: the ear's number is nobody's now."""
        if pid == self._ear:
            self._ear = None

    def close(self) -> None:
        """End the ear, and wait for it."""
        if self._ear is not None:
            os.kill(self._ear, signal.SIGKILL)
            os.waitpid(self._ear, 0)
            self._ear = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._pid is None:
            self._early.append(number)
        elif not self._is_for_all(number):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _is_for_all(self, number: int) -> bool:
        """Whether the command has a signal that came to us, too."""
        if self._ear is None:
            return number in _FROM_TERMINAL
        began = time.monotonic()
        while not self._is_heard(number):
            waited_s = time.monotonic() - began
            if waited_s >= _LONGEST_S or (waited_s >= _PATIENCE_S and not self._ear_is_behind()):
                break
            if readable([self._from_ear], max(_PATIENCE_S - waited_s, _AGAIN_S)) and not self._listen():
                break
        with contextlib.suppress(OSError):  # it has ended
            return self._is_heard(number) and os.getpgid(self._pid or 0) == os.getpgid(0)
        return True

    def _is_heard(self, number: int) -> bool:
        return time.monotonic() - self._heard.get(number, float("-inf")) < _SAME_S

    def _ear_is_behind(self) -> bool:
        """Whether signals wait for the ear, or it has not waited for more since it had one."""
        return self._ear is not None and (has_pending(self._ear) or wants_processor(self._ear))

    def _listen(self) -> bool:
        """Take what the ear says; whether it is still there."""
        try:
            said = os.read(self._from_ear, _HEARD.size * 64)
        except BlockingIOError:  # the handler of another signal, which came in between, has taken it
            return True
        for number, when in _HEARD.iter_unpack(said):
            self._heard[number] = when
        return bool(said)

    # -- the ear ---------------------------------------------------------------------------------------

    def _begin_to_hear(self, taken: set[signal.Signals]) -> None:
        self._from_ear, writer = os.pipe()
        os.set_blocking(self._from_ear, False)
        parent = os.getpid()
        try:
            self._ear = os.fork()
            if self._ear == 0:
                _hear(writer, taken, parent)
        finally:
            os.close(writer)


def _hear(writer: int, taken: set[signal.Signals], parent: int) -> None:
    """Tell of signals until the parent ends."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, EAR.encode(), 0, 0, 0)
        own = os.dup2(writer, 3)
        os.closerange(own + 1, os.sysconf("SC_OPEN_MAX"))
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # who reads what the command writes waits for its end alone
            os.dup2(null, stream)
        while os.getppid() == parent:
            found = signal.sigwaitinfo(taken)
            os.write(own, _HEARD.pack(found.si_signo, time.monotonic()))
    finally:
        os._exit(0)
