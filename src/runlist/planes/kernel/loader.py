"""`runlist.planes.kernel.loader`: the process that has the right to load programs, and no other.

It loads them, hands the descriptors of their maps over, and waits: when it ends, or the daemon does, the kernel lets go
of the programs. Of a daemon that was killed the maps stay, under their names.
"""

from __future__ import annotations

from runlist import lean  # noqa: F401  isort: skip  (before msgspec)

import contextlib
import signal
import socket
import sys

from runlist.errors import RunlistError
from runlist.planes.kernel import loading, messages, rights
from runlist.planes.kernel.messages import Answer


def main() -> int:
    """Load what the daemon asks for on standard input, until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemon = socket.socket(fileno=0)
    try:
        loaded = _load(messages.asked(daemon.recv(messages.MAX_BYTES)))
    except (RunlistError, OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            daemon.send(messages.answer(Answer(unable=str(error))))
        return 1
    try:
        shared = [loaded.maps[name] for name in messages.SHARED]
        socket.send_fds(daemon, [messages.answer(Answer(unpinned=loaded.unpinned, lenient=loaded.lenient))], shared)
        ended_well = bool(daemon.recv(1))
    except OSError:  # it was killed
        ended_well = False
    loaded.close(leave=not ended_well)
    return 0


def _load(wanted: loading.Wanted) -> loading.Loaded:
    data = loading.read_object()
    if why := rights.hindered():
        raise RunlistError(why)
    try:
        tracing = rights.open_tracing()
    except OSError as error:
        why = (
            f"tracepoints cannot be reached ({error.strerror}): mount tracefs, or run the daemon as the machine's root"
        )
        raise RunlistError(why) from None
    rights.keep_two()
    loaded = loading.load(wanted, data, tracing)
    if wanted.names is not None:
        wanted.names.take_stale_away()
    return loaded


if __name__ == "__main__":
    sys.exit(main())
