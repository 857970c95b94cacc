"""Running an emulated GPU for `runlist emulator`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
from pathlib import Path

from runlist.cli import child
from runlist.emulated import EmulatedGpu


def run_emulator(command: list[str], gpus: int, directory: Path | None) -> int:
    """Emulate GPUs until `command` ends (its exit code is returned), or without one until SIGINT or SIGTERM."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runlist-emulated-")))
        gpu = stack.enter_context(EmulatedGpu(directory, gpus=gpus))
        environment = gpu.environment()
        if not command:
            for name, value in environment.items():
                print(f"export {name}={shlex.quote(value)}", flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
            return 0
        signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to the command, too
        try:
            code = child.start(command, {**os.environ, **environment}).wait()
        except OSError as error:
            return child.not_started(command, error)
        return code if code >= 0 else 128 - code
