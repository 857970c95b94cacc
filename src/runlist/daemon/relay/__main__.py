"""`python -m runlist.daemon.relay`: the nursery, a small process that forks relays: each in a millisecond, and sharing
its memory. Its socket to the daemon is standard input.
"""

from __future__ import annotations

from runlist import lean  # isort: skip  (before msgspec)

import contextlib
import ctypes
import os
import signal
import socket
import sys

from runlist.daemon.relay.channel import Packet, Say, receive, send
from runlist.daemon.relay.ferry import Ferry
from runlist.planes.registry import choose_plane

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def main() -> None:
    """Start relays until the daemon's end closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    plane = choose_plane()
    lean.started()  # relays that are forked share what is loaded
    daemon = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.close(sys.stdin.fileno())
    while (packet := receive(daemon)) is not None:
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            daemon.close()
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            channel, messages = (socket.socket(fileno=fd) for fd in packet.fds)
            try:
                Ferry(plane, channel, messages).serve()
            except Exception as error:
                with contextlib.suppress(OSError):
                    send(channel, Say.BROKEN, 0, repr(error).encode()[:200])
            finally:
                os._exit(0)  # what is open is closed by the kernel, which lingers for no exiting process
        packet.close()
        _tell(daemon, packet, pid)


def _tell(daemon: socket.socket, packet: Packet, pid: int) -> None:
    fds: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        fds = [os.pidfd_open(pid)] if pid > 0 else []
    send(daemon, Say.STARTED, packet.number, fds=fds)
    for fd in fds:
        os.close(fd)


if __name__ == "__main__":
    main()
