"""Processes that are killed or stopped anywhere: nothing hangs, and what they held is free again."""

from __future__ import annotations

import mmap
import operator
import os
import random
import signal
import struct
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.daemon import wait_for
from tests.native.guests import GiB, Guests, MiB
from tests.native.test_preload_quota import fill, overhead

KILLS = int(os.environ.get("RUNLIST_KILLS", "25"))
"""How many processes are killed: `RUNLIST_KILLS=1000 pytest -k killed`."""
AT_ONCE = 5
LATEST_S = 0.08
PIECE = 64 * MiB


def new_counts(guests: Guests) -> Path:
    path = guests.new_path()
    path.write_bytes(bytes(mmap.PAGESIZE))
    return path


def counts(path: Path, number: int) -> tuple[int, ...]:
    """How many rounds each process has done."""
    return struct.unpack(f"<{number}Q", path.read_bytes()[: 8 * number])


def wait_for_progress(path: Path, number: int, stopped: int) -> None:
    """Some rounds more of all but one."""
    goals = [count + 5 for count in counts(path, number)]
    goals[stopped] = 0
    wait_for(lambda: all(map(operator.le, goals, counts(path, number))), "progress of the others")


@pytest.mark.timeout(120 + KILLS)
def test_what_was_killed_holds_nothing(guests: Guests) -> None:
    rng = random.Random(4)
    limit = 4 * GiB + AT_ONCE * overhead(guests)
    region = guests.region(limit)
    env = guests.environment(region)
    path = new_counts(guests)
    for start in range(0, KILLS, AT_ONCE):
        with ExitStack() as stack:
            racers = [
                stack.enter_context(guests.started("racer", "loop", PIECE, path, index, env=env))
                for index in range(min(AT_ONCE, KILLS - start))
            ]
            for racer in racers:
                time.sleep(rng.uniform(0, LATEST_S))
                racer.kill()
        assert region.used() <= limit
    wait_for(lambda: fill(guests, env, 4 * GiB) == 0, "room for all of the limit")


def test_who_is_stopped_holds_up_nobody(guests: Guests) -> None:
    number = 3
    rng = random.Random(5)
    region = guests.region(2 * GiB + number * overhead(guests))
    env = guests.environment(region)
    path = new_counts(guests)
    with ExitStack() as stack:
        racers: list[subprocess.Popen[str]] = [
            stack.enter_context(guests.started("racer", "loop", PIECE, path, index, env=env)) for index in range(number)
        ]
        wait_for(lambda: all(counts(path, number)), "progress of all")
        for _ in range(15):
            stopped = rng.randrange(number)
            racers[stopped].send_signal(signal.SIGSTOP)
            wait_for_progress(path, number, stopped)
            racers[stopped].send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0, 0.01))
        for racer in racers:
            racer.send_signal(signal.SIGSTOP)
        assert all(racer.poll() is None for racer in racers)
    assert fill(guests, env, 2 * GiB) == 0
