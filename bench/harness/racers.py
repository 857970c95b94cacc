"""Starting and stopping the programs that allocate and free at random (programs/race.c)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.harness.compiled import PTX
from bench.harness.ledger import Ledger

READY_S, END_S = 120.0, 30.0
_POLL_S = 0.01


class Racers:
    """Such programs, all of one environment, that count in one ledger and allocate up to so many MiB at a time."""

    def __init__(self, program: Path, ledger: Ledger, largest_mib: int, environment: Mapping[str, str]) -> None:
        self._program = program
        self._largest = largest_mib
        self._environment = dict(environment)
        self._ledger = ledger

    def start(self, index: int) -> subprocess.Popen[bytes]:
        """Start the one that counts as `index`."""
        self._ledger.forget(index)
        words = list(map(str, (self._program, self._ledger.path, index, self._largest, PTX)))
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, env=self._environment)

    @contextlib.contextmanager
    def running(self, indices: Sequence[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Several meanwhile, each with its context made. They are killed at the end if they did not end before."""
        racers: list[subprocess.Popen[bytes]] = []
        try:
            racers += [self.start(index) for index in indices]
            self._wait(indices, racers)
            yield racers
        finally:
            end(racers)

    def _wait(self, indices: Sequence[int], racers: Sequence[subprocess.Popen[bytes]]) -> None:
        until = time.monotonic() + READY_S
        while not all(self._ledger.counts(index).ready for index in indices):
            for racer in racers:
                if (code := racer.poll()) is not None:
                    raise RuntimeError(f"a racing program ended early, with exit code {code}")
            if time.monotonic() > until:
                raise RuntimeError(f"{len(racers)} racing programs were not ready in {READY_S:g} s")
            time.sleep(_POLL_S)


def exit_codes(racers: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """Wait for all, which are to end by themselves; None for one that does not."""
    codes: list[int | None] = []
    for racer in racers:
        try:
            codes.append(racer.wait(END_S))
        except subprocess.TimeoutExpired:
            codes.append(None)
    return codes


def end(racers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill those that still run, and wait for all."""
    for racer in racers:
        racer.kill()
    for racer in racers:
        racer.wait(END_S)
