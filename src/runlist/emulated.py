"""Starting and stopping emulated GPUs, and pointing programs at them.

An emulated GPU is a process that listens in a directory, and two libraries that take the place of the driver's own.
Programs reach it by their environment alone, see `EmulatedGpu.environment`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from runlist import trusted
from runlist.errors import NoPermissionError, NotSupportedError
from runlist.installed import installed
from runlist.protocol import environment_autogen as names
from runlist.protocol.calibration_autogen import DEVICE_MEMORY
from runlist.waiting import readable

_DEVICE_PROGRAM = "runlist-emulated-gpu"
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_STOP_SECONDS = 5.0


class EmulatedGpuError(NotSupportedError):
    """The emulated GPU cannot be started; the message is one line that says what to do."""


def artefacts() -> Path:
    """Return the directory with the device program and its libraries.

    Raises EmulatedGpuError when this installation has none.
    """
    named = os.environ.get(names.EMULATOR_BUILD)
    directory = Path(named).absolute() if named else installed("_emulator")
    if named:
        _check_named(directory)
    missing = [name for name in (_DEVICE_PROGRAM, *_LIBRARIES) if not (directory / name).is_file()]
    if not missing:
        return directory
    if named:
        raise EmulatedGpuError(
            f"{directory} has no {missing[0]}: build the emulator there, or unset {names.EMULATOR_BUILD}"
        )
    raise EmulatedGpuError(f"this installation has no emulated GPU ({missing[0]} is missing): reinstall runlist")


def _check_named(directory: Path) -> None:
    """Refuse a build that somebody else could write: its libraries run with our rights."""
    with contextlib.suppress(OSError):
        try:
            trusted.check(directory)
        except NoPermissionError as error:
            raise EmulatedGpuError(f"{names.EMULATOR_BUILD} is refused: {error}") from None


def environment(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Return the variables that make a program use the emulated GPU of `directory`."""
    library_path = str(artefacts())
    inherited = os.environ.get(names.LIBRARY_PATH)
    if inherited and inherited.split(":")[0] == library_path:  # in a shell with such a GPU
        library_path = inherited
    elif inherited:
        library_path += f":{inherited}"
    return {
        names.LIBRARY_PATH: library_path,
        names.EMULATED_GPU: str(Path(directory).absolute()),
        names.DEVICE: "emulated",
    }


class EmulatedGpu:
    """A running emulated GPU, or several behind one directory; a context manager that stops it at the end.

    `directory` is created if need be (mode 0700); without it, a temporary one is made and removed again. `memory` is
    bytes a GPU. The device ends with this process, however that ends.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, gpus: int = 1, memory: int = DEVICE_MEMORY
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="runlist-gpu-") if directory is None else None
        self.dir = Path(self._temporary.name if self._temporary else os.fspath(directory or "")).absolute()
        self.gpus = gpus
        self.memory = memory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The device's process id. Raises EmulatedGpuError when it is not running."""
        if self._process is None:
            raise EmulatedGpuError("the emulated GPU is not running: call start() first")
        return self._process.pid

    def start(self, timeout: float = 10.0) -> Self:
        """Start the device and wait until it accepts programs.

        Raises EmulatedGpuError when it cannot use the directory, or is not ready within `timeout` seconds.
        """
        if self._process is not None:
            return self
        command = [str(artefacts() / _DEVICE_PROGRAM), "--dir", str(self.dir)]
        command += ["--gpus", str(self.gpus), "--memory", str(self.memory), "--exit-with-stdin"]
        # A group of its own: Ctrl-C on the terminal is for the programs on it, which put things back first.
        process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        if readable([process.stdout.fileno()], timeout) and process.stdout.readline() == b"ready\n":
            return self
        process.kill()
        said = process.stderr.read().decode(errors="replace").strip()
        self._end()
        raise EmulatedGpuError(said or f"the emulated GPU was not ready within {timeout:g} s")

    def wait(self) -> str:
        """Wait until the device ends by itself, and say how it did. Raises EmulatedGpuError when it is not running."""
        if self._process is None:
            raise EmulatedGpuError("the emulated GPU is not running: call start() first")
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """Stop the device; programs still on it see it as gone."""
        self._end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def environment(self) -> dict[str, str]:
        """Return the variables that make a program use this GPU, to be added to its environment."""
        return environment(self.dir)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
