"""A child process that answers each line on its standard input by a line on its standard output."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from runlist.workloads.lines import Lines

PATIENCE_S = 60.0
_END_S = 10.0


class Child:
    """One such process, in a whole environment of its own. Leaving it ends the process.

    What it should answer and does not raises RuntimeError, with the last line of its standard error.
    """

    def __init__(self, words: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.name = Path(words[0]).name if len(words) < 3 else str(words[2])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that nobody reads would block it)
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=dict(environment)
        )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send a line; does not wait."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise self._silent("ended") from None

    def line(self, patience_s: float = PATIENCE_S) -> str:
        """The next line that it prints."""
        try:
            line = self._lines.next(patience_s)
        except TimeoutError:
            raise self._silent(f"has not answered for {patience_s:g} s") from None
        if line is None:
            raise self._silent("ended")
        return line.decode(errors="replace")

    def ask(self, line: str, patience_s: float = PATIENCE_S) -> str:
        """Send a line, and take the answer."""
        self.tell(line)
        return self.line(patience_s)

    def ask_json(self, line: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The same, where the answers are JSON; one that has an `error` raises RuntimeError."""
        answer: dict[str, Any] = json.loads(self.ask(line, patience_s))
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {line}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()

    def end(self) -> int:
        """Close its standard input and wait; killed when it does not end. Returns its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _silent(self, how: str) -> RuntimeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return RuntimeError(f"{self.name} {how}" + (f": {said[-1].strip()}" if said else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def python(module: str, *words: str) -> list[str]:
    """The words that start a module of this package."""
    return [sys.executable, "-m", module, *words]


def serve(answer: Callable[[str], Mapping[str, Any]]) -> None:
    """The child's side: a JSON object for each line, until there are no more. What `answer` raises is its `error`."""
    for line in sys.stdin:
        try:
            said = answer(line.strip())
        except Exception as error:  # whatever it is, the parent tells it
            said = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(said), flush=True)
