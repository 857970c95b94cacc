"""A process that serves requests, as the runner sees it: started, asked, read, ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

READY_S = 240.0
"""The longest that a program may take to be warm: it may have to load a model and capture graphs."""

END_S = 20.0


class ServerError(RuntimeError):
    """A program died, or said something else than it should. One line, with the last of its standard error."""


@dataclass(frozen=True)
class Start:
    """How a process is started, and the tasks that it serves: one, or several where it hosts them."""

    tasks: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]


class Server:
    """A process and its lines. A context manager, which ends the process with all that it started.

    Its input is a socket, as that of programs that answer requests is.
    """

    def __init__(self, start: Start) -> None:
        self.tasks = start.tasks
        self.ready: dict[str, Mapping[str, Any]] = {}
        self.correct: dict[str, bool] = {}
        self._counted: dict[str, Mapping[str, int]] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe that nobody reads would block the program)
        ours, theirs = socket.socketpair()
        self._requests = ours
        # A group of its own: Ctrl-C on the terminal is for the runner, who then ends the programs in order.
        with theirs:
            self._process = subprocess.Popen(
                start.words, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=self._errors, cwd="/",
                env=dict(start.environment), process_group=0,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that we started, which may start the program itself."""
        return int(self._process.pid)

    def fileno(self) -> int:
        """Where its lines come from, for a selector."""
        return int(self._output)

    def await_ready(self, patience_s: float = READY_S) -> None:
        """Until all its tasks are warm. Raises ServerError."""
        until = time.monotonic() + patience_s
        while missing := set(self.tasks) - self.ready.keys():
            left = until - time.monotonic()
            if left <= 0:
                raise ServerError(f"{', '.join(sorted(missing))} not ready in {patience_s:g} s")
            if select.select([self._output], [], [], left)[0]:
                self.read()

    def ask(self, task: str, number: int, due_ns: int | None, ways: Sequence[str]) -> None:
        """Send a request. Raises ServerError where the process is gone."""
        line: dict[str, Any] = {"id": number, "due": due_ns, "with": list(ways)}
        if len(self.tasks) > 1:
            line["task"] = task
        try:
            self._requests.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            raise self.death() from None

    def use(self, rule: str, patience_s: float = END_S) -> dict[str, Mapping[str, int]]:
        """Have it schedule operations by a rule from now on; what it counted of each task so far. Nothing else is asked
        of it meanwhile. Raises ServerError.
        """
        self._counted = {}
        try:
            self._requests.sendall(json.dumps({"rule": rule}).encode() + b"\n")
        except OSError:
            raise self.death() from None
        until = time.monotonic() + patience_s
        while set(self.tasks) - self._counted.keys():
            if not select.select([self._output], [], [], max(0.0, until - time.monotonic()))[0]:
                raise ServerError(f"{' and '.join(self.tasks)} did not take the rule {rule} in {patience_s:g} s")
            self.read()
        return self._counted

    def read(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The answers that are there, each with its task. Raises ServerError at the end of the process."""
        answers: list[tuple[str, Mapping[str, Any]]] = []
        while True:
            try:
                more = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return answers
            if not more:
                if len(self.correct) == len(self.tasks):
                    return answers
                raise self.death()
            *whole, self._rest = (self._rest + more).split(b"\n")
            for line in whole:
                self._take(line, answers)

    def _take(self, line: bytes, answers: list[tuple[str, Mapping[str, Any]]]) -> None:
        try:
            fields = json.loads(line)
            task = fields.get("task", self.tasks[0])
            if "ready" in fields:
                self.ready[task] = fields["ready"]
            elif "end" in fields:
                self.correct[task] = bool(fields["end"]["correct"])
            elif "counted" in fields:
                self._counted[task] = fields["counted"]
            else:
                answers.append((task, {**fields, "id": int(fields["id"]), "done": int(fields["done"])}))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ServerError(f"{self.tasks[0]} printed something else than its answers: {line[:80]!r}") from None

    def end(self) -> bool:
        """End it in order; whether all its results were right, by its own word."""
        until = time.monotonic() + END_S
        try:
            self._requests.shutdown(socket.SHUT_WR)
            while len(self.correct) < len(self.tasks) and (left := until - time.monotonic()) > 0:
                if select.select([self._output], [], [], left)[0]:
                    self.read()
            self._process.wait(max(0.1, until - time.monotonic()))
        except (OSError, ServerError, subprocess.TimeoutExpired):
            return False
        return len(self.correct) == len(self.tasks) and all(self.correct.values())

    def kill(self) -> None:
        """End it at once, with all that it started in its group, and free what was its."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def death(self) -> ServerError:
        """How it ended, once it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = "its output ended" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1].strip()[:200]}" if lines else ""
        return ServerError(f"{' and '.join(self.tasks)} ended early ({how}){said}")
