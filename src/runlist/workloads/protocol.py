"""The line protocol between a workload and whoever measures it.

The workload prints one JSON object a line. `{"event": "ready", "pid": …, …}` comes first; then every command, one a
line on its standard input, is answered by one event:

    run     → running      begin to work (a workload starts idle)
    pause   → paused       stop after the request or burst under way; the GPU is idle now
    start   → started      begin a measuring window
    stop    → window       end it: its seconds, and the samples or counts of the workload
    rate N  → rate         from now on N requests arrive a second (workloads that have arrivals)
    quit    → end          stop, check the results (`correct`), and exit; end of file does the same, silently

Anything else is answered by `error`. Working and measuring are independent of each other, so one pair of processes can
be measured in many windows, alone and together, without a restart.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, TextIO

from runlist.statistics import percentile


class Workload(ABC):
    """What a workload does; the protocol calls all of it from one thread."""

    @abstractmethod
    def due(self) -> float:
        """When the next step is to begin, in seconds of `time.perf_counter`; 0 for at once."""

    @abstractmethod
    def step(self) -> None:
        """One request or burst, from launch to synchronised."""

    @abstractmethod
    def resume(self) -> None:
        """Steps are about to begin, now or again."""

    def set_rate(self, per_second: float) -> None:
        """So many requests a second from now on. Raises ValueError, in one line, for a bad rate."""
        raise ValueError(f"no requests arrive at this workload: a rate of {per_second:g} means nothing")

    @abstractmethod
    def begin_window(self) -> None:
        """Forget the samples and counts so far."""

    @abstractmethod
    def window(self) -> dict[str, Any]:
        """Samples or counts since `begin_window`."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Last figures; `correct` says whether the results are right."""


def _read_commands(stream: TextIO, commands: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        commands.put(line.strip())
    commands.put(None)


class Server:
    """Runs a workload as the commands on `source` say and answers on `sink`."""

    def __init__(self, workload: Workload, source: TextIO, sink: TextIO) -> None:
        self._workload = workload
        self._sink = sink
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._working = False
        self._window_start: float | None = None
        # A thread blocked in read holds no lock: the loop that is measured only looks whether the queue is empty.
        threading.Thread(target=_read_commands, args=(source, self._commands), daemon=True).start()

    def serve(self) -> None:
        """Returns after `quit` or at the end of the commands."""
        while True:
            try:
                command = self._next_command()
            except queue.Empty:
                self._workload.step()
                continue
            if command is None:
                return
            if command == "quit":
                self._say("end", **self._workload.finish())
                return
            self._obey(command)

    def _next_command(self) -> str | None:
        """The next command; raises queue.Empty when a step is due before one comes."""
        if not self._working:
            return self._commands.get()
        wait = self._workload.due() - time.perf_counter()
        if wait > 0:
            return self._commands.get(timeout=wait)
        return self._commands.get_nowait()

    def _obey(self, command: str) -> None:
        match command:
            case "run":
                if not self._working:
                    self._working = True
                    self._workload.resume()
                self._say("running")
            case "pause":
                self._working = False
                self._say("paused")
            case "start":
                self._workload.begin_window()
                self._window_start = time.perf_counter()
                self._say("started")
            case "stop" if self._window_start is not None:
                seconds = time.perf_counter() - self._window_start
                self._window_start = None
                self._say("window", seconds=seconds, **self._workload.window())
            case "stop":
                self._say("error", message="no window was started: say start first")
            case _ if command.startswith("rate "):
                self._set_rate(command.removeprefix("rate "))
            case _:
                self._say("error", message=f"unknown command {command!r}: run, pause, start, stop, rate N or quit")

    def _set_rate(self, text: str) -> None:
        try:
            self._workload.set_rate(float(text))
        except ValueError as error:
            self._say("error", message=str(error))
        else:
            self._say("rate", per_second=float(text))

    def _say(self, event: str, **fields: Any) -> None:
        say(self._sink, event, **fields)


def say(sink: TextIO, event: str, **fields: Any) -> None:
    """Prints one event."""
    sink.write(json.dumps({"event": event, **fields}) + "\n")
    sink.flush()


def measure_once(workload: Workload, seconds: float, sink: TextIO) -> None:
    """Works for `seconds`, then prints one window and the end: for use by hand."""
    workload.resume()
    workload.begin_window()
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        if (wait := workload.due() - now) > 0:
            time.sleep(wait)
        workload.step()
    seconds, window = time.perf_counter() - start, workload.window()
    if sink.isatty():  # nobody reads thousands of latencies there
        window = {name: _in_short(value) if isinstance(value, list) else value for name, value in window.items()}
    say(sink, "window", seconds=seconds, **window)
    say(sink, "end", **workload.finish())


def _in_short(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    tail = {f"p{percent}": round(percentile(ordered, percent), 1) for percent in (50, 99)} if ordered else {}
    return {"count": len(ordered), **tail}


def run(workload: Workload, seconds: float | None, **ready: Any) -> None:
    """Says that the workload is ready (with the fields `ready`) and runs it: by commands, or alone for `seconds`."""
    say(sys.stdout, "ready", **ready)
    if seconds is None:
        Server(workload, sys.stdin, sys.stdout).serve()
    else:
        measure_once(workload, seconds, sys.stdout)
