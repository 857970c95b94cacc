"""Running an emulated GPU for `runlist emulator`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
from pathlib import Path
from types import FrameType

from runlist.cli import child
from runlist.cli.forwarding import Forwarding
from runlist.emulated import EmulatedGpu

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_emulator(command: list[str], gpus: int, directory: Path | None) -> int:
    """Emulate GPUs until `command` ends (its exit code is returned), or without one until a signal of `_ENDS`."""
    forwarding = Forwarding() if command else _end_at_signals()  # first, so that no signal leaves the folder behind
    ignores_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN  # the kernel would reap them
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runlist-emulated-")))
        gpu = stack.enter_context(EmulatedGpu(directory, gpus=gpus))
        environment = gpu.environment()
        if forwarding is None:
            for name, value in environment.items():
                print(f"export {name}={shlex.quote(value)}", flush=True)
            while True:
                signal.pause()
        stack.callback(forwarding.close)
        try:
            process = child.start(command, {**os.environ, **environment}, ignores_children=ignores_children)
        except OSError as error:
            return child.not_started(command, error)
        forwarding.to(process.pid)
        return child.end_of(process)


def _end_at_signals() -> None:
    """Those that we were not started to ignore, as by `nohup`."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        for other in _ENDS:
            signal.signal(other, signal.SIG_IGN)  # what is put away now is put away whole
        raise SystemExit(0)

    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
