"""Starts workloads as child processes and steers them by the protocol of `runlist.workloads.protocol`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from runlist import interpreter
from runlist.workloads.lines import Lines

READY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
_QUIT_TIMEOUT_S = 10.0


class WorkloadError(RuntimeError):
    """A workload died or did not answer. The message is one line, with the last line of its standard error."""


class WorkloadProcess:
    """One running workload: `runlist.workloads.<name>` with `arguments`, in `environment` (default: this one's).

    A context manager: leaving it ends the process. `ready` has the fields of the workload's first event, for which
    `ready_s` is the most to wait; `on_start` is called with the process id before that, when the process has only just
    begun. `words` start another program that speaks the protocol, instead of that workload.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        on_start: Callable[[int], object] | None = None,
        words: Sequence[str] | None = None,
        ready_s: float = READY_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that nobody reads would block the workload)
        # A group of its own: Ctrl-C on the terminal is for whoever steers, who then ends the workload in order.
        self._process = subprocess.Popen(
            words if words is not None else interpreter.command(f"runlist.workloads.{name}", *arguments),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment) if environment is not None else None,
            process_group=0,
        )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno())
        try:
            if on_start is not None:
                on_start(self.pid)
            self.ready = self.answer("ready", ready_s)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def run(self) -> None:
        """Begin to work."""
        self._command("run", "running")

    def pause(self, timeout: float = ANSWER_TIMEOUT_S) -> None:
        """Stop working; the GPU is idle of this process when it returns."""
        self._command("pause", "paused", timeout)

    def start(self) -> None:
        """Begin a measuring window."""
        self._command("start", "started")

    def stop(self, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """End the window: `seconds` and the workload's samples or counts."""
        return self._command("stop", "window", timeout)

    def measure(self, seconds: float) -> dict[str, Any]:
        """One window of `seconds`."""
        self.start()
        time.sleep(seconds)
        return self.stop()

    def set_rate(self, per_second: float) -> None:
        """So many requests a second from now on."""
        self._command(f"rate {per_second!r}", "rate")

    def quit(self) -> dict[str, Any]:
        """End the process in order; returns its last figures, `correct` among them."""
        end = self._command("quit", "end")
        self._process.wait(_QUIT_TIMEOUT_S)
        self.kill()
        return end

    def kill(self) -> None:
        """End the process at once if it still runs, with all that it started in its group, and free what was its."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._errors.close()

    def tell(self, command: str) -> None:
        """Send a command; its `answer` is to be taken before the next."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._death() from None

    def answer(self, expected: str, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next event, which is to be the `expected` one. Raises WorkloadError otherwise."""
        try:
            event: dict[str, Any] = json.loads(self._line(timeout))
        except ValueError:
            raise WorkloadError(f"{self.name} printed something else than its protocol") from None
        if event.get("event") != expected:
            raise WorkloadError(f"{self.name}: {event.get('message', f'answered {event}')}")
        return event

    def _command(self, command: str, answer: str, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        self.tell(command)
        return self.answer(answer, timeout)

    def _line(self, timeout: float) -> bytes:
        """The next line of standard output."""
        try:
            line = self._lines.next(timeout)
        except TimeoutError:
            raise WorkloadError(f"{self.name} (pid {self.pid}) has not answered for {timeout:.0f} s") from None
        if line is None:
            raise self._death()
        return line

    def _death(self) -> WorkloadError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = "pipe closed" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return WorkloadError(f"{self.name} ended early ({how})" + (f": {lines[-1].strip()}" if lines else ""))


def run_all(processes: Sequence[WorkloadProcess]) -> None:
    """All begin to work, at the same time."""
    ask_all(processes, "run", "running")


def pause_all(processes: Sequence[WorkloadProcess], timeout: float = ANSWER_TIMEOUT_S) -> None:
    """All stop working."""
    ask_all(processes, "pause", "paused", timeout)


def start_all(processes: Sequence[WorkloadProcess]) -> None:
    """All begin a measuring window."""
    ask_all(processes, "start", "started")


def stop_all(processes: Sequence[WorkloadProcess], timeout: float = ANSWER_TIMEOUT_S) -> list[dict[str, Any]]:
    """All end their windows; the windows, in the order of the processes."""
    return ask_all(processes, "stop", "window", timeout)


def ask_all(
    processes: Sequence[WorkloadProcess], command: str, answer: str, timeout: float = ANSWER_TIMEOUT_S
) -> list[dict[str, Any]]:
    """A command for all, and their answers, in their order. Nobody waits for another's burst: those that take turns
    answer one after the other.
    """
    for process in processes:
        process.tell(command)
    return [process.answer(answer, timeout) for process in processes]
