"""Running an emulated GPU for `runlist emulator`."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from runlist.cli import child, ending
from runlist.cli.forwarding import Forwarding
from runlist.emulated import EmulatedGpu
from runlist.errors import RunlistError

_TRIES, _PAUSE_S = 10, 0.05


def run_emulator(command: list[str], gpus: int, directory: Path | None) -> int:
    """Emulate GPUs until `command` ends (its exit code is returned), or without one until a signal.

    Raises RunlistError when the GPUs end by themselves.
    """
    forwarding = None
    if command:  # first, so that no signal leaves the folder behind
        forwarding = Forwarding()
    else:
        ending.in_order((signal.SIGINT, *ending.STOPS), code=0)
    children = child.Children()
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(_temporary())
        gpu = stack.enter_context(EmulatedGpu(directory, gpus=gpus))
        environment = gpu.environment()
        if forwarding is None:
            for name, value in environment.items():
                print(f"export {name}={shlex.quote(value)}", flush=True)
            children.until_end(gpu.pid)
            how = gpu.wait()
            raise RunlistError(f"the emulated GPU in {directory} ended ({how}): start it again")
        stack.callback(forwarding.close)
        try:
            process = child.start(command, environment, ignores_children=children.are_ignored)
        except OSError as error:
            return child.not_started(command, error)
        forwarding.to(process.pid)
        return child.end_of(process, children)


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    """A folder that goes in the end, whatever a private daemon makes in it meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="runlist-emulated-"))
    try:
        yield folder
    finally:
        for _ in range(_TRIES):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(_PAUSE_S)
