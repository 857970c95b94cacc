"""Trying the kernel plane: its programs are loaded as for a daemon, and let go of."""

from __future__ import annotations

import os
import socket
import subprocess

from runlist import interpreter
from runlist.errors import NotSupportedError
from runlist.planes.interface import Capture
from runlist.planes.kernel import maps, messages
from runlist.planes.kernel.loading import Wanted

LOADER = "runlist.planes.kernel.loader"
_PATIENCE_S = 20.0


def run(capture: Capture) -> str:
    """What is said of it when it works. Raises NotSupportedError, which says why it does not, or OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.settimeout(_PATIENCE_S)
        with theirs:
            process = subprocess.Popen(interpreter.command(LOADER), stdin=theirs.fileno(), cwd="/")
        try:
            ours.send(messages.ask(Wanted(capture, os.getpid(), 0)))
            message, fds, _, _ = socket.recv_fds(ours, messages.MAX_BYTES, len(messages.SHARED))
            for fd in fds:
                os.close(fd)
            said = messages.answered(message)
        except (ValueError, TimeoutError):
            raise NotSupportedError("its loader does not answer") from None
        finally:
            ours.close()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if said.unable:
        raise NotSupportedError(said.unable)
    pinned = sum(each.pinned for each in maps.MAPS)
    refuses = f"the daemon suspends who does what the policy map forbids, for {said.lenient}"
    if not said.lenient:
        refuses = "the kernel refuses what the policy map forbids (BPF_LSM)"
    return f"its programs load: channel groups are seen as they are made, and told in {pinned} maps; {refuses}"
