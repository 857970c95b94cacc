"""SIGKILL of processes that allocate, free and launch under a limit: nobody hangs, and the quota comes back."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness import library, peers
from bench.harness.benchmark import Needs
from bench.harness.child import Child
from bench.harness.compiled import built
from bench.harness.figures import AT_MOST, Figure, spread
from bench.harness.ledger import Ledger
from bench.harness.memory_watch import MemoryWatch, uses
from bench.harness.racers import Racers, exit_codes
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
KILLS, TOGETHER = {"nvidia": 1000, "emulated": 60}, {"nvidia": 25, "emulated": 6}
SURVIVORS = 2
"""Processes of the same tree that nobody kills, and that are to go on."""

LATEST_S = 0.6
"""A process is killed up to so long after its start or, every other one, after its context is there."""

ROOM, LARGEST_MIB = 12 << 30, 128
MODEST_MIB, SLACK = 4, 2 << 30
"""The survivors' largest allocation, and more than they can hold of such."""

BUDGET_S = 230.0
"""No group begins later; the figures say how many kills there were."""

_POLL_S = 0.002
_PATIENCE_S = 5.0
GRAIN = 2 << 20


@dataclass
class Victim:
    """A process, and when it is to die (`time.monotonic`); None while that hangs on its context."""

    process: subprocess.Popen[bytes]
    delay: float
    due: float | None = None


def measure() -> list[Figure]:
    """Groups of processes, each killed at a moment of its own. After the last of a group another process of the tree
    tries until it has the whole limit, except what the contexts and the survivors need; at the end, without survivors,
    all but its own context.
    """
    driver = choose_driver()
    together = TOGETHER[driver.name]
    moments = random.Random(11)  # noqa: S311 (no secret)
    back_ms: list[float] = []
    stuck = undead = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(nvml.session(driver))
        program = stack.enter_context(built("race"))
        filler = stack.enter_context(built("fill"))
        folder, region, environment = stack.enter_context(library.shared_region())
        ledger = stack.enter_context(Ledger(folder / "ledger"))
        fill = stack.enter_context(Child([filler], environment))
        fill.line()
        survivors = range(together, together + SURVIVORS)
        alive = stack.enter_context(Racers(program, ledger, MODEST_MIB, environment).running(survivors))
        watch = MemoryWatch([racer.pid for racer in alive], region)
        watch.check()
        context = watch.processes() // SURVIVORS
        limit = (together + SURVIVORS + 1) * context + ROOM
        region.set_memory(limit)
        ledger.go()
        racers = Racers(program, ledger, LARGEST_MIB, environment)
        began = time.monotonic()
        while len(back_ms) * together < KILLS[driver.name] and time.monotonic() < began + BUDGET_S:
            victims = [Victim(racers.start(index), moments.uniform(0, LATEST_S)) for index in range(together)]
            killed = kill_all(victims, ledger)
            asked = time.monotonic()
            answer = float(fill.ask(str(limit - (SURVIVORS + 1) * context - SLACK)))
            back_ms.append(answer + (asked - killed) * 1e3 if answer >= 0 else _PATIENCE_S * 1e3)
            undead += count_undead(victims)
            stuck += sum(not _goes_on(ledger, index) for index in survivors)
        seconds = time.monotonic() - began
        ledger.stop()
        codes = exit_codes(alive)
        own = MemoryWatch([fill.pid], region).processes()
        last = float(fill.ask(str((limit - own) // GRAIN * GRAIN)))
        left = sum(each.total for pid, each in uses(region).items() if pid != fill.pid)
    kills = len(back_ms) * together
    details = {
        "from the last kill of a group to the quota back, ms": spread(back_ms),
        "all": [round(each, 1) for each in back_ms],
        "seconds": round(seconds, 1),
        "all of the limit in one piece at the end, ms": last,
        "exit codes of the survivors": codes,
        "HAMi-core": peers.HAMI_CORE,
    }
    hangs = stuck + undead + sum(code != 0 for code in codes) + (last < 0)
    return [
        Figure(f"{kills} × SIGKILL under a limit: quota back, slowest", max(back_ms), AT_MOST, 1000, "ms", details),
        Figure(f"{kills} × SIGKILL under a limit: processes that hang", hangs, AT_MOST, 0),
        Figure(f"{kills} × SIGKILL under a limit: charged to the dead at the end", left, AT_MOST, 0, "bytes"),
    ]


def kill_all(victims: Sequence[Victim], ledger: Ledger) -> float:
    """Kill each at its moment; when the last was killed."""
    began = time.monotonic()
    for index, victim in enumerate(victims):
        if index % 2 == 0:
            victim.due = began + victim.delay
    left = dict(enumerate(victims))
    while left:
        now = time.monotonic()
        for index, victim in list(left.items()):
            if victim.due is None and (ledger.counts(index).ready or now > began + _PATIENCE_S):
                victim.due = now + victim.delay
            if victim.due is not None and now >= victim.due:
                victim.process.kill()
                del left[index]
        time.sleep(_POLL_S)
    return time.monotonic()


def count_undead(victims: Sequence[Victim]) -> int:
    """Wait for them; how many do not die."""
    living = 0
    for victim in victims:
        try:
            victim.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            living += 1
    return living


def _goes_on(ledger: Ledger, index: int) -> bool:
    """Whether a process does something more within the patience."""
    before = ledger.counts(index)
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if ledger.counts(index) != before:
            return True
        time.sleep(_POLL_S)
    return False
