"""Tenants that try to hold more GPU memory than their tree may: how much they held, for how long they ran over the
limit, and what `ps` said.

Each attack runs under `runlist run --memory`, beside a daemon; NVML is asked meanwhile, as fast as it answers. Memory
of a process that ended counts for the attack that began it. What is over the limit runs until it is suspended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.benchmark import Needs
from bench.harness.child import Child
from bench.harness.compiled import PTX, built
from bench.harness.figures import AT_MOST, MIB, Figure
from bench.harness.memory_watch import card_used
from runlist.client import Client
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, NO_LIMIT, SLOT, SLOTS_AT

NEEDS = Needs(programs=("cc",))

ROOM_MIB = 100
"""What a tree may hold beside its contexts."""

PIECE_MIB, PIECES = 80, 5
TOLERANCE = 8 * MIB
"""What the daemon lets pass: no attack is over the limit before it."""

DUE_S = 1.0
_WATCH_S = 3.0
_SETTLED_S = 0.2
_ALL = 1 << 64
_LIMITS_AT = (HEADER.offsets["memory_value"], DEVICES_AT + DEVICE.offsets["memory_value"])


@dataclass
class Outcome:
    """What came of an attack. `held` are bytes by NVML, or by what the card has less since it began where that is more:
    NVML names nobody for some memory. `over_s` is for how long its tree held more than its limit and ran.
    """

    held: int = 0
    card: int = 0
    over_s: float = 0.0
    codes: list[int] = field(default_factory=list)
    said: str = ""

    def told(self, limit: int) -> dict[str, Any]:
        """For a result file."""
        return {
            "held at most, MiB": round(self.held / MIB, 1), "card, MiB": round(self.card / MIB, 1),
            "limit, MiB": round(limit / MIB, 1), "over it and running, s": round(self.over_s, 3),
            "CUDA answered": self.codes, "ps": self.said,
        }  # fmt: skip


class Tenant:
    """The attacker, as it is told what to do."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.pids = {self.do("pid")}

    def do(self, line: str) -> int:
        """Its answer to a command."""
        return int(self._child.ask(line))

    def take(self, pieces: int = PIECES) -> list[int]:
        """CUDA's codes for taking so many pieces."""
        return [self.do(f"take {PIECE_MIB}") for _ in range(pieces)]

    def poke(self, offset: int, value: int) -> None:
        """Write into the region."""
        self.do(f"poke {offset} {value - _ALL if value >= _ALL // 2 else value}")

    def limit(self, limit: int) -> None:
        """Write a limit for all GPUs, and for the first, into the region."""
        for at in _LIMITS_AT:
            self.poke(at, limit)
            self.poke(at + 8, limit ^ NO_LIMIT)

    def slot(self) -> int:
        """Where its slot in the region is."""
        (own,) = self.pids
        places = range(SLOTS_AT, SLOTS_AT + 64 * SLOT.size, SLOT.size)
        return next(at for at in places if self.do(f"peek {at}") & 0xFFFF_FFFF == own)


def raised(tenant: Tenant, _: int) -> list[int]:
    """1: raise the limit in the region, and take."""
    tenant.limit(NO_LIMIT)
    return tenant.take()


def restored(tenant: Tenant, limit: int) -> list[int]:
    """2: the same, and put the limit back at once."""
    tenant.limit(NO_LIMIT)
    codes = tenant.take()
    tenant.limit(limit)
    return codes


def wrapped(tenant: Tenant, _: int) -> list[int]:
    """3: write a negative number of bytes asked for, so that the sum wraps."""
    tenant.poke(tenant.slot() + SLOT.offsets["use"] + 16, _ALL - (1 << 40))
    return tenant.take()


def imported(tenant: Tenant, _: int) -> list[int]:
    """4: export, import in the same process, and let go of the first handle."""
    return [tenant.do(f"share {PIECE_MIB}") for _ in range(PIECES)]


def kept(tenant: Tenant, _: int) -> list[int]:
    """4: the same, with the exported descriptors left open."""
    return [tenant.do(f"keep {PIECE_MIB}") for _ in range(PIECES)]


def executed(tenant: Tenant, _: int) -> list[int]:
    """5: keep descriptors open over exec, and run itself again."""
    return [tenant.do(f"reexec {PIECE_MIB} {PIECES}")]


def cloned(tenant: Tenant, _: int) -> list[int]:
    """6: raise the limit, take, and go on as a clone that shares the address space of a parent that ends."""
    tenant.limit(NO_LIMIT)
    codes = tenant.take()
    tenant.pids.add(tenant.do("clone"))
    return codes


def own_limit(tenant: Tenant, _: int) -> list[int]:
    """7: a child with a limit of its own, and a region of its own."""
    return tenant.take()


def other_key(tenant: Tenant, _: int) -> list[int]:
    """7: overwrite the GPU's key in the region, and raise the limit."""
    tenant.limit(NO_LIMIT)
    tenant.poke(DEVICES_AT + DEVICE.offsets["key"], 12345)
    return tenant.take()


