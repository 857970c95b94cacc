"""A benchmark's own hold on a process' GPU contexts, apart from any daemon's."""

from __future__ import annotations

import contextlib
import os

from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.discover import Discoverer
from runlist.planes.nvidia.rm.client import RmClient
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.proc import borrow
from runlist.proc.borrow import OwnRight


def contexts_of(pid: int, stack: contextlib.ExitStack) -> list[GpuContext]:
    """The contexts of a process of ours; `stack` closes what they need."""
    discoverer = Discoverer(choose_driver())
    pidfd = borrow.open_process(pid)
    try:
        found = discoverer.discover(pid, pidfd, OwnRight())
    finally:
        os.close(pidfd)
        discoverer.close()
    for file in {id(client.handle): client.handle for client in found}.values():
        stack.callback(file.close)
    return [GpuContext(RmClient(client.handle, client.client), gpu) for client in found for gpu in client.gpus]


def put_back(context: GpuContext) -> None:
    """Undo what was set on it."""
    for control in context.undo_controls():
        context.rm.send(control)
