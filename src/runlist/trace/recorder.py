"""Recording a trace: the switch logs of the GPUs, read until it is enough. Needs no daemon."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from runlist import files, operations_log
from runlist.errors import NoTargetError, UsageError
from runlist.planes.interface import GpuInfo, Plane
from runlist.planes.usage import Residency
from runlist.trace.operations import add_tracks
from runlist.trace.writer import GpuTracks, TraceWriter

_READ_S = 0.1  # the log's ring has room for seconds
_CLOCKS_AGREE = 20  # readings, in which two clocks drift apart by a tenth of a millisecond
_NAME_LENGTH = 60


@dataclass(frozen=True)
class Recorded:
    """The content of a trace: numbers of GPUs, processes (one on two GPUs counts twice), turns, lost records, and
    operations.
    """

    gpus: int
    processes: int
    residencies: int
    lost: int
    operations: int = 0


class _Named(io.FileIO):
    """A file whose errors say which file it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), "wb", opener=lambda *_: files.descriptor(path))

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = str(self.name)
            raise


class Beside(Protocol):
    """Who records something else meanwhile, for the same file."""

    def look(self) -> bool:
        """Take what happened since the last call; whether to go on."""

    def hear(self, gpu: int, residencies: Sequence[Residency], ahead_ns: int) -> None:
        """Who held a GPU, by its index; the GPU's clock is so far ahead of CLOCK_MONOTONIC."""

    def finish(self, trace: TraceWriter | None) -> None:
        """Add what there is to the file, if it is kept."""


def record(
    plane: Plane,
    out: Path | None,
    gpu: str | None,
    seconds: float | None,
    wait: Callable[[float], bool],
    beside: Beside | None = None,
    operations: Sequence[Path] = (),
) -> Recorded:
    """Record the GPU named (by index or UUID; None: all) into a file, or none, for some seconds or until `wait` says to
    stop; then add what the programs of these logs of operations have written by then.

    `wait` sleeps for the seconds that it is given and returns whether to stop. Raises RunlistError when a GPU has no
    switch log for us, the file cannot be opened, or a log is none; OSError when it cannot be written.
    """
    for path in operations:
        operations_log.read(path)  # what is no log is told before the time has passed
    plane.check()
    chosen = choose_gpus(_all_gpus(plane), gpu)
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_Log(plane, index, info)) for index, info in chosen]
        try:
            file = stack.enter_context(io.BufferedWriter(_Named(out or Path(os.devnull))))
        except OSError as error:
            raise UsageError(f"{out}: {error.strerror}: name a file that can be written") from None
        trace = TraceWriter(file, process_name)
        tracks = [trace.gpu(log.name, busy=log.samples_busy) for log in logs]
        end = None if seconds is None else time.monotonic() + seconds
        stop = False
        while not stop:
            left = _READ_S if end is None else min(_READ_S, end - time.monotonic())
            stop = wait(left) if left > 0 else True
            for log, gpu_tracks in zip(logs, tracks, strict=True):
                log.read_into(gpu_tracks, beside)
            if beside is not None:
                stop = not beside.look() or stop
        for log, gpu_tracks in zip(logs, tracks, strict=True):
            log.finish(gpu_tracks, beside)
        if beside is not None:
            beside.finish(None if out is None else trace)
        read = [operations_log.read(path) for path in operations]
        for each in read:
            add_tracks(trace, each, process_name(each.pid))
    return Recorded(
        len(logs),
        sum(gpu_tracks.processes for gpu_tracks in tracks),
        sum(gpu_tracks.residencies for gpu_tracks in tracks),
        sum(log.lost for log in logs) + sum(each.lost for each in read),
        sum(len(each.operations) for each in read),
    )


def choose_gpus(found: list[GpuInfo], wanted: str | None) -> list[tuple[int, GpuInfo]]:
    """The GPU of an index or (the start of) a UUID, or all, with their indices. Raises NoTargetError."""
    numbered = list(enumerate(found))
    if wanted is not None:
        start = wanted.removeprefix("GPU-")
        numbered = [
            (index, info)
            for index, info in numbered
            if wanted == str(index) or (len(start) >= 4 and info.uuid.removeprefix("GPU-").startswith(start))
        ]
    if len(numbered) != 1 and (wanted is not None or not numbered):
        what = f"GPU {wanted!r}" if wanted is not None else "GPU"
        raise NoTargetError(f"there {'is no' if not numbered else 'is more than one'} {what}: check `nvidia-smi -L`")
    return numbered


def process_name(pid: int) -> str:
    """A process' name in a trace: its command and its id."""
    if pid == 0:
        return "another user's process"
    words = b""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    program, _, arguments = words.decode(errors="replace").partition("\0")
    command = " ".join([Path(program).name, *arguments.split("\0")]).strip() or "process"
    return f"{command if len(command) <= _NAME_LENGTH else command[: _NAME_LENGTH - 1] + '…'} [{pid}]"


def _all_gpus(plane: Plane) -> list[GpuInfo]:
    with contextlib.closing(plane.census()) as census:
        return census.gpus()


class _Log:
    """The log of one GPU, being recorded; a context manager that closes it."""

    def __init__(self, plane: Plane, index: int, info: GpuInfo) -> None:
        self.name = f"GPU {index} {info.name}"
        self._index = index
        self._aheads_ns: deque[int] = deque(maxlen=_CLOCKS_AGREE)  # a clock of the GPU's own drifts from ours
        self.lost = 0
        self._log = plane.turn_log(info.uuid)
        self.samples_busy = self._log.samples_busy

    def read_into(self, tracks: GpuTracks, beside: Beside | None = None) -> None:
        """Add what happened since the last call."""
        began_ns = time.monotonic_ns()
        reading = self._log.read()
        if beside is not None:
            self._aheads_ns.append(round(reading.until * 1e9) - began_ns)
            beside.hear(self._index, reading.residencies, self._ahead_ns)
        if reading.dropped:
            self.lost += reading.dropped
            tracks.lost(reading.dropped, round(reading.until * 1e9))
        tracks.add(reading.residencies)
        for end_ns, percent in self._log.busy():
            tracks.busy(percent, end_ns)

    @property
    def _ahead_ns(self) -> int:
        """Each time it is a little too much: the quickest reading tells best."""
        return min(self._aheads_ns)

    def finish(self, tracks: GpuTracks, beside: Beside | None = None) -> None:
        """Add what was no event, and end what is open."""
        if (alone := self._log.unswitched()) is not None:
            tracks.add([alone])
            if beside is not None and self._aheads_ns:
                beside.hear(self._index, [alone], self._ahead_ns)
        tracks.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.close()