def queued(tenant: Tenant, _: int) -> list[int]:
    """Leave exported memory in the queue of a socket, and let go of it: no process holds it, and the card does."""
    return [tenant.do(f"queue {PIECE_MIB}") for _ in range(PIECES)]


@dataclass(frozen=True)
class Attack:
    """What a tenant does, the words that it is started with, and whether it has a context before."""

    does: Callable[[Tenant, int], list[int]]
    words: tuple[str, ...] = ()
    opens: bool = True

    @property
    def name(self) -> str:
        return (self.does.__doc__ or "").rstrip(".")


ATTACKS = (
    Attack(raised), Attack(restored), Attack(wrapped), Attack(imported), Attack(kept), Attack(executed, opens=False),
    Attack(cloned), Attack(own_limit, ("env", "-u", "RUNLIST_REGION", "RUNLIST_MEMORY=100G")), Attack(other_key),
    Attack(queued),
)  # fmt: skip


def measure() -> list[Figure]:
    """One attack after the other. A limit is the context's own memory and some room; each attack wants four times that
    room.
    """
    driver = choose_driver()
    outcomes: dict[str, Outcome] = {}
    limits: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(nvml.session(driver))
        client = stack.enter_context(Client.open(start=True))
        program = stack.enter_context(built("attack"))
        context = context_bytes(program)
        for attack in ATTACKS:
            # Programs that keep several contexts hold those of all.
            limit = context + ROOM_MIB * MIB
            outcomes[attack.name], limits[attack.name] = carried_out(attack, program, client, limit), limit
    figures = []
    for name, each in outcomes.items():
        told = each.told(limits[name])
        print(f"{name}: {', '.join(f'{what} {value}' for what, value in told.items())}", flush=True)
        figures += [
            Figure(f"{name}: over the limit and running", each.over_s, AT_MOST, DUE_S, "s", told),
            Figure(f"{name}: held at most, of the limit", each.held / limits[name]),
        ]
    unsaid = [
        name for name, each in outcomes.items() if each.held > limits[name] + TOLERANCE and "suspended" not in each.said
    ]
    return [*figures, Figure("attacks over their limit of which `ps` does not say so", len(unsaid), AT_MOST, 0)]


def environment() -> dict[str, str]:
    """An attacker's."""
    return {**os.environ, "KERNELS": str(PTX)}


def context_bytes(program: Path) -> int:
    """What a process holds on the GPU that has a context and code, and nothing of its own."""
    with Child([program], environment()) as child:
        tenant = Tenant(child)
        if tenant.do("open") or not tenant.do("work"):
            raise RuntimeError("the program gets no context")
        time.sleep(_SETTLED_S)
        return held_by(tenant.pids)


def held_by(pids: set[int]) -> int:
    """Bytes that NVML shows for processes on the first GPU."""
    return sum(octets for pid, octets in nvml.memory_by_pid(nvml.gpus()[0].uuid).items() if pid in pids)


def carried_out(attack: Attack, program: Path, client: Client, limit: int) -> Outcome:
    """Have an attack carried out, and watch."""
    outcome = Outcome()
    run: list[str | Path] = [
        sys.executable,
        "-m",
        "runlist.cli",
        "run",
        "--memory",
        str(limit),
        "--",
        *attack.words,
        program,
    ]
    with Child(run, environment()) as child:
        tenant = Tenant(child)
        try:
            if attack.opens and (tenant.do("open") or not tenant.do("work")):
                raise RuntimeError(f"{attack.name}: the program gets no context")
            with watched(tenant.pids, client, limit, outcome):
                outcome.codes = attack.does(tenant, limit)
                time.sleep(_WATCH_S)
        finally:
            for pid in tenant.pids:  # the child itself is `runlist run`, which ends with it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(task.pid in tenant.pids for task in client.ps()))
    return outcome


@contextlib.contextmanager
def watched(pids: set[int], client: Client, limit: int, outcome: Outcome) -> Iterator[None]:
    """Take note meanwhile of what these processes hold, and of how long they run with too much."""
    ended = threading.Event()
    before, context = card_used(), held_by(pids)

    def watch() -> None:
        last = time.monotonic()
        while not ended.is_set():
            taken = card_used() - before
            held = max(held_by(set(pids)), context + taken)
            outcome.held, outcome.card = max(outcome.held, held), max(outcome.card, taken)
            tasks = [task for task in client.ps() if task.pid in pids]
            now = time.monotonic()
            if held > limit + TOLERANCE and (not tasks or not all(task.suspended for task in tasks)):
                outcome.over_s += now - last
            outcome.said = "; ".join(f"{task.pid} {_state(task)}" for task in tasks)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _state(task: Any) -> str:
    return f"suspended ({task.why})" if task.suspended else "enabled"


def wait_until(condition: Callable[[], bool], patience_s: float = 5.0) -> None:
    """Look every 50 ms until it holds, or for so long."""
    until = time.monotonic() + patience_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
