"""Storms: tenants, keeper and actuator are stopped and continued, helpers killed and requests made, in random order.
When it is over everybody runs who should, every control is as it was found, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from runlist.client import Client
from runlist.errors import NoTargetError, RunlistError
from runlist.proc.process import descendants
from tests.emulated.test_giving_way import STEPPED, use
from tests.fixtures.actuator import IDLE_FILES, actuators, files, program
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker, running, wait_for
from tests.fixtures.effort import TIMES

Start = Callable[..., Worker]

STORM_S = 6.0 * TIMES
LONGEST_STOP_S = 0.6
LONG_LIFE_S = 2.2
"""Keepers that live for less than 2 s, four in a row, end the daemon, as they must."""
PATIENT_S = 60.0
JOB = (sys.executable, "-m", "runlist.workloads.batch", "--seconds", "1")
SETTINGS = ({"weight": "300"}, {"cap": "30"}, {"timeslice": "7000"}, {"class": "batch"})


class Storm:
    """Stops tenants and the daemon's helpers, for a while each, and kills helpers."""

    def __init__(self, daemon: Daemon, tenants: list[int], chance: random.Random) -> None:
        self.daemon, self.tenants, self.chance = daemon, tenants, chance
        self.stopped: dict[int, float] = {}
        self.killed: set[int] = set()
        self.keeper, self.since = daemon.keeper, time.monotonic()

    def helpers(self) -> list[int]:
        return [pid for pid in descendants([self.daemon.pid])[self.daemon.pid][1:] if running(pid)]

    def step(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, until in self.stopped.items() if now >= until]:
            self.carry_on(pid)
        if (keeper := self.daemon.keeper) != self.keeper:
            self.keeper, self.since = keeper, now
        helpers = self.helpers()
        target = self.chance.choice([*self.tenants, *helpers, *helpers])
        may_die = target in helpers and (target != keeper or now - self.since > LONG_LIFE_S)
        if may_die and self.chance.random() < 0.12:
            self.killed.add(target)
            send(target, signal.SIGKILL)
        elif target not in self.stopped:
            self.stopped[target] = now + self.chance.uniform(0, LONGEST_STOP_S)
            send(target, signal.SIGSTOP)

    def carry_on(self, pid: int) -> None:
        del self.stopped[pid]
        send(pid, signal.SIGCONT)

    def end(self) -> None:
        for pid in list(self.stopped):
            self.carry_on(pid)


class Requests(threading.Thread):
    """Somebody who attaches, sets, suspends, resumes, releases and runs all the while."""

    def __init__(self, commands: Commands, workers: list[Worker], chance: random.Random) -> None:
        super().__init__()
        self.commands, self.workers, self.chance = commands, workers, chance
        self.over = threading.Event()
        self.made = 0
        self.wrong: list[RunlistError] = []
        self.runs: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        try:
            with Client.open() as client:
                while not self.over.is_set():
                    with contextlib.suppress(NoTargetError):  # that one is not managed at the moment
                        self.request(client, self.chance.choice(self.workers).pid)
                    self.made += 1
        except RunlistError as error:
            self.wrong.append(error)

    def request(self, client: Client, pid: int) -> None:
        requests: list[Callable[[], object]] = [
            lambda: client.attach(pid, self.chance.choice(["latency", "normal", "batch"])),
            lambda: client.set(pid, self.chance.choice(SETTINGS)),
            lambda: client.suspend(pid),
            lambda: client.resume(pid),
            lambda: client.detach(pid),
            self.start_one,
        ]
        self.chance.choice(requests)()

    def start_one(self) -> None:
        """A command with a quota, killed anywhere in its life or left to end."""
        run = self.commands.start("run", "--class", "batch", "--memory", "2G", "--", *JOB)
        self.runs.append(run)
        self.over.wait(self.chance.uniform(0.1, 1.5))
        if self.chance.random() < 0.5:
            run.kill()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.mark.timeout(STORM_S + 3 * PATIENT_S)
def test_a_storm_leaves_nothing_behind(daemon: Daemon, commands: Commands, worker: Start, slices: Slices) -> None:
    use(daemon, "request")
    workers = [worker() for _ in range(3)]
    for one in workers:
        daemon.client.attach(one.pid, "batch")
    latency = program(commands, daemon, *STEPPED)
    latency.run()
    wait_for(lambda: actuators(daemon.pid), "an actuator")
    before = files(daemon.pid)
    storm = Storm(daemon, [*(one.pid for one in workers), latency.ready["pid"]], random.Random(3))
    asking = Requests(commands, workers, random.Random(4))
    asking.start()
    try:
        over = time.monotonic() + STORM_S
        while time.monotonic() < over or (not storm.killed and time.monotonic() < over + PATIENT_S):
            storm.step()
            asking.over.wait(storm.chance.uniform(0.01, 0.15))
    finally:
        storm.end()
        asking.over.set()
        asking.join(PATIENT_S)
        latency.kill()
    assert not asking.is_alive()
    assert asking.wrong == []
    assert asking.made >= STORM_S
    for run in asking.runs:
        run.wait(PATIENT_S)

    def managed() -> set[int]:
        return {task.pid for task in daemon.client.ps()}

    def swept() -> bool:
        """Each command removes what those left that were killed, once their jobs have ended as well."""
        assert commands.ok("run", "--memory", "1G", "--", "true") == ""
        return not os.listdir(commands.folder / "regions")

    for pid in managed() & {one.pid for one in workers}:
        daemon.client.resume(pid)
        daemon.client.attach(pid, "batch")  # of a higher class, one that works all the time leaves jobs nothing
    wait_for(lambda: managed() <= {one.pid for one in workers}, "what ended to be let go")
    for one in workers:
        one.wait_for_progress()
    for pid in managed():
        daemon.client.detach(pid)
    for one in workers:
        wait_for(lambda: slices.of(one.pid) == DEFAULT_SLICES, f"the slices of {one.pid}")  # noqa: B023
        one.wait_for_progress()
    wait_for(lambda: all(files(pid) == IDLE_FILES for pid in actuators(daemon.pid)), "the actuator to let go")
    wait_for(swept, "regions to go")
    wait_for(lambda: files(daemon.pid) <= before, "descriptors to be closed")
    assert set(storm.helpers()) <= {daemon.keeper, *actuators(daemon.pid)}
    assert storm.killed
    assert not [pid for pid in storm.killed if running(pid)]
    assert all(one.quit() for one in workers)
